"""Case-insensitive search for substrings of titles, on both databases."""

from typing import Any

from sqlalchemy import Boolean, Dialect, Text, func
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

# The characters with a special meaning in a GLOB pattern.
SPECIAL = "*?["


class Substring(TypeDecorator[str]):
    """A substring, bound as the pattern that `contains` compares with."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Convert the substring to the pattern of the dialect."""
        if value is None:
            return None
        return _glob(value) if dialect.name == "sqlite" else _like(value)


class contains(FunctionElement[bool]):  # noqa: N801 - it stands for a function of SQL
    """Whether a column contains a `Substring`.

    PostgreSQL compares the texts in lower case, for which there is an index. SQLite converts only ASCII to lower case,
    so its pattern has both cases of each letter.
    """

    type = Boolean()
    inherit_cache = True


@compiles(contains, "postgresql")
def _contains_postgresql(element: contains, compiler: Any, **options: Any) -> str:
    column, part = element.clauses
    return str(compiler.process(func.lower(column).like(func.lower(part), escape="/"), **options))


@compiles(contains, "sqlite")
def _contains_sqlite(element: contains, compiler: Any, **options: Any) -> str:
    column, part = element.clauses
    return str(compiler.process(column.op("GLOB")(part), **options))


def _like(part: str) -> str:
    for special in "/%_":
        part = part.replace(special, "/" + special)
    return f"%{part}%"


def _glob(part: str) -> str:
    return f"*{''.join(map(_any_case, part))}*"


def _any_case(character: str) -> str:
    """A pattern for all characters with the same lower case as this one."""
    lower = character.lower()
    forms = {form for form in (character, lower, character.upper()) if len(form) == 1 and form.lower() == lower}
    is_plain = len(forms) < 2 and character not in SPECIAL
    return character if is_plain else f"[{''.join(sorted(forms))}]"
