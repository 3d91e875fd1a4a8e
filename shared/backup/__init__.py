"""A backup of the store and its keys: one folder that a restore turns into an installation again (decision 66)."""
