"""How fast lists are, beside a bare FastAPI route that returns the same bytes.

    .venv/bin/python -m tests.bench.lists [--database sqlite] [--size 100000] [--runs 5] [--seconds 1] [--json FILE]

A store of its own with so many conversations (`tests.bench.seeding`), one API process as `make run` starts it, and
one that remembers no answers: "anew" is what a list costs whenever something that it shows has changed. Each list is
asked for by users with about a hundred conversations, a different one each time, and by one who has very many. A run
asks one client's requests one after the other, then lets 16 clients ask at once; the bare route does the same right
after. Each figure is the median of the runs, with the least and the greatest.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import httpx

from shared.crypto import Vault
from shared.database import Database
from tests.bench.load import load, make_request, time_requests
from tests.bench.machine import cpu_seconds, describe
from tests.bench.seeding import NEWEST, RARE, Seeded, seed
from tests.bench.site import running_store
from tests.factories import SECRET_KEY, Person
from tests.services.directories import short_directory
from tests.services.forks import Fork
from tests.services.service import free_port
from tests.waiting import eventually

CLIENTS = 16
ONE_BY_ONE = 100
# As many different users ask.
ASKERS = 50
WARM_UP = 60
CONVERSATIONS = "/api/v1/app-conversations/search"
COUNT = "/api/v1/app-conversations/count"
SPRING, SUMMER = NEWEST.replace(month=4).isoformat(), NEWEST.replace(month=7).isoformat()
ORDERS = ("CREATED_AT", "CREATED_AT_DESC", "UPDATED_AT", "UPDATED_AT_DESC", "TITLE", "TITLE_DESC")
FILTERS = {
    "title: frequent": {"title__contains": "PARSER"},
    "title: rare": {"title__contains": RARE},
    "created": {"created_at__gte": SPRING, "created_at__lt": SUMMER},
    "updated": {"updated_at__gte": SPRING, "updated_at__lt": SUMMER},
    "sandbox": {"sandbox_id__eq": "{sandbox}"},
    "with sub-conversations": {"include_sub_conversations": "true"},
}
LISTS: dict[str, tuple[str, dict[str, str]]] = {
    "sandboxes": ("/api/v1/sandboxes/search", {}),
    **{f"by {order}": (CONVERSATIONS, {"sort_order": order}) for order in ORDERS},
    **{name: (CONVERSATIONS, query) for name, query in FILTERS.items()},
    "count": (COUNT, {}),
    "count of title": (COUNT, FILTERS["title: frequent"]),
}


@dataclass(frozen=True)
class Server:
    """A process that answers, and its address."""

    url: str
    pid: int


@dataclass(frozen=True)
class Run:
    """One run's figures; times in milliseconds."""

    p50: float
    p95: float
    rate: float
    server_cpu: float
    client_cpu: float


FIGURES = tuple(Run.__dataclass_fields__)
# How they are called in the table, and how they are written.
HEADS = {"p50 ms": "p50", "p95 ms": "p95", "req/s": "rate", "CPU ms": "server_cpu"}
FORMS = {"p50": ".1f", "p95": ".1f", "rate": ".0f", "server_cpu": ".2f"}


class Servers(NamedTuple):
    """The API, one that makes each list anew, and the bare route."""

    api: Server
    anew: Server
    bare: Server


