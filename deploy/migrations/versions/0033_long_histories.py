"""64 bits for the ids of sandboxes' transitions, as the other keys that grow for ever have them.

On SQLite, every INTEGER has 64 bits. PostgreSQL rewrites the table.
"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

TABLE = "sandbox_transition"


def upgrade() -> None:
    _change(sa.Integer(), sa.BigInteger())


def downgrade() -> None:
    _change(sa.BigInteger(), sa.Integer())


def _change(former: sa.Integer, new: sa.Integer) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column(TABLE, "id", existing_type=former, type_=new, existing_nullable=False)
        op.execute(f"ALTER SEQUENCE {TABLE}_id_seq AS {'bigint' if isinstance(new, sa.BigInteger) else 'integer'}")
