"""Commands that open the database of this machine: an operator's."""
