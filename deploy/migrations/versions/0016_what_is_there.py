"""What is deleted stays in the store, more of it every day: what is asked of nodes and of the pool looks past it."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

INDEXES = {
    "ix_sandbox_member": (["spec_id", "settled_at", "id"], "owner_id IS NULL AND desired != 'DELETED'"),
    "ix_sandbox_there": (["node_id", "owner_id"], "status != 'DELETED'"),
}


def upgrade() -> None:
    for name, (columns, which) in INDEXES.items():
        op.create_index(name, "sandbox", columns, sqlite_where=sa.text(which), postgresql_where=sa.text(which))
    op.drop_index("ix_sandbox_node_id", table_name="sandbox")
