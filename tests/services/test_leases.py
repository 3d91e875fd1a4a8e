"""A process holds its lease until it ends, even if it is killed."""

from tests.services import leases, programs

HOLDER = "from tests.services import leases; print(leases.own_lease(), flush=True); input()"


def test_lease_is_held_until_its_process_ends() -> None:
    with programs.running(HOLDER) as holder:
        name = holder.read()
        assert not leases.has_ended(name)
        holder.kill()
        assert leases.has_ended(name)


def test_lease_that_is_not_known_here_has_not_ended() -> None:
    assert not leases.has_ended("unknown")
