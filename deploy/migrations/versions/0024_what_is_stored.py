"""How much is stored for each user, starts that are under way, and who asks for a device login."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

UNFINISHED = "stage != 'ERROR' AND stage != 'READY'"
LENGTH = {"sqlite": "length", "postgresql": "octet_length"}


def upgrade() -> None:
    op.create_table(
        "stored_usage",
        sa.Column("owner_id", sa.String(length=32), nullable=False),
        sa.Column("conversations", sa.BigInteger(), nullable=False),
        sa.Column("events", sa.BigInteger(), nullable=False),
        sa.Column("event_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner_id", name=op.f("pk_stored_usage")),
    )
    length = LENGTH[op.get_bind().dialect.name]
    op.execute(f"""
        INSERT INTO stored_usage (owner_id, conversations, events, event_bytes)
        SELECT owner_id, sum(CASE WHEN deleted_at IS NULL THEN 1 ELSE 0 END), sum(events), sum(event_bytes) FROM (
            SELECT conversation.owner_id, conversation.deleted_at, count(event.seq) AS events,
                   coalesce(sum({length}(event.body)), 0) AS event_bytes
            FROM conversation LEFT JOIN event ON event.conversation_id = conversation.id
            GROUP BY conversation.id, conversation.owner_id, conversation.deleted_at
        ) AS counted GROUP BY owner_id
    """)
    which = sa.text(UNFINISHED)
    op.create_index(
        "ix_start_task_unfinished",
        "start_task",
        ["owner_id", "conversation_id"],
        sqlite_where=which,
        postgresql_where=which,
    )
    for name, characters in (("user_agent", 200), ("address", 64)):
        op.add_column(
            "device_authorization", sa.Column(name, sa.String(length=characters), nullable=False, server_default="")
        )
