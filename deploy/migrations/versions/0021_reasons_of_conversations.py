"""Why a conversation stands as it does, and whether a sandbox goes with the last of its conversations."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

# What lists show of conversations, filter by and order by, as of now.
SHOWN = (
    *("id", "owner_id", "sandbox_id", "parent_id", "listed", "title", "public", "created_at", "updated_at"),
    *("working_dir", "selected_repository", "selected_branch", "git_provider", "trigger", "pr_number"),
    *("llm_model", "agent_kind", "execution_status", "metrics", "max_budget", "tags"),
    *("execution_reason", "execution_detail"),
)


def upgrade() -> None:
    # Not in a batch: a table that is made anew on SQLite would lose its triggers.
    op.add_column("conversation", sa.Column("execution_reason", sa.String(length=64), nullable=True))
    op.add_column("conversation", sa.Column("execution_detail", sa.String(), nullable=True))
    goes = sa.Column[bool]("goes_with_conversations", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("sandbox", goes)
    made = "SELECT 1 FROM start_task WHERE start_task.sandbox_id = sandbox.id AND start_task.made_sandbox"
    # A pool's member is nobody's, and whose start has gone with its conversation is taken to be made by hand.
    op.execute(f"UPDATE sandbox SET goes_with_conversations = true WHERE EXISTS ({made})")
    old, new = (", ".join(f"{row}.{column}" for column in SHOWN) for row in ("OLD", "NEW"))
    changed = f"UPDATE OF {', '.join(SHOWN)} ON conversation"
    {"sqlite": _watch_in_sqlite, "postgresql": _watch_in_postgresql}[op.get_bind().dialect.name](changed, old, new)


def _watch_in_sqlite(changed: str, old: str, new: str) -> None:
    renewals = [
        f"INSERT INTO list_version (owner_id, version) SELECT {row}.owner_id, lower(hex(randomblob(16)))"
        f" WHERE {row}.owner_id IS NOT NULL ON CONFLICT (owner_id) DO UPDATE SET version = excluded.version;"
        for row in ("OLD", "NEW")
    ]
    op.execute("DROP TRIGGER conversation_changes_lists_by_update")
    op.execute(
        f"CREATE TRIGGER conversation_changes_lists_by_update AFTER {changed} WHEN ({old}) IS NOT ({new})"
        f" BEGIN {' '.join(renewals)} END"
    )


def _watch_in_postgresql(changed: str, old: str, new: str) -> None:
    for name, kind, deferred in (
        ("note_list_change", "TRIGGER", ""),
        ("renew_list_versions", "CONSTRAINT TRIGGER", "DEFERRABLE INITIALLY DEFERRED"),
    ):
        op.execute(f"DROP TRIGGER {name}_by_update ON conversation")
        op.execute(
            f"CREATE {kind} {name}_by_update AFTER {changed} {deferred}"
            f" FOR EACH ROW WHEN (({old}) IS DISTINCT FROM ({new})) EXECUTE FUNCTION {name}()"
        )
