"""Whether traffic wakes a spec's sandboxes."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Not in a batch: a table that is made anew on SQLite would lose its triggers.
    op.add_column("sandbox_spec", sa.Column("wake_on_traffic", sa.Boolean(), nullable=False, server_default=sa.true()))
