"""owner and wish."""

import sqlalchemy as sa
from alembic import op

revision = '0003'
down_revision = '0002'
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table('sandbox', schema=None) as batch_op:
        batch_op.create_index('ix_sandbox_owner_id_desired', ['owner_id', 'desired'], unique=False)

