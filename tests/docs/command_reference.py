"""`docs/reference/cli.md` as the code has it: `python -m tests.docs.command_reference` writes it."""

import textwrap
from collections.abc import Iterator
from typing import Any

from shared.cli.app import COMMANDS, OPERATE, USE
from shared.cli.exits import MEANINGS
from shared.cli.lazy import LazyCommand
from tests.docs.documents import DOCS

PAGE = DOCS / "reference" / "cli.md"
WIDTH = 120
SHARED = {"--json", "--context"}
# Described once, for all commands.
COMMON = SHARED | {"--quiet", "--url", "--key", "--help"}
HEAD = """\
# Command line

`agent-workspace` is installed with the service, in `.venv/bin` of its folder
([other installations](../start/install.md#settings-and-commands)), and works on any machine that has the package.
`--help` after a command prints what is written here.

- [Use a service](#use-a-service-from-any-machine): commands that need a login, and no database
- [Operate a service](#operate-a-service-on-its-machine): commands that read `var/env` and the database

## Output

Commands that list or show something print a table on a terminal, and tab-separated lines elsewhere. `--json` prints
JSON with all fields and times in ISO 8601, and `-q` or `--quiet` ids only, one per line. Messages for people are on
standard error. Characters that control a terminal are replaced in everything that is shown, except in what
`sandboxes exec` prints elsewhere than on a terminal: that is the command's own output.

A command that needs `--yes` asks on a terminal. Elsewhere it changes nothing and exits with 2, so that
`nodes drain NAME && reboot` in a script does not reboot a node in service.

## Exit status

| Status | Meaning |
|---|---|
"""
AFTER_STATUSES = """
`sandboxes exec` exits with the status of its command.

## Contexts

`login` stores the service's URL and a key as a context, in `$XDG_CONFIG_HOME/agent-workspace/contexts.json` (by
default in `~/.config`), which only its owner can read. All commands that use a service take `--context NAME`.

| Variable | Meaning |
|---|---|
| `AGENT_WORKSPACE_CONTEXT` | the context to use, as `--context` |
| `AGENT_WORKSPACE_URL` | a service to use instead of a context, as `--url`; for CI |
| `AGENT_WORKSPACE_KEY` | the key for it |

## Completion

`agent-workspace --install-completion` installs completion for bash, zsh or fish; `--show-completion` prints it.
"""


def reference() -> str:
    """The whole page."""
    statuses = "".join(f"| {status} | {meaning} |\n" for status, meaning in MEANINGS.items())
    parts = [HEAD, statuses, AFTER_STATUSES]
    for panel in (USE, OPERATE):
        parts.append(f"\n## {panel}\n")
        for name, source in COMMANDS.items():
            if source.panel == panel and not source.hidden:
                parts += _describe(name, LazyCommand(name, source).load())
    return "".join(parts)


def _describe(name: str, command: Any) -> Iterator[str]:
    if commands := getattr(command, "commands", {}):
        for child in commands.values():
            yield from _describe(f"{name} {child.name}", child)
        return
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    usage = " ".join(["agent-workspace", name, *(_argument(one) for one in arguments)])
    yield f"\n### {name}\n\n`{usage}`\n\n"
    yield (
        "\n\n".join(textwrap.fill(" ".join(text.split()), WIDTH) for text in (command.help or "").split("\n\n")) + "\n"
    )
    options = [one for one in command.params if not set(one.opts) & COMMON and one.param_type_name == "option"]
    described = [*((_argument(one), one) for one in arguments if one.help), *((_option(one), one) for one in options)]
    if described:
        yield "\n| Option | Meaning |\n|---|---|\n"
        yield from (f"| `{text}` | {one.help} |\n" for text, one in described)
    if shared := sorted(SHARED & {name for one in command.params for name in one.opts}):
        yield f"\nAlso {' and '.join(f'`{text}`' for text in shared)}.\n"


def _argument(argument: Any) -> str:
    text = (argument.metavar or argument.name).upper().strip("[]{}.") + ("..." if argument.nargs == -1 else "")
    return text if argument.required else f"[{text}]"


def _option(option: Any) -> str:
    return ", ".join(sorted([*option.opts, *option.secondary_opts], key=len, reverse=True))


if __name__ == "__main__":
    PAGE.write_text(reference())
