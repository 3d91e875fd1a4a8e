"""The change log."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "change_log",
        sa.Column("owner_id", sa.String(length=32), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner_id", name=op.f("pk_change_log")),
    )
    op.create_table(
        "change_entry",
        sa.Column("owner_id", sa.String(length=32), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("row_id", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("owner_id", "number", name=op.f("pk_change_entry")),
    )
    op.create_index(op.f("ix_change_entry_at"), "change_entry", ["at"])
