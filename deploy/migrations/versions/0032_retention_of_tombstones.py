"""Index of deleted sandboxes by the end of their retention."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

IS_TOMBSTONE = "status = 'DELETED' AND updated_at IS NOT NULL"


def upgrade() -> None:
    where = sa.text(IS_TOMBSTONE)
    op.create_index("ix_sandbox_tombstone", "sandbox", ["updated_at"], sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    op.drop_index("ix_sandbox_tombstone", table_name="sandbox")
