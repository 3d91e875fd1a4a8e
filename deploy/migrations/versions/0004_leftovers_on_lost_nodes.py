"""Leftovers of sandboxes that moved away from lost nodes."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sandbox_leftover",
        sa.Column("sandbox_id", sa.String(length=32), nullable=False),
        sa.Column("node_id", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["node.id"], name=op.f("fk_sandbox_leftover_node_id")),
        sa.ForeignKeyConstraint(["sandbox_id"], ["sandbox.id"], name=op.f("fk_sandbox_leftover_sandbox_id")),
        sa.PrimaryKeyConstraint("sandbox_id", "node_id", name=op.f("pk_sandbox_leftover")),
    )
    op.create_index(op.f("ix_sandbox_leftover_node_id"), "sandbox_leftover", ["node_id"])
