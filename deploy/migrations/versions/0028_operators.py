"""The role of users, what operators did, their lists' indexes, and phases of starts. The oldest user is an operator."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

INDEXES = (
    ("ix_sandbox_by_age", "created_at", "status != 'DELETED' AND settled_at IS NOT NULL"),
    ("ix_sandbox_failed", "settled_at", "status = 'ERROR' AND settled_at IS NOT NULL"),
    ("ix_sandbox_gone", "settled_at", "status = 'DELETED' AND settled_at IS NOT NULL"),
)


def upgrade() -> None:
    op.add_column("user", sa.Column("role", sa.String(length=16), nullable=False, server_default="user"))
    oldest = 'SELECT id FROM "user" ORDER BY created_at, id LIMIT 1'
    op.execute(f"UPDATE \"user\" SET role = 'admin' WHERE id = ({oldest})")
    op.add_column("sandbox_transition", sa.Column("phases", sa.Text(), nullable=True))
    op.create_table(
        "audit_entry",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=100), nullable=True),
        sa.Column("key_prefix", sa.String(length=16), nullable=True),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("subject", sa.String(length=100), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entry")),
    )
    op.create_index("ix_audit_entry_at", "audit_entry", ["at"])
    for name, column, where in INDEXES:
        there = sa.text(where)
        op.create_index(name, "sandbox", [column, "id"], sqlite_where=there, postgresql_where=there)
