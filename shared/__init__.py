"""What both sides agree on: states, tables, store functions, jobs, settings. Knows neither HTTP nor Docker."""
