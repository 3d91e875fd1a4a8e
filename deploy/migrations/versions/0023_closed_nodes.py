"""Why a node takes no new sandboxes although its worker and its engine respond."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("node", sa.Column("closed_reason", sa.String(), nullable=True))
