"""Deadlines of sandboxes."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

DURATIONS = ("freeze_after_seconds", "stop_after_seconds", "delete_after_seconds", "max_age_seconds")
TIMES = ("settled_at", "last_active_at")


def upgrade() -> None:
    for table in ("sandbox_spec", "sandbox"):
        for name in DURATIONS:
            op.add_column(table, sa.Column(name, sa.Integer(), nullable=True))
    for name in (*TIMES, "expires_at", "deadline_at"):
        op.add_column("sandbox", sa.Column(name, sa.DateTime(timezone=True), nullable=True))
    op.add_column("sandbox", sa.Column("deadline_does", sa.String(length=16), nullable=True))
    op.add_column("sandbox", sa.Column("wish_reason", sa.String(length=64), nullable=True))
    op.add_column("sandbox_transition", sa.Column("pause_kind", sa.String(length=16), nullable=True))
    op.execute("UPDATE sandbox SET settled_at = updated_at, last_active_at = updated_at")
    with op.batch_alter_table("sandbox") as batch_op:
        for name in TIMES:
            batch_op.alter_column(name, existing_type=sa.DateTime(timezone=True), nullable=False)
        batch_op.create_check_constraint(
            op.f("ck_sandbox_deadline_does"), "deadline_does IN ('freeze', 'stop', 'delete', 'expire')"
        )
    where = sa.text("deadline_at IS NOT NULL")
    op.create_index("ix_sandbox_deadline_at", "sandbox", ["deadline_at"], sqlite_where=where, postgresql_where=where)
