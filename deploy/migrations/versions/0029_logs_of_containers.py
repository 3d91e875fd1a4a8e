"""The logs of sandboxes' containers, which outlive the containers."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sandbox_log",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("sandbox_id", sa.String(length=32), nullable=False),
        sa.Column("owner_id", sa.String(length=32), nullable=False),
        sa.Column("container_id", sa.String(length=64), nullable=False),
        sa.Column("cause", sa.String(length=16), nullable=True),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("is_cut", sa.Boolean(), nullable=False),
        sa.Column("read_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["sandbox_id"], ["sandbox.id"], name=op.f("fk_sandbox_log_sandbox_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sandbox_log")),
        sa.UniqueConstraint("sandbox_id", "container_id", name=op.f("uq_sandbox_log_sandbox_id_container_id")),
    )
    op.create_index("ix_sandbox_log_expires_at", "sandbox_log", ["expires_at"])
    op.create_index("ix_sandbox_log_owner_id_read_at", "sandbox_log", ["owner_id", "read_at"])
