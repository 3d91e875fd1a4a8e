"""The service on a single machine: every process of the Procfile under one supervisor in the foreground."""
