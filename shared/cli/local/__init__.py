"""Commands for operators, which open the database that this machine's settings name."""
