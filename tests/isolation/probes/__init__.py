"""Programs that run inside a sandbox, and elsewhere for controls. They use only the standard library."""
