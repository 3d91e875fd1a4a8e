"""The commands `db backup`, `db restore`, `nodes backup` and `nodes restore` (decision 66)."""
