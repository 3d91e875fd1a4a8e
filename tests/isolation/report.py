"""The report of attacks on isolation: made from the table and its lists, which the tests hold to the truth."""

from collections.abc import Sequence
from itertools import groupby
from textwrap import wrap

from shared import __version__
from tests.isolation.attack import Attack
from tests.isolation.attacks import ATTACKS
from tests.isolation.verdicts import OPEN, UNDECIDABLE
from tests.services.directories import REPOSITORY
from tests.services.engine import SANDBOX_IMAGE

PATH = REPOSITORY / "docs" / "reports" / "isolation.md"
WIDTH = 120
BLOCKED, IS_OPEN, UNDECIDED = "blocked", "open", "undecidable"
PLACES = {
    "A": "in the sandbox",
    "A2": "in the user's second sandbox",
    "B": "in the neighbour",
    "plain": "in a plain container",
    "peer": "in a plain container",
    "host": "on the host, as root",
    "other user": "on the host, as another user",
    "lan": "on another machine",
}
HEAD = """# Attacks on isolation

Made by `python -m tests.isolation` from the table in `tests/isolation/attacks/`; a test compares them. Version
{version}, image `{image}`.

Two users, three sandboxes of the real image. Attacks run by `docker exec` as the image's own user, or where the line
says. Each has a control: the same probe where it is allowed, or with the right key, in the same run. Without it, an
attack that fails shows nothing. *Blocked*: the attack fails, and its control succeeds. *Open*: the attack succeeds.
*Undecidable*: the control fails on the project's machines, so the attack counts neither way; where a machine can decide
it, the test demands that it is blocked.

Not attacked here: hostile agent servers ([report](hostile-sandboxes.md)), a compromised worker
(`tests/isolation/engine_filter`), holes of the kernel, bandwidth, several nodes, TLS.
"""


def make_report(attacks: Sequence[Attack] = ATTACKS) -> str:
    """The report as Markdown."""
    parts = [HEAD.format(version=__version__, image=SANDBOX_IMAGE), _counts(attacks), _listed("Open", OPEN)]
    parts.append(_listed("Undecidable on the project's machines", UNDECIDABLE))
    parts += [_group(name, list(found)) for name, found in groupby(attacks, lambda one: one.group)]
    return "\n".join(parts)


def verdict(attack: Attack) -> str:
    """What the tests expect of an attack."""
    return IS_OPEN if attack.id in OPEN else UNDECIDED if attack.id in UNDECIDABLE else BLOCKED


def _counts(attacks: Sequence[Attack]) -> str:
    lines = ["## Counts", "", "| Group | Attacks | Blocked | Open | Undecidable |", "|---|---:|---:|---:|---:|"]
    groups = {name: list(found) for name, found in groupby(attacks, lambda one: one.group)}
    for name, found in [*groups.items(), ("all", list(attacks))]:
        verdicts = [verdict(one) for one in found]
        counted = " | ".join(str(verdicts.count(one)) for one in (BLOCKED, IS_OPEN, UNDECIDED))
        lines.append(f"| {name} | {len(found)} | {counted} |")
    return "\n".join([*lines, ""])


def _listed(title: str, names: dict[str, str]) -> str:
    reasons: dict[str, list[str]] = {}
    for name, why in names.items():
        reasons.setdefault(why, []).append(name)
    lines = [f"## {title}", ""] + ([] if names else ["None.", ""])
    for why, found in reasons.items():
        lines += [*_wrapped(f"**{why}**", ""), "", *(f"- {name}" for name in found), ""]
    return "\n".join(lines)


def _group(name: str, attacks: Sequence[Attack]) -> str:
    lines = [f"## {name[0].upper()}{name[1:]}", ""]
    for one in attacks:
        mark = "" if verdict(one) == BLOCKED else f" **{verdict(one)}**"
        places = f"({PLACES[one.probe.place]}; control {PLACES[one.control.place]})"
        lines += _wrapped(f"- {one.name} {places}{mark}", "  ")
    return "\n".join([*lines, ""])


def _wrapped(text: str, indent: str) -> list[str]:
    return wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
