"""Nothing: it gave the ids of transitions 64 bits on PostgreSQL, in a version that was not released.

A changed type breaks the prepared statements of running processes of 0.2.0, and with them the upgrade without failed
requests. 32 bits suffice for 58 years of 100,000 transitions a day.
"""

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change nothing."""


def downgrade() -> None:
    """Change nothing."""
