"""Alembic's environment: the connection comes from `shared.db.migrations`, the schema from the models."""

from typing import Any, Literal

from alembic import context
from sqlalchemy import Connection
from sqlmodel import AutoString, SQLModel

import shared.models  # noqa: F401 - fills the metadata
from shared.models.columns import Json, UtcDateTime


def plain_type(kind: str, item: Any, _context: Any) -> str | Literal[False]:
    """Write this service's column types as database types: migrations must not change with the models."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    if kind == "type" and isinstance(item, Json):
        return "sa.Text()"
    if kind == "type" and isinstance(item, AutoString):
        return f"sa.String(length={item.length})" if item.length else "sa.String()"
    return False


def run(connection: Connection) -> None:
    """Run the migrations in the caller's transaction."""
    context.configure(
        connection=connection,
        target_metadata=SQLModel.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        render_item=plain_type,
    )
    context.run_migrations()


run(context.config.attributes["connection"])
