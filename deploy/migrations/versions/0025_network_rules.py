"""The egress of specs, and the model servers that sandboxes may reach."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Existing specs keep what their sandboxes had: the public internet.
    op.add_column("sandbox_spec", sa.Column("egress", sa.String(), nullable=False, server_default="open"))
    op.create_table(
        "model_server",
        sa.Column("address", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("address", name=op.f("pk_model_server")),
    )
