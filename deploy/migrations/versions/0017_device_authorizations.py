"""Requests of devices for a key of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "device_authorization",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("device_code_digest", sa.String(length=64), nullable=False),
        sa.Column("user_code_digest", sa.String(length=64), nullable=False),
        sa.Column("client", sa.String(length=100), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("approved_with", sa.String(length=32), nullable=True),
        sa.Column("interval_seconds", sa.Integer(), nullable=False),
        sa.Column("polled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "status IN ('PENDING', 'APPROVED', 'DENIED', 'USED')", name=op.f("ck_device_authorization_status")
        ),
        sa.ForeignKeyConstraint(
            ["approved_with"], ["api_key.id"], name=op.f("fk_device_authorization_approved_with")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device_authorization")),
        sa.UniqueConstraint("device_code_digest", name=op.f("uq_device_authorization_device_code_digest")),
        sa.UniqueConstraint("user_code_digest", name=op.f("uq_device_authorization_user_code_digest")),
    )
    op.create_index(op.f("ix_device_authorization_expires_at"), "device_authorization", ["expires_at"])
