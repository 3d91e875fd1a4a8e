"""Code shared by the API and the workers: states, tables, queries, jobs, settings. Imports neither HTTP nor Docker."""
