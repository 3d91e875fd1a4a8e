"""A wish for STOPPED: the memory freed, the files kept."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("sandbox") as batch_op:
        batch_op.drop_constraint(op.f("ck_sandbox_desired"), type_="check")
        batch_op.create_check_constraint(
            op.f("ck_sandbox_desired"), "desired IN ('RUNNING', 'PAUSED', 'STOPPED', 'DELETED')"
        )
