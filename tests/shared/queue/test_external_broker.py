"""An external broker: a user with the documented rights, over TLS with a verified certificate."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from kombu.exceptions import OperationalError

from shared.changes.notifier import CHANNEL, server_url
from shared.cli.checks import installation_checks
from shared.queue.broker import make_app
from shared.settings import Settings
from tests.docs.documents import read_page
from tests.fakes.waiting_worker import QUEUE, TASK, waiting_worker
from tests.services.authority import Authority, speaking_tls
from tests.services.forked_program import ForkedProgram
from tests.services.valkey import Valkey
from tests.waiting import eventually

PASSWORD = "hush-of-the-broker"
USER = "agent-workspace"
# The key that Kombu writes by a script, about a second after a worker begins to listen for commands.
DEADLINES = "aw:_kombu.binding_deadlines"


@dataclass(frozen=True)
class Broker:
    """The broker behind TLS."""

    port: int
    authority: Authority
    other_authority: Authority

    def url(self, options: str) -> str:
        return f"rediss://{USER}:{PASSWORD}@127.0.0.1:{self.port}/0{options}"

    @property
    def trusted(self) -> str:
        """A URL with the right authority."""
        return self.url(f"?ssl_ca_certs={self.authority.file}")

    @property
    def untrusted(self) -> str:
        """A URL with another authority."""
        return self.url(f"?ssl_ca_certs={self.other_authority.file}")


def documented_command() -> list[str]:
    """The command that creates the user, from the documentation."""
    page = read_page("operate/postgres-and-redis.md").replace("\\\n", "")
    [line] = re.findall(r"^redis-cli (ACL SETUSER .+)$", page, re.MULTILINE)
    return shlex.split(line)


@pytest.fixture
def broker(valkey: Valkey, tmp_path: Path) -> Iterator[Broker]:
    with valkey.client() as admin:
        admin.execute_command(*(word.replace("PASSWORD", PASSWORD) for word in documented_command()))
        admin.execute_command("ACL", "LOG", "RESET")
        authority, other_authority = Authority(tmp_path, "own"), Authority(tmp_path, "other")
        with speaking_tls(valkey.socket, *authority.issue("127.0.0.1")) as port:
            yield Broker(port, authority, other_authority)
        admin.execute_command("ACL", "DELUSER", USER)


FORBIDDEN = [
    "CONFIG GET dir",
    "ACL LIST",
    "MODULE LIST",
    "SCRIPT FLUSH",
    "FUNCTION LIST",
    "FLUSHALL",
    "KEYS *",
    "MONITOR",
    "REPLICAOF NO ONE",
    "SAVE",
    "CLIENT LIST",
    "GET other",
    "SET other 1",
]


@pytest.mark.parametrize("command", FORBIDDEN)
def test_documented_user_administers_nothing(broker: Broker, command: str) -> None:
    with redis.Redis.from_url(server_url(Settings(redis_url=broker.trusted).broker)) as client:
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command(*command.split())
        assert client.set("aw:own", 1)


def test_jobs_and_notifications_pass_with_the_documented_rights(
    broker: Broker, valkey: Valkey, waiting_workers: ForkedProgram, tmp_path: Path
) -> None:
    with waiting_worker(waiting_workers, broker.trusted, tmp_path):
        (tmp_path / "go").touch()
        with make_app(Settings(redis_url=broker.trusted)) as app:
            app.send_task(TASK, args=["1"], queue=QUEUE)
            eventually((tmp_path / "ended-1").exists, deadline_seconds=60)
        with valkey.client() as admin:
            eventually(lambda: admin.exists(DEADLINES) or admin.acl_log(), deadline_seconds=60)
        with redis.Redis.from_url(server_url(Settings(redis_url=broker.trusted).broker)) as client:
            assert client.publish(CHANNEL, "1") == 0
    with valkey.client() as admin:
        assert admin.acl_log() == [], "nothing was refused"
    assert PASSWORD not in (tmp_path / "log").read_text()


def test_doctor_examines_the_broker_with_the_documented_rights(broker: Broker) -> None:
    finding = installation_checks._check_broker(Settings(redis_url=broker.trusted))
    assert finding.problem is None
    assert installation_checks.major(finding.found.removeprefix("version ")) >= installation_checks.OLDEST_REDIS


@pytest.mark.parametrize("options", ["other authority", "none", "host"])
def test_broker_with_a_wrong_certificate_is_refused(broker: Broker, valkey: Valkey, options: str) -> None:
    with speaking_tls(valkey.socket, *broker.authority.issue("127.0.0.99")) as port_of_another:
        url = {
            "other authority": broker.untrusted,
            "none": broker.url(""),
            "host": Broker(port_of_another, broker.authority, broker.other_authority).trusted,
        }[options]
        settings = Settings(redis_url=url)
        with make_app(settings) as app, pytest.raises(OperationalError) as refused, app.connection() as connection:
            connection.ensure_connection(max_retries=1)
        assert "certificate verify failed" in str(refused.value)
        assert PASSWORD not in str(refused.value)
        with (
            redis.Redis.from_url(server_url(settings.broker)) as client,
            pytest.raises(redis.ConnectionError, match="certificate verify failed"),
        ):
            client.ping()
