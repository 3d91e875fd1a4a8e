"""Building blocks of SQL: prepared statements, locks, pagination."""
