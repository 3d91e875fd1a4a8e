"""One name for each engine, what engines refuse, and nodes that are given up."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("node", sa.Column("engine_id", sa.String(length=512), nullable=True))
    op.create_index(op.f("ix_node_engine_id"), "node", ["engine_id"], unique=True)
    op.add_column("node", sa.Column("forgotten_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("sandbox_leftover", sa.Column("refused_generation", sa.Integer(), nullable=True))
    op.add_column("sandbox_leftover", sa.Column("refusal", sa.String(), nullable=True))
    op.create_table(
        "node_refusal",
        sa.Column("node_id", sa.String(length=64), nullable=False),
        sa.Column("spec_id", sa.String(length=256), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("detail", sa.String(), nullable=True),
        sa.Column("rests_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("on_trial", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["node.id"], name=op.f("fk_node_refusal_node_id")),
        sa.ForeignKeyConstraint(["spec_id"], ["sandbox_spec.id"], name=op.f("fk_node_refusal_spec_id")),
        sa.PrimaryKeyConstraint("node_id", "spec_id", name=op.f("pk_node_refusal")),
    )
