"""A check of `var/env`: a name that no process reads, such as one with a typo, has no effect."""

from collections.abc import Iterable
from pathlib import Path

from dotenv import dotenv_values
from pydantic import AliasChoices

from shared.cli.checks.finding import Finding
from shared.env_file import FileSettings
from shared.settings import Settings

PREFIX = "AW_"


def check_settings_file(kinds: Iterable[type[FileSettings]]) -> Finding:
    """Check that each setting in the file is one of these kinds of settings."""
    file = Path(str(Settings.model_config.get("env_file")))
    known = {name for kind in kinds for name in _names(kind)}
    given = dotenv_values(file, interpolate=False) if file.exists() else {}
    unknown = [name for name in given if name.upper().startswith(PREFIX) and name.upper() not in known]
    problem = f"no process reads {', '.join(unknown)} from {file}" if unknown else None
    fix = "correct the name; docs/reference/configuration.md lists all settings, and those of the environment only"
    return Finding("settings", problem, fix, f"all names in {file} are known" if given else f"none in {file}")


def _names(kind: type[FileSettings]) -> Iterable[str]:
    """The variables that these settings read, with their former names."""
    for name, field in kind.model_fields.items():
        alias = field.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [f"{PREFIX}{name}"]
        yield from (str(choice).upper() for choice in choices)
