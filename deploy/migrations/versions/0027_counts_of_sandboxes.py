"""Indexes from which metrics count sandboxes, without reading their rows."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

EXISTS = "status != 'DELETED'"
IS_UNRECONCILED = "generation != observed_generation AND status != 'DELETED'"


def upgrade() -> None:
    _create("ix_sandbox_counts", ["node_id", "status", "reason"], EXISTS)
    _create("ix_sandbox_unreconciled", ["updated_at"], IS_UNRECONCILED)


def downgrade() -> None:
    op.drop_index("ix_sandbox_unreconciled", table_name="sandbox")
    op.drop_index("ix_sandbox_counts", table_name="sandbox")


def _create(name: str, columns: list[str], where: str) -> None:
    op.create_index(name, "sandbox", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