def main(database: str, size: int, runs: int, seconds: float, only: str, output: Path | None) -> None:
    """Measure and print."""
    with ExitStack() as stack:
        began = time.perf_counter()
        url = stack.enter_context(running_store(database))
        store = Database(url)
        seeded = seed(store, Vault([SECRET_KEY]), size)
        store.close()
        say(
            f"{database}, {size:,} conversations, made in {time.perf_counter() - began:.0f} s; {json.dumps(describe())}"
        )
        servers = stack.enter_context(_servers(url))
        columns = ["list", "who", "items"] + [f"{way} {figure}" for figure in HEADS for way in ("", "anew", "bare")]
        say(f"| {' | '.join(columns)} | part | anew part |")
        say("|---" * (len(columns) + 2) + "|")
        found = [
            _measure(servers, name, who, requests, runs, seconds)
            for name, who, requests in _cases(seeded)
            if only in name
        ]
    if output is not None:
        output.write_text(json.dumps({"machine": describe(), "database": database, "size": size, "lists": found}))


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _cases(seeded: Seeded) -> Iterator[tuple[str, str, list[bytes]]]:
    step = max(len(seeded.average) // ASKERS, 1)
    for name, (path, query) in LISTS.items():
        for who, people in (("average", seeded.average[::step]), ("heavy", [seeded.heavy])):
            yield name, who, [_ask(path, query, person, seeded) for person in people]


def _ask(path: str, query: dict[str, str], person: Person, seeded: Seeded) -> bytes:
    filled = {name: value.format(sandbox=seeded.sandboxes[person.id][0]) for name, value in query.items()}
    paged = filled if path == COUNT else filled | {"limit": "50"}
    return make_request(f"{path}?{urlencode(paged)}", person.key)


def _measure(servers: Servers, name: str, who: str, requests: list[bytes], runs: int, seconds: float) -> dict[str, Any]:
    content = _answer(servers.api, requests[0])
    httpx.put(f"{servers.bare.url}/bytes", content=content).raise_for_status()
    asked = {"": requests, "anew_": requests, "bare_": [make_request("/bytes")]}
    rounds = [
        {way: _run(server, asked[way], seconds) for way, server in zip(asked, servers, strict=True)}
        for _ in range(runs)
    ]
    body = json.loads(content)
    row: dict[str, Any] = {"list": name, "who": who, "items": len(body["items"]) if isinstance(body, dict) else "-"}
    for way in asked:
        row |= {way + field: _spread([getattr(one[way], field) for one in rounds]) for field in FIGURES}
        row |= {f"{way}part": _spread([one[way].rate / one["bare_"].rate for one in rounds])}
    say(_line(row))
    return row


def _answer(api: Server, request: bytes) -> bytes:
    line, _, rest = request.decode().partition("\r\n")
    key = rest.partition("Bearer ")[2].strip()
    answer = httpx.get(api.url + line.split(" ")[1], headers={"Authorization": f"Bearer {key}"}, timeout=60)
    return answer.raise_for_status().content


def _run(server: Server, requests: Sequence[bytes], seconds: float) -> Run:
    turn = [requests[number % len(requests)] for number in range(ONE_BY_ONE)]
    time_requests(server.url, turn[:WARM_UP])
    times = sorted(time_requests(server.url, turn))
    before = cpu_seconds(server.pid)
    loaded = load(server.url, requests, clients=CLIENTS, seconds=seconds)
    cpu = cpu_seconds(server.pid) - before
    each = 1000 / max(loaded.requests, 1)
    return Run(
        p50=statistics.median(times) * 1000,
        p95=times[int(len(times) * 0.95) - 1] * 1000,
        rate=loaded.rate,
        server_cpu=cpu * each,
        client_cpu=loaded.client_cpu_seconds * each,
    )


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}


def _line(row: dict[str, Any]) -> str:
    def show(field: str, form: str) -> str:
        middle, least, greatest = (format(row[field][name], form) for name in ("median", "least", "greatest"))
        return f"{middle} ({least}–{greatest})"

    figures = [show(way + field, FORMS[field]) for field in HEADS.values() for way in ("", "anew_", "bare_")]
    figures += [show("part", ".0%"), show("anew_part", ".0%")]
    return f"| {row['list']} | {row['who']} | {row['items']} | {' | '.join(figures)} |"


@contextmanager
def _servers(database_url: str) -> Iterator[Servers]:
    with ExitStack() as stack:
        api = stack.enter_context(_api(database_url, {}))
        anew = stack.enter_context(_api(database_url, {"AW_LISTS_MEMORY_MB": "0"}))
        directory, port = stack.enter_context(short_directory("bare")), free_port()
        bare = stack.enter_context(_process(["tests.bench.bare", str(port)], {}, directory / "bare.log"))
        servers = Servers(api, anew, Server(f"http://127.0.0.1:{port}", bare))
        for url in (f"{api.url}/ready", f"{anew.url}/ready", f"{servers.bare.url}/bytes"):
            eventually(lambda url=url: _is_there(url), deadline_seconds=120)  # type: ignore[misc]
        yield servers


@contextmanager
def _api(database_url: str, more: dict[str, str]) -> Iterator[Server]:
    with short_directory("lists") as directory:
        port = free_port()
        environment = {
            "AW_VAR_DIR": str(directory),
            "AW_DATABASE_URL": database_url,
            "AW_SECRET_KEYS": SECRET_KEY,
            "AW_PORT": str(port),
            "AW_GATEWAY_HOST": "",
        }
        with _process(["api"], environment | more, directory / "api.log") as pid:
            yield Server(f"http://127.0.0.1:{port}", pid)


@contextmanager
def _process(command: list[str], environment: dict[str, str], log: Path) -> Iterator[int]:
    process = Fork(command, environment, log)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _is_there(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="How fast lists are")
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--size", type=int, default=100_000, help="conversations")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run with 16 clients")
    parser.add_argument("--only", default="", help="lists whose name holds this")
    parser.add_argument("--json", type=Path, dest="output")
    main(**vars(parser.parse_args()))
