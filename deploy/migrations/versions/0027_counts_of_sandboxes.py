"""Indexes from which metrics count sandboxes, without reading their rows."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

IS_COUNTED = "status != 'DELETED' AND coalesce(node_id, '') >= ''"
IS_UNRECONCILED = "generation != observed_generation AND status != 'DELETED'"


def upgrade() -> None:
    _create("ix_sandbox_counts", ["node_id", "status", "reason"], IS_COUNTED)
    _create("ix_sandbox_unreconciled", ["updated_at"], IS_UNRECONCILED)


def downgrade() -> None:
    op.drop_index("ix_sandbox_unreconciled", table_name="sandbox")
    op.drop_index("ix_sandbox_counts", table_name="sandbox")


def _create(name: str, columns: list[str], where: str) -> None:
    op.create_index(name, "sandbox", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
