"""What users say before their agents can hear it."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "pending_message",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("conversation_id", sa.String(length=32), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("newest_before", sa.String(length=64), nullable=True),
        sa.Column("refusal", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_pending_message")),
        sa.UniqueConstraint("id", name=op.f("uq_pending_message_id")),
    )
    op.create_index(
        op.f("ix_pending_message_conversation_id_seq"), "pending_message", ["conversation_id", "seq"]
    )
