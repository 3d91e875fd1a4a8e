"""A version of each user's lists, which changes with whatever they show."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

# What lists show of each table, filter by and order by; sandboxes of the warm pool are in nobody's.
SHOWN = {
    "conversation": (
        *("id", "owner_id", "sandbox_id", "parent_id", "listed", "title", "public", "created_at", "updated_at"),
        *("working_dir", "selected_repository", "selected_branch", "git_provider", "trigger", "pr_number"),
        *("llm_model", "agent_kind", "execution_status", "metrics", "max_budget", "tags"),
    ),
    "sandbox": (
        *("id", "owner_id", "spec_id", "status", "desired", "reason", "detail", "pause_kind", "session_key"),
        *("exposed_urls", "created_at", "updated_at", "last_active_at", "expires_at", "deadline_at", "deadline_does"),
        *("freeze_after_seconds", "stop_after_seconds", "delete_after_seconds", "max_age_seconds"),
    ),
    "sandbox_spec": (
        *("id", "freeze_after_seconds", "stop_after_seconds", "delete_after_seconds", "max_age_seconds"),
    ),
}
EVERYBODY = "*"
RANDOM = {"sqlite": "lower(hex(randomblob(16)))", "postgresql": "replace(gen_random_uuid()::text, '-', '')"}


def upgrade() -> None:
    op.create_table(
        "list_version",
        sa.Column("owner_id", sa.String(length=32), nullable=False),
        sa.Column("version", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("owner_id", name=op.f("pk_list_version")),
    )
    kind = op.get_bind().dialect.name
    everyone = f"""SELECT id, {RANDOM[kind]} FROM "user" UNION ALL SELECT '{EVERYBODY}', {RANDOM[kind]}"""
    op.execute(f"INSERT INTO list_version (owner_id, version) {everyone}")
    {"sqlite": _watch_in_sqlite, "postgresql": _watch_in_postgresql}[kind]()


def _watch_in_sqlite() -> None:
    """Writers take turns anyway: the version is written at once."""
    for table, columns in SHOWN.items():
        old, new = (", ".join(f"{row}.{column}" for column in columns) for row in ("OLD", "NEW"))
        changed = f"OF {', '.join(columns)} ON {table} WHEN ({old}) IS NOT ({new})"
        for event, rows in ((f"INSERT ON {table}", ["NEW"]), (f"DELETE ON {table}", ["OLD"])):
            _trigger_in_sqlite(event, table, rows)
        _trigger_in_sqlite(f"UPDATE {changed}", table, ["OLD", "NEW"])


def _trigger_in_sqlite(event: str, table: str, rows: list[str]) -> None:
    owners = [f"'{EVERYBODY}'"] if table == "sandbox_spec" else [f"{row}.owner_id" for row in rows]
    renewals = [
        f"INSERT INTO list_version (owner_id, version) SELECT {owner}, {RANDOM['sqlite']} WHERE {owner} IS NOT NULL"
        " ON CONFLICT (owner_id) DO UPDATE SET version = excluded.version;"
        for owner in owners
    ]
    name = f"{table}_changes_lists_by_{event.split()[0].lower()}"
    op.execute(f"CREATE TRIGGER {name} AFTER {event} BEGIN {' '.join(renewals)} END")


# Versions are locked until the commit. So they are written last of all, and in one order: nobody who holds one waits
# for anything but the next one. Until then the transaction only notes whose lists it changes.
NOTE = f"""
CREATE FUNCTION note_list_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    noted text[] := string_to_array(coalesce(current_setting('agent_workspace.changed_lists', true), ''), ' ');
    owner text;
BEGIN
    IF TG_TABLE_NAME = 'sandbox_spec' THEN
        owner := '{EVERYBODY}';
    ELSIF TG_OP = 'DELETE' THEN
        owner := OLD.owner_id;
    ELSE
        owner := NEW.owner_id;
        IF TG_OP = 'UPDATE' AND OLD.owner_id IS DISTINCT FROM NEW.owner_id AND OLD.owner_id IS NOT NULL THEN
            noted := noted || OLD.owner_id::text;
        END IF;
    END IF;
    IF owner IS NOT NULL AND owner <> ALL (noted) THEN
        noted := noted || owner;
    END IF;
    PERFORM set_config('agent_workspace.changed_lists', array_to_string(noted, ' '), true);
    RETURN NULL;
END $$
"""
RENEW = f"""
CREATE FUNCTION renew_list_versions() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    noted text[] := string_to_array(current_setting('agent_workspace.changed_lists', true), ' ');
BEGIN
    INSERT INTO list_version (owner_id, version)
        SELECT owner, {RANDOM["postgresql"]} FROM (SELECT DISTINCT unnest(noted) AS owner) AS owners ORDER BY owner
        ON CONFLICT (owner_id) DO UPDATE SET version = excluded.version;
    PERFORM set_config('agent_workspace.changed_lists', '', true);
    RETURN NULL;
END $$
"""


def _watch_in_postgresql() -> None:
    op.execute(NOTE)
    op.execute(RENEW)
    for table, columns in SHOWN.items():
        old, new = (", ".join(f"{row}.{column}" for column in columns) for row in ("OLD", "NEW"))
        for events, when, suffix in (
            ("INSERT OR DELETE", "", ""),
            (f"UPDATE OF {', '.join(columns)}", f"WHEN (({old}) IS DISTINCT FROM ({new}))", "_by_update"),
        ):
            op.execute(
                f"CREATE TRIGGER note_list_change{suffix} AFTER {events} ON {table}"
                f" FOR EACH ROW {when} EXECUTE FUNCTION note_list_change()"
            )
            op.execute(
                f"CREATE CONSTRAINT TRIGGER renew_list_versions{suffix} AFTER {events} ON {table}"
                f" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW {when} EXECUTE FUNCTION renew_list_versions()"
            )
