"""Options that many commands have, added to each by a decorator."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

Command = Callable[..., None]


def with_options(
    options: Mapping[str, tuple[Any, Any]], use: Callable[..., AbstractContextManager[None]]
) -> Callable[[Command], Command]:
    """Decorate commands so that they have these options, too, and run inside `use`.

    Args:
        options: annotations and default values, by the names of parameters.
        use: called with the options' values; returns the context manager in which the command runs.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**values: Any) -> None:
            with use(**{name: values.pop(name) for name in options}):
                command(**values)

        signature = inspect.signature(command)
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in options.items()
        ]
        # Typer reads both `__signature__` and `__annotations__`.
        run.__dict__["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), *added])
        run.__annotations__ = command.__annotations__ | {name: annotation for name, (annotation, _) in options.items()}
        return run

    return decorate
