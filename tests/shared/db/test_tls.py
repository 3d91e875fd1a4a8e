"""PostgreSQL over TLS, as its URL requests."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from sqlalchemy import text

from shared.db.database import Database
from shared.settings import Settings
from tests.services import processes
from tests.services.authority import Authority
from tests.services.directories import short_directory
from tests.services.interpreters import Interpreters
from tests.services.ports import Port
from tests.services.postgres import USER, running_postgres
from tests.shared.cli.results import COMMAND_LINE, Result, assert_complains

PASSWORD = "hush-of-the-database"


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with short_directory("tls") as directory:
        directory.chmod(0o755)
        yield directory


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority(directory, "own")


@pytest.fixture(scope="module")
def port(authority: Authority) -> Iterator[int]:
    """The port of a server whose certificate is for 127.0.0.1."""
    certificate, key = authority.issue("127.0.0.1")
    user = processes.unprivileged()
    shutil.chown(key, user.pw_uid, user.pw_gid)
    options = ("listen_addresses=127.0.0.1,127.0.0.2", "ssl=on", f"ssl_cert_file={certificate}", f"ssl_key_file={key}")
    with ExitStack() as stack:
        port = stack.enter_context(Port())
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PGPORT", str(port))  # for the wait until the server responds
            stack.enter_context(running_postgres(*options, f"port={port}"))
        yield port


def url(port: int, authority: Authority, host: str = "127.0.0.1") -> str:
    options = f"sslmode=verify-full&sslrootcert={authority.file}"
    return f"postgresql://{USER}:{PASSWORD}@{host}:{port}/postgres?{options}"


def test_connection_is_encrypted_and_its_server_known(port: int, authority: Authority) -> None:
    settings = Settings(database_url=url(port, authority))
    with closing(Database(settings.database)) as database, database.transaction() as session:
        statement = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        assert session.connection().execute(text(statement)).scalar_one()


def test_server_of_another_authority_or_address_is_refused(
    port: int, authority: Authority, directory: Path, interpreters: Interpreters, tmp_path: Path
) -> None:
    other_authority = Authority(directory, "other")
    refused = {
        url(port, other_authority): "certificate verify failed",
        url(port, authority, "127.0.0.2"): 'does not match host name "127.0.0.2"',
    }
    for wrong, words in refused.items():
        environment = {"PATH": os.environ["PATH"], "AW_DATABASE_URL": wrong, "AW_VAR_DIR": str(tmp_path)}
        done = interpreters.run("-c", COMMAND_LINE, "migrate", cwd=tmp_path, env=environment)
        assert_complains(Result(done.returncode, done.stdout, done.stderr), words)
        assert PASSWORD not in done.stderr
