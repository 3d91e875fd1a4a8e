"""Was the promise kept, in spite of it all? Asked until it was, or until the time that is promised is over."""

import time
from collections.abc import Callable

import httpx
from sqlmodel import col, or_, select

from shared.models import Sandbox
from shared.states import Status
from tests.drills.chaos import bounds
from tests.drills.chaos.site import BROKEN_IMAGE, INSTALLATION, Site
from tests.drills.chaos.workload import Workload
from tests.drills.chaos.workload.fleet import ANSWER_SECONDS
from tests.drills.checker import check
from tests.drills.engine_listing import Holdings, list_holdings
from tests.drills.evidence import Evidence
from tests.drills.gathering import gather
from tests.drills.wire_listing import list_statuses

# From the last fault to agreement: the promise.
CONVERGENCE_SECONDS = 30.0
LOOK_SECONDS = 0.1
Excuse = Callable[[Sandbox], bool]


class Broken(Exception):
    """The promise was not kept; the violations, in words."""

    def __init__(self, violations: list[str]) -> None:
        super().__init__("\n".join(violations))
        self.violations = violations


def await_agreement(site: Site, workload: Workload, excused: Excuse, phase: str) -> float:
    """Seconds until store, engines and history agree.

    Args:
        phase: what is asked, for the violations.

    Raises:
        Broken: they did not within the time that is promised.
    """
    began = time.monotonic()
    while True:
        violations = ["rows want a hand"] if _is_busy(site) else _violations(site, workload, excused)
        seconds = time.monotonic() - began
        if not violations:
            return seconds
        if seconds > CONVERGENCE_SECONDS:
            # What a second look finds may be of that moment only.
            found = [*violations, *_violations(site, workload, excused)]
            raise Broken([f"{phase}: {violation}" for violation in dict.fromkeys(found)])
        time.sleep(LOOK_SECONDS)


def never(_: Sandbox) -> bool:
    """No excuse at all."""
    return False


def is_doomed(row: Sandbox) -> bool:
    """Whether it can't start, whatever anybody does."""
    return row.spec_id == BROKEN_IMAGE


def _is_busy(site: Site) -> bool:
    """A cheap look, before everything is read."""
    behind = or_(
        col(Sandbox.due_at).is_not(None),
        col(Sandbox.lease_until).is_not(None),
        col(Sandbox.generation) != col(Sandbox.observed_generation),
        col(Sandbox.status).in_((Status.STARTING, Status.DELETING)),
    )
    with site.service.database.reading() as session:
        return session.exec(select(Sandbox.id).where(behind).limit(1)).first() is not None


def _violations(site: Site, workload: Workload, excused: Excuse) -> list[str]:
    """By the store and the engines first; only where these agree, by what the API shows."""
    try:
        return check(_look(site, workload, excused)) or bounds.violations(site) or workload.violations()
    except (AssertionError, httpx.HTTPError) as error:
        return [f"the state of the site cannot be read: {error}"]


def _look(site: Site, workload: Workload, excused: Excuse) -> Evidence:
    listed = list_statuses(site.service.url, workload.fleet.people, timeout=ANSWER_SECONDS)
    return gather(
        site.service.database,
        history=workload.fleet.history.entries,
        # An engine whose disk was full lists states as they were before.
        held=sum((list_holdings(engine, inspect=True) for engine in site.engines.values()), Holdings()),
        installation=INSTALLATION,
        listed=listed,
        excused=lambda row: is_doomed(row) or excused(row),
        resumed=site.resumed,
        reported=list(workload.conversations.reported),
        deadlines=workload.fleet.deadlines,
    )
