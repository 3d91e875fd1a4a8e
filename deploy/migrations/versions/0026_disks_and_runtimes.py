"""What a node can give sandboxes: disks with a limit, and runtimes. The disk that a spec asks for."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("node", sa.Column("disk_kind", sa.String(length=16), nullable=True))
    op.add_column("node", sa.Column("runtimes", sa.Text(), nullable=True))
    op.add_column("sandbox_spec", sa.Column("disk_bytes", sa.BigInteger(), nullable=True))
