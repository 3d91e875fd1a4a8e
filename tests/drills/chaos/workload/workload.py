"""The sixteen clients of a chaos run, for three users, with shared sandboxes."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Collection

from shared.users import settings_store
from tests.drills.chaos.site import Site
from tests.drills.chaos.workload.changes import ChangeFollower
from tests.drills.chaos.workload.conversations import Conversations
from tests.drills.chaos.workload.fleet import Fleet
from tests.drills.chaos.workload.sandboxes import Sandboxes
from tests.drills.chaos.workload.settings import FIRST_NUMBER, UserSettings
from tests.drills.requests import Outcome
from tests.factories import ApiUser, make_user

USERS = 3
CLIENTS = 16
MAX_SANDBOXES = 18
THINK_SECONDS = 0.3
# The kinds of requests that must succeed at least once in a run.
ACTS = ("start", "pause", "stop", "resume", "delete", "converse", "cancel", "forget")
COUNTED_ACTS = ("wake", "message", "settings", "report", "list", "pool claim")
NO_WRITES = ("wake", "list", "pool claim")

# The factor on the weight of a kind that has not succeeded yet: otherwise a run often needs another round for one kind.
MISSING_WEIGHT = 10.0

Act = Callable[[], None]


def choose(rng: random.Random, acts: dict[str, tuple[float, Act]], missing: Collection[str]) -> Act:
    """Choose a kind of request by weight, with a higher weight for those that have not succeeded yet.

    Args:
        acts: the weight and the function of each kind, by name.
        missing: the kinds that never succeeded.
    """
    weights = [weight * MISSING_WEIGHT if name in missing else weight for name, (weight, _) in acts.items()]
    return rng.choices([act for _, act in acts.values()], weights)[0]


class Workload:
    """Clients that send requests until they are stopped, and share their state in one `Fleet`."""

    def __init__(self, site: Site, seed: int) -> None:
        self.fleet = Fleet(site, [_make_owner(site, f"user-{number}") for number in range(USERS)])
        self.sandboxes, self.conversations = Sandboxes(self.fleet), Conversations(self.fleet)
        self.settings = UserSettings(self.fleet)
        self.followers = [ChangeFollower(self.fleet, user) for user in self.fleet.users]
        self._rngs = [random.Random(f"{seed} client {number}") for number in range(CLIENTS)]
        self._missing: frozenset[str] = frozenset()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        for follower in self.followers:
            follower.start()

    @property
    def counts(self) -> Counter[str]:
        """The number of requests by kind and outcome."""
        return Counter(f"{entry.verb} {entry.outcome}" for entry in self.fleet.history.entries) + self.fleet.counts

    @property
    def acknowledged(self) -> int:
        """The number of writes with a success response."""
        reads = {f"{act} {Outcome.OK}" for act in NO_WRITES}
        return sum(
            count for name, count in self.counts.items() if name.endswith(f" {Outcome.OK}") and name not in reads
        )

    @property
    def missing(self) -> list[str]:
        """The kinds of requests of which none succeeded, so that the run tests nothing about them."""
        return [act for act in (*ACTS, *COUNTED_ACTS) if not self.counts[f"{act} {Outcome.OK}"]]

    def start(self) -> None:
        """Begin a round."""
        self._missing = frozenset(self.missing)
        self._stopped.clear()
        self._threads = [threading.Thread(target=self._work, args=(rng,), daemon=True) for rng in self._rngs]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the round, with every request answered or abandoned.

        Raises:
            BaseException: a client got a response that the service must never send.
        """
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self.fleet.history.settle()
        if self._failures:
            raise self._failures[0]

    def close(self) -> None:
        """Stop the followers of the change feed."""
        for follower in self.followers:
            follower.stop()

    def repair(self) -> None:
        """While there are no faults, pause all sandboxes, resume half of them, and post to each conversation.

        All are paused, because a quota may refuse a resume. Without a new request, a sandbox keeps the failure of its
        last fault, such as that of a container that was started from outside.
        """
        self.settings.settle()
        self.sandboxes.adopt(self.fleet.listed())
        for number, (sandbox_id, user) in enumerate(sorted(self.fleet.alive.items())):
            client = self.fleet.client(user)
            self.sandboxes.send(client.pause, sandbox_id)
            if number % 2:
                self.sandboxes.send(client.resume, sandbox_id)
        self.conversations.post_once_to_all()
        self.fleet.history.settle()

    def delete_all(self) -> None:
        """Delete every sandbox, in whatever state it is."""
        for sandbox_id, (user, _) in sorted(self.fleet.listed().items()):
            self.sandboxes.delete(self.fleet.client(user), sandbox_id)
        self.fleet.history.settle()

    def violations(self) -> list[str]:
        """The contradictions between the API's state and its responses. Call it only while there are no faults."""
        listed = self.fleet.listed()
        told = [wrong for follower in self.followers for wrong in follower.violations(listed)]
        return [*self.sandboxes.violations(), *self.conversations.violations(), *self.settings.violations(), *told]

    def _work(self, rng: random.Random) -> None:
        try:
            while not self._stopped.wait(rng.uniform(0, THINK_SECONDS)):
                self._send(rng)
        except BaseException as error:  # noqa: BLE001 - raised by `stop`
            self._failures.append(error)

    def _send(self, rng: random.Random) -> None:
        alive = sorted(self.fleet.alive.items(), key=lambda item: item[0])
        few = len(alive) < MAX_SANDBOXES
        if not alive or (few and rng.random() < 0.12):
            self.sandboxes.start(rng)
            return
        if self._missing:
            self._missing = frozenset(self.missing)
        choose(rng, self._acts(rng, *rng.choice(alive), few=few), self._missing)()

    def _acts(self, rng: random.Random, sandbox_id: str, user: ApiUser, *, few: bool) -> dict[str, tuple[float, Act]]:
        """The kinds of requests that a client may send now, each with its weight."""
        client, sandboxes, conversations = self.fleet.client(user), self.sandboxes, self.conversations
        return {
            "pause": (20, lambda: sandboxes.send(client.pause, sandbox_id)),
            "resume": (22, lambda: sandboxes.send(client.resume, sandbox_id)),
            "stop": (6, lambda: sandboxes.send(client.stop, sandbox_id)),
            "delete": (5 if few else 12, lambda: sandboxes.delete(client, sandbox_id)),
            "wake": (6, lambda: sandboxes.wake(client, sandbox_id)),
            "list": (12, lambda: sandboxes.list_own(client)),
            "converse": (6, lambda: conversations.start(rng)),
            "cancel": (2, lambda: conversations.cancel(rng)),
            "forget": (1, lambda: conversations.delete(rng)),
            "message": (6, lambda: conversations.post_message(rng)),
            "report": (12, lambda: conversations.report(user, sandbox_id)),
            "settings": (6, lambda: self.settings.store(user)),
        }


def _make_owner(site: Site, name: str) -> ApiUser:
    user = make_user(site.service.database, name)
    with site.service.database.transaction() as session:
        change = {"llm_model": "openai/none", "llm_api_key": "unused", "max_iterations": FIRST_NUMBER}
        settings_store.change(session, site.service.vault, user.id, change)
    return user
