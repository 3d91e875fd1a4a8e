"""What does not work on a node, although it takes new sandboxes."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("node", sa.Column("impaired_reason", sa.String(), nullable=True))
