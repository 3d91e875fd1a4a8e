"""Conversations that are deleted, and starts that are cancelled."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Not in a batch: a table that is made anew on SQLite would lose its triggers.
    op.add_column("conversation", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    awaits = sa.Column[bool]("awaits_sandbox", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("conversation", awaits)
    op.create_index(
        "ix_conversation_awaits_sandbox",
        "conversation",
        ["sandbox_id"],
        sqlite_where=sa.text("awaits_sandbox = 1"),
        postgresql_where=sa.text("awaits_sandbox"),
    )
    op.add_column("start_task", sa.Column("cancelled_at", sa.DateTime(timezone=True), nullable=True))
