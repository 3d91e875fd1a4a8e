"""What lists by one time filter by the other, in the index."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

TIMES = {"created": "updated_at", "updated": "created_at"}


def upgrade() -> None:
    for name, other in TIMES.items():
        op.drop_index(f"ix_conversation_by_{name}", table_name="conversation")
        columns = ["owner_id", f"{name}_at", "id", "parent_id", "listed", other, "title"]
        op.create_index(f"ix_conversation_by_{name}", "conversation", columns)
