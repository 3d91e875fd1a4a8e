"""The database: connections, transactions, migrations."""
