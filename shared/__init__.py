"""Code shared by the API and the workers: states, tables, queries, jobs, settings. Imports neither HTTP nor Docker."""

# The service's version. The package's metadata, the OpenAPI document and `--version` have it from here.
__version__ = "0.2.0"
