"""Polls a site until the promise is kept, or until the promised time is over."""

import time
from collections.abc import Callable

import httpx
from sqlmodel import col, or_, select

from shared.models import Sandbox
from shared.states import Status
from tests.drills.chaos import bounds
from tests.drills.chaos.site import BROKEN_IMAGE, INSTALLATION, NODES, Site
from tests.drills.chaos.workload import Workload
from tests.drills.chaos.workload.fleet import ANSWER_SECONDS
from tests.drills.checker import check
from tests.drills.engine_listing import Holdings, list_holdings
from tests.drills.evidence import Evidence
from tests.drills.gathering import gather
from tests.drills.wire_listing import list_statuses

# The promised time from the last fault to agreement.
AGREEMENT_SECONDS = 30.0
POLL_SECONDS = 0.1
Expectation = Callable[[Sandbox], bool]


class Broken(Exception):
    """The promise was not kept.

    Args:
        violations: a message for each violation.
    """

    def __init__(self, violations: list[str]) -> None:
        super().__init__("\n".join(violations))
        self.violations = violations


def await_agreement(site: Site, workload: Workload, is_expected: Expectation, phase: str) -> float:
    """Wait until the store, the engines and the clients' history agree; return the seconds that it took.

    Args:
        phase: the phase of the run, for the messages.

    Raises:
        Broken: they did not agree within the promised time.
    """
    began = time.monotonic()
    while True:
        violations = ["rows are still unfinished"] if _is_busy(site) else _violations(site, workload, is_expected)
        seconds = time.monotonic() - began
        if not violations:
            return seconds
        if seconds > AGREEMENT_SECONDS:
            # Report the violations of both checks: the second one alone might show only a transient state.
            found = [*violations, *_violations(site, workload, is_expected)]
            raise Broken([f"{phase}: {violation}" for violation in dict.fromkeys(found)])
        time.sleep(POLL_SECONDS)


def never(_: Sandbox) -> bool:
    """Expectation no sandbox."""
    return False


def is_doomed(row: Sandbox) -> bool:
    """Whether the sandbox's image can never start."""
    return row.spec_id == BROKEN_IMAGE


def _is_busy(site: Site) -> bool:
    """Whether some sandbox is unfinished: one cheap query that avoids the full check."""
    behind = or_(
        col(Sandbox.due_at).is_not(None),
        col(Sandbox.lease_until).is_not(None),
        col(Sandbox.generation) != col(Sandbox.observed_generation),
        col(Sandbox.status).in_((Status.STARTING, Status.DELETING)),
    )
    with site.service.database.reading() as session:
        return session.exec(select(Sandbox.id).where(behind).limit(1)).first() is not None


def _violations(site: Site, workload: Workload, is_expected: Expectation) -> list[str]:
    """Compare the store with the engines, and only if these agree, with what the API shows."""
    try:
        return check(_read_evidence(site, workload, is_expected)) or bounds.violations(site) or workload.violations()
    except (AssertionError, httpx.HTTPError) as error:
        return [f"the state of the site cannot be read: {error}"]


def _read_evidence(site: Site, workload: Workload, is_expected: Expectation) -> Evidence:
    listed = list_statuses(site.service.url, workload.fleet.users, timeout=ANSWER_SECONDS)
    return gather(
        site.service.database,
        history=workload.fleet.history.entries,
        # An engine whose disk was full lists outdated states, so inspect each container.
        held=sum((_list_held(site, node) for node in NODES), Holdings()),
        installation=INSTALLATION,
        listed=listed,
        is_expected=lambda row: is_doomed(row) or is_expected(row),
        resumed=site.resumed,
        reported=list(workload.conversations.reported),
        deadlines=workload.fleet.deadlines,
    )


def _list_held(site: Site, node: str) -> Holdings:
    """The holdings of a node, without the records of volumes that Docker has miscounted and whose disks are gone."""
    held, disks = list_holdings(site.engines[node], inspect=True), bounds.bounds_of(site, node).images
    kept = [item for item in held.volumes if item.name not in site.miscounted or (disks / f"{item.name}.img").exists()]
    return Holdings(held.containers, tuple(kept))
