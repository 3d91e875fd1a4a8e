"""Settings of one user that this worker can't read: only the model servers of that user are closed."""

from collections.abc import Callable

import pytest

from shared.crypto import Vault, new_secret_key
from shared.models import Sandbox, UserSettings
from shared.nodes import model_servers
from shared.states import Status
from tests.factories import VAULT, ApiUser, make_user
from tests.worker.network.testbed import NetworkTestbed
from tests.worker.scenarios import row, running, store_settings

SERVER = "192.168.1.20:8000"
ELEMENT = "192.168.1.20 . 8000"
MODELS = {"llm_base_url": f"http://{SERVER}/v1"}
OTHER_KEY = Vault([new_secret_key()])

Spoil = Callable[[UserSettings], None]


def _encrypt_with_another_key(settings: UserSettings) -> None:
    settings.sealed = OTHER_KEY.encrypt(VAULT.decrypt(settings.sealed))


def _damage_ciphertext(settings: UserSettings) -> None:
    settings.sealed = "damaged"


def _damage_document(settings: UserSettings) -> None:
    settings.document = {"llm_base_url": {"no": "text"}}


SPOILS = [_encrypt_with_another_key, _damage_ciphertext, _damage_document]


def change_row(testbed: NetworkTestbed, user: ApiUser, change: Spoil) -> None:
    with testbed.context.database.transaction() as session:
        found = session.get_one(UserSettings, user.id)
        change(found)
        session.add(found)


@pytest.fixture
def other_user(testbed: NetworkTestbed) -> ApiUser:
    """A second user. The settings of both users name a model server that is allowed."""
    return make_user(testbed.context.database, "other")


@pytest.fixture
def sandboxes(testbed: NetworkTestbed, user: ApiUser, other_user: ApiUser) -> tuple[str, str]:
    """A running sandbox of each user."""
    with testbed.context.database.transaction() as session:
        model_servers.allow(session, SERVER)
    for owner in (user, other_user):
        store_settings(testbed.context, owner, **MODELS)
    testbed.isolation.refresh()
    return running(testbed.context, user), running(testbed.context, other_user)


def restart(testbed: NetworkTestbed) -> NetworkTestbed:
    """The node after a restart of its worker, which has read no settings yet."""
    return NetworkTestbed(
        testbed.bare, testbed.engine, testbed.firewall, type(testbed.isolation)(testbed.isolation._context)
    )


@pytest.mark.parametrize("spoil", SPOILS)
def test_rules_of_other_sandboxes_are_written(
    testbed: NetworkTestbed, user: ApiUser, sandboxes: tuple[str, str], spoil: Spoil
) -> None:
    mine, others = (testbed.address(each) for each in sandboxes)
    change_row(testbed, user, spoil)
    node = restart(testbed)
    testbed.firewall.remove()
    node.isolation.refresh()
    assert node.isolation.check() is None
    assert node.rules.sandboxes == {mine, others}
    assert node.rules.models == {f"{others} . {ELEMENT}"}


@pytest.mark.parametrize("spoil", SPOILS)
def test_model_server_is_reached_once_the_settings_can_be_read(
    testbed: NetworkTestbed, user: ApiUser, sandboxes: tuple[str, str], spoil: Spoil
) -> None:
    mine, others = (testbed.address(each) for each in sandboxes)
    kept: list[UserSettings] = []
    change_row(testbed, user, lambda found: kept.append(UserSettings(**found.model_dump())))

    def restore(found: UserSettings) -> None:
        found.document, found.sealed = kept[0].document, kept[0].sealed

    change_row(testbed, user, spoil)
    node = restart(testbed)
    node.isolation.refresh()
    change_row(testbed, user, restore)  # the row's version stays, as if this worker had got the key
    node.isolation.refresh()
    assert node.rules.models == {f"{mine} . {ELEMENT}", f"{others} . {ELEMENT}"}


def test_missing_key_is_reported_as_long_as_it_is_missing(
    testbed: NetworkTestbed, user: ApiUser, sandboxes: tuple[str, str]
) -> None:
    change_row(testbed, user, _encrypt_with_another_key)
    node, vault = restart(testbed), testbed.context.vault
    for _ in range(2):
        vault._missed_at = 0.0
        node.isolation.refresh()
        assert vault.find_problem() is not None
    assert row(testbed.context, Sandbox, sandboxes[0]).status == Status.RUNNING


@pytest.mark.parametrize("spoil", SPOILS)
def test_sandbox_starts_without_its_model_servers(
    testbed: NetworkTestbed, user: ApiUser, sandboxes: tuple[str, str], spoil: Spoil
) -> None:
    change_row(testbed, user, spoil)
    node = restart(testbed)
    node.isolation.refresh()
    address = node.address(running(node.context, user))
    assert address in node.rules.sandboxes
    assert not any(each.startswith(f"{address} ") for each in node.rules.models)
    assert len(sandboxes) == 2
