"""Indexes that serve every list in its order, and searches in titles."""

import sqlalchemy as sa
import structlog
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

OLD = ("owner_id_created_at_id", "owner_id_updated_at_id", "owner_id_title_id", "sandbox_id", "parent_id")
NEW = {
    "by_created": ["owner_id", "created_at", "id", "parent_id", "listed", "title"],
    "by_updated": ["owner_id", "updated_at", "id", "parent_id", "listed", "title"],
    "by_title": ["owner_id", "title", "id", "parent_id", "listed"],
    "of_sandbox": ["sandbox_id", "created_at", "id", "parent_id", "listed"],
    "children": ["parent_id", "owner_id", "created_at", "id", "listed"],
}
# Both are trusted: the database's owner may create them. They come with PostgreSQL, in some systems as a package more.
EXTENSIONS = ("pg_trgm", "btree_gin")
AVAILABLE = "SELECT count(*) FROM pg_available_extensions WHERE name IN ('pg_trgm', 'btree_gin')"


def upgrade() -> None:
    for name in OLD:
        op.drop_index(f"ix_conversation_{name}", table_name="conversation")
    for name, columns in NEW.items():
        op.create_index(f"ix_conversation_{name}", "conversation", columns)
    listed = sa.text("desired != 'DELETED'")
    columns = ["owner_id", "created_at", "id"]
    op.create_index("ix_sandbox_listed", "sandbox", columns, sqlite_where=listed, postgresql_where=listed)
    if op.get_bind().dialect.name == "postgresql":
        _index_titles()


def _index_titles() -> None:
    if not _has_extensions():
        structlog.get_logger().warning("titles_not_indexed", missing=EXTENSIONS)
        return
    op.execute(
        "CREATE INDEX ix_conversation_title_search ON conversation USING gin (owner_id, lower(title) gin_trgm_ops)"
    )


def _has_extensions() -> bool:
    connection = op.get_bind()
    if connection.exec_driver_sql(AVAILABLE).scalar_one() < len(EXTENSIONS):
        return False
    try:
        with connection.begin_nested():
            for name in EXTENSIONS:
                connection.exec_driver_sql(f"CREATE EXTENSION IF NOT EXISTS {name}")
    except sa.exc.ProgrammingError:  # a role that may make tables only
        return False
    return True
