"""A check of `var/env`: a name that no process reads, and a line that is not `NAME=value`, have no effect."""

from collections.abc import Iterable
from pathlib import Path

from dotenv.parser import Binding
from pydantic import AliasChoices

from shared.cli.checks.finding import Finding
from shared.env_file import FileSettings, read_lines
from shared.settings import Settings

PREFIX = "AW_"


def check_settings_file(kinds: Iterable[type[FileSettings]]) -> Finding:
    """Check that each line in the file sets one of these kinds of settings."""
    file = Path(str(Settings.model_config.get("env_file")))
    lines = read_lines(file) if file.is_file() else []
    if unusable := [str(_number(line)) for line in lines if line.error or (line.key and line.value is None)]:
        return Finding("settings", f"line {', '.join(unusable)} of {file} sets nothing", "write it as NAME=value")
    known = {name for kind in kinds for name in _names(kind)}
    given = dict.fromkeys(line.key for line in lines if line.key)
    unknown = [name for name in given if name.upper().startswith(PREFIX) and name.upper() not in known]
    problem = f"no process reads {', '.join(unknown)} from {file}" if unknown else None
    fix = "correct the name; docs/reference/configuration.md lists all settings, and those of the environment only"
    return Finding("settings", problem, fix, f"all names in {file} are known" if given else f"none in {file}")


def _number(line: Binding) -> int:
    """The number of a line. The parser counts empty lines before it as its part."""
    text = line.original.string
    return line.original.line + text[: len(text) - len(text.lstrip())].count("\n")


def _names(kind: type[FileSettings]) -> Iterable[str]:
    """The variables that these settings read, with their former names."""
    for name, field in kind.model_fields.items():
        alias = field.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [f"{PREFIX}{name}"]
        yield from (str(choice).upper() for choice in choices)
