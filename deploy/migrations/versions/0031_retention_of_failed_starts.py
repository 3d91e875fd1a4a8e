"""Indexes of failed starts: by the end of their retention, and by owner."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

IS_FAILED = "stage = 'ERROR'"


def upgrade() -> None:
    _create("ix_start_task_failed_at", ["updated_at"], f"{IS_FAILED} AND updated_at IS NOT NULL")
    _create("ix_start_task_owner_id_failed_at", ["owner_id", "updated_at", "id"], IS_FAILED)


def downgrade() -> None:
    op.drop_index("ix_start_task_owner_id_failed_at", table_name="start_task")
    op.drop_index("ix_start_task_failed_at", table_name="start_task")


def _create(name: str, columns: list[str], where: str) -> None:
    op.create_index(name, "start_task", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
