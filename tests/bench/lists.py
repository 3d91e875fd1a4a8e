"""Lists, compared with a bare FastAPI route that returns the same bytes.

The benchmark has its own store of conversations (`tests.bench.seeding`), one API process as `make run` starts it, and
one without a response cache: "uncached" is the cost of a list after one of its rows changed. Each list is requested
by users with about a hundred conversations, a different one each time, and by one user with very many. A run sends the
requests of one client in sequence, then those of 16 clients at once. The bare route gets the same load right afterward.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import httpx

from shared.crypto import Vault
from shared.db.database import Database
from tests.bench.figures import Figure
from tests.bench.load import load, make_request, time_requests
from tests.bench.seeding import NEWEST, RARE, Seeded, seed
from tests.bench.site import running_store
from tests.factories import SECRET_KEY, ApiUser
from tests.services import http
from tests.services.directories import short_directory
from tests.services.forks import Fork
from tests.services.ports import Port
from tests.waiting import eventually

CLIENTS = 16
ONE_BY_ONE = 100
# The number of different users.
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
    """A server process and its address."""

    url: str


class Run(NamedTuple):
    """The samples of a run: the seconds of one client's requests, and the requests per second of sixteen."""

    seconds: list[float]
    rate: float


class Servers(NamedTuple):
    """The API, one without a response cache, and the bare route."""

    api: Server
    uncached: Server
    bare: Server


def lists(
    database: str, size: int, runs: int, print_line: Callable[[str], None], *, only: str = "", seconds: float = 1.0
) -> Iterator[Figure]:
    """Measure each list for each kind of user: one client's latency, and the rate of sixteen clients.

    Args:
        size: the number of conversations in the store.
        only: measure only lists whose name contains this.
        seconds: the duration of the load of sixteen clients in each run.
    """
    with ExitStack() as stack:
        url = stack.enter_context(running_store(database))
        store = Database(url)
        seeded = seed(store, Vault([SECRET_KEY]), size)
        store.close()
        print_line(f"{database} with {size:,} conversations:")
        servers = stack.enter_context(_servers(url))
        for name, who, requests in _cases(seeded):
            if only in name:
                yield from _measure(servers, f"{name}, {who} user", requests, runs, seconds)


def _cases(seeded: Seeded) -> Iterator[tuple[str, str, list[bytes]]]:
    step = max(len(seeded.average) // ASKERS, 1)
    for name, (path, query) in LISTS.items():
        for who, users in (("average", seeded.average[::step]), ("heavy", [seeded.heavy])):
            yield name, who, [_send(path, query, user, seeded) for user in users]


def _send(path: str, query: dict[str, str], user: ApiUser, seeded: Seeded) -> bytes:
    filled = {name: value.format(sandbox=seeded.sandboxes[user.id][0]) for name, value in query.items()}
    paged = filled if path == COUNT else filled | {"limit": "50"}
    return make_request(f"{path}?{urlencode(paged)}", user.headers)


def _measure(servers: Servers, name: str, requests: list[bytes], runs: int, seconds: float) -> Iterator[Figure]:
    httpx.put(f"{servers.bare.url}/bytes", content=_answer(servers.api, requests[0])).raise_for_status()
    ways = ((servers.api, requests), (servers.uncached, requests), (servers.bare, [make_request("/bytes")]))
    intervals = [[_run(server, requested, seconds) for server, requested in ways] for _ in range(runs)]
    *measured, bare = zip(*intervals, strict=True)
    for name_of_way, found in zip((name, f"{name}, uncached"), measured, strict=True):
        yield Figure(
            name_of_way,
            [run.seconds for run in found],
            "bare route",
            [run.seconds for run in bare],
            "p95 ≤ 10 ms",
            lambda one: one.at(0.95).median <= 0.01,
        )
        yield Figure(
            f"{name_of_way}, {CLIENTS} clients",
            [[run.rate] for run in found],
            "bare route",
            [[run.rate] for run in bare],
            "≥ 50 % of bare",
            lambda one: one.ratio >= 0.5,
            unit="1/s",
        )


def _answer(api: Server, request: bytes) -> bytes:
    line, _, rest = request.decode().partition("\r\n")
    key = rest.partition("Bearer ")[2].strip()
    response = http.get(api.url + line.split(" ")[1], headers={"Authorization": f"Bearer {key}"}, timeout=60)
    return response.raise_for_status().content


def _run(server: Server, requests: Sequence[bytes], seconds: float) -> Run:
    turn = [requests[number % len(requests)] for number in range(ONE_BY_ONE)]
    time_requests(server.url, turn[:WARM_UP])
    times = time_requests(server.url, turn)
    return Run(times, load(server.url, requests, clients=CLIENTS, seconds=seconds).rate)


@contextmanager
def _servers(database_url: str) -> Iterator[Servers]:
    with ExitStack() as stack:
        api = stack.enter_context(_api(database_url, {}))
        uncached = stack.enter_context(_api(database_url, {"AW_LIST_CACHE_MB": "0"}))
        directory, port = stack.enter_context(short_directory("bare")), stack.enter_context(Port())
        stack.enter_context(_process(["tests.bench.bare", str(port)], {}, directory / "bare.log"))
        servers = Servers(api, uncached, Server(f"http://127.0.0.1:{port}"))
        for url in (f"{api.url}/ready", f"{uncached.url}/ready", f"{servers.bare.url}/bytes"):
            eventually(lambda url=url: _is_there(url), deadline_seconds=120)  # type: ignore[misc]
        yield servers


@contextmanager
def _api(database_url: str, more: dict[str, str]) -> Iterator[Server]:
    with short_directory("lists") as directory, Port() as port:
        environment = {
            "AW_VAR_DIR": str(directory),
            "AW_DATABASE_URL": database_url,
            "AW_SECRET_KEYS": SECRET_KEY,
            "AW_PORT": str(port),
            "AW_CLIENT_PORT": "0",
        }
        with _process(["api"], environment | more, directory / "api.log"):
            yield Server(f"http://127.0.0.1:{port}")


@contextmanager
def _process(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    process = Fork(command, environment, log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _is_there(url: str) -> bool:
    try:
        return http.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False
