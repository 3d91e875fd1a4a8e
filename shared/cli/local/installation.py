"""One installation: its database, secret keys and first user. The commands of `shared.cli.app` use this class."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session

from shared.backup import keys
from shared.crypto import Vault, new_api_key, new_secret_key
from shared.db import unfinished_restore
from shared.db.database import Database
from shared.db.database_clock import sync_clock
from shared.db.file_owner import acting_as_caller, acting_as_owner
from shared.db.migrations import Schema, connected, migrate, opened, read_schema
from shared.db.waiting import await_database
from shared.errors import Conflict, Invalid
from shared.models import Role, SandboxSpec
from shared.nodes import registry as node_registry
from shared.private_files import create_file, replace_file, share_with_service
from shared.reasons import more
from shared.sandboxes import specs
from shared.settings import Settings
from shared.users import accounts, api_keys

ADMIN = "admin"
# The lock timeout: a change of shared rows waits for many requests, and an operator can wait longer than a client.
LOCK_SECONDS = 30.0


class LocalInstallation:
    """The installation that the settings name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def migrate(self, wait_seconds: float = 0) -> None:
        """Create or update the database, the keys' files and the first spec; keep what exists.

        Args:
            wait_seconds: max time to wait for a database that does not respond yet; 0: no wait.

        Raises:
            Unavailable: the database did not respond within that time.
            Conflict: there are users, but the key that encrypted their secrets is missing; or a restore of the
                database is not finished.
            Invalid: a configured secret key is malformed.
        """
        url = self._settings.database
        if (file := _sqlite_file(url)) is None or file.exists():
            await_database(self._require_whole, url, wait_seconds)
        self.prepare()

    def prepare(self) -> None:
        """Do what `migrate` does, but without waiting, and even if a restore of the database is not finished.

        Raises:
            Conflict: see `migrate`.
            Invalid: see `migrate`.
        """
        settings = self._settings
        settings.var_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (file := _sqlite_file(settings.database)) is not None:
            with acting_as_owner(settings.database):
                file.touch(mode=0o600)
        migrate(settings.database)
        with opened(settings.database) as connection, Session(connection) as session:
            self._require_secret_key(session)
            node_registry.installation_id(session)
            if not specs.list_specs(session):
                specs.add_spec(session, SandboxSpec(id=settings.default_sandbox_image, position=0))
            session.commit()
        if not settings.metrics_key_file.exists():
            create_file(settings.metrics_key_file, new_api_key())
        for file in (settings.secret_key_file, settings.metrics_key_file):
            share_with_service(file)

    def schema(self) -> Schema:
        """The schema that the database has, and the one that this version needs.

        Raises:
            Invalid: there is no database.
        """
        with self.reading() as session:
            return read_schema(session.connection())

    def bootstrap(self) -> bool:
        """Create the first user, an operator, and store its key in a file; do nothing if a user exists.

        Returns:
            Whether this call created it.
        """
        try:
            with self.writing() as session:
                if accounts.has_users(session):
                    return False
                user = accounts.create_user(session, ADMIN, Role.ADMIN)
                key = api_keys.create_key(session, self.vault(), user, "bootstrap")
                session.flush()
                # Before the commit: a crash must not leave a user without a key, which would stop the next attempt.
                with acting_as_caller():
                    replace_file(self._settings.admin_key_file, key)
        except IntegrityError:
            return False  # another process was faster
        return True

    def vault(self) -> Vault:
        """The vault of the configured secret keys.

        Raises:
            Invalid: there is none, one is malformed, or their file cannot be read.
        """
        return keys.read_vault(self._settings)

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session that commits at the end of the block.

        Raises:
            Invalid: there is no database.
        """
        with self._database() as database, database.transaction() as session:
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session for reads.

        Raises:
            Invalid: there is no database.
        """
        with self._database() as database, database.reading() as session:
            yield session

    def _require_whole(self) -> None:
        with connected(self._settings.database) as connection:
            unfinished_restore.require_none(connection)

    def _require_secret_key(self, session: Session) -> None:
        settings = self._settings
        if not settings.secret_keys.get_secret_value() and not settings.secret_key_file.exists():
            if accounts.list_users(session):
                raise Conflict(
                    f"{settings.secret_key_file} is missing, and the users' secrets cannot be decrypted without it: "
                    f"restore the file, or set AW_SECRET_KEYS to the key {more('the-secret-key-is-gone')}"
                )
            with acting_as_caller():
                create_file(settings.secret_key_file, new_secret_key())
        with acting_as_caller():
            self.vault()

    @contextmanager
    def _database(self) -> Iterator[Database]:
        if (file := _sqlite_file(self._settings.database)) is not None and not file.exists():
            hint = more("there-is-no-database-or-its-tables-are-missing-or-old")
            raise Invalid(f"no database at {file}: run `agent-workspace db migrate` {hint}")
        with acting_as_owner(self._settings.database), closing(self._open()) as database:
            sync_clock(database)
            yield database

    def _open(self) -> Database:
        return Database(self._settings.database, pool_size=1, lock_seconds=LOCK_SECONDS)


def _sqlite_file(database_url: str) -> Path | None:
    url = make_url(database_url)
    return Path(url.database) if url.drivername.startswith("sqlite") and url.database else None
