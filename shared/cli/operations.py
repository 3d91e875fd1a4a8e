"""What an operator does to an installation, without the terminal that `shared.cli.app` puts before it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import make_url
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session

from shared.cli.private_files import create_file, replace_file
from shared.crypto import Vault, new_api_key, new_secret_key
from shared.db.database import Database
from shared.db.database_clock import follow_database
from shared.db.migrations import migrate, opened
from shared.errors import Conflict, Invalid
from shared.models import ApiKey, Node, NodeSpecBackoff, Sandbox, SandboxSpec, UnknownContainer, User
from shared.nodes import registry as node_registry
from shared.nodes import spec_backoff
from shared.sandboxes import drain, quarantine, specs
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes.drain import Drained
from shared.settings import Settings
from shared.users import accounts, api_keys
from shared.warm_pool import pool as warm_pool

ADMIN = "admin"
# For a lock: an operator who changes what many requests use waits for them, and has the time.
LOCK_SECONDS = 30.0


class ListedNode(NamedTuple):
    """A node, as operators see it.

    Args:
        used: the number of its sandboxes.
        resting: the specs that it gets no sandboxes of now.
        unknown: the number of containers in quarantine there.
    """

    node: Node
    used: int
    resting: list[NodeSpecBackoff]
    unknown: int


class Administration:
    """One installation, as its configuration names it."""

    def __init__(self, settings: Settings) -> None:
        """Open nothing yet."""
        self._settings = settings

    # --- the installation ---

    def migrate(self) -> None:
        """Make what every other command and process needs; what is there already stays as it is.

        Raises:
            Conflict: there are users, but the key that their secrets were written with is gone.
            Invalid: a configured secret key is malformed.
        """
        settings = self._settings
        settings.var_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (file := _sqlite_file(settings.database)) is not None:
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

    def bootstrap(self) -> bool:
        """Make the first user and keep its key in a file; do nothing if there is a user already.

        Returns:
            Whether it was made now.
        """
        try:
            with self._writing() as session:
                if accounts.list_users(session):
                    return False
                user = accounts.create_user(session, ADMIN)
                key = api_keys.create_key(session, self._vault(), user, "bootstrap")
                session.flush()
                # Before the commit: a user whose key was lost in a crash would keep the next try from making another.
                replace_file(self._settings.admin_key_file, key)
        except IntegrityError:
            return False  # another process was quicker
        return True

    # --- users and keys ---

    def create_user(self, name: str, *, exist_ok: bool = False) -> bool:
        """Add a user.

        Returns:
            Whether it was made now.

        Raises:
            Conflict: the name is taken, and that is not all right.
            Invalid: it can't be a name.
        """
        _check_name(name)
        with self._writing() as session:
            if exist_ok and accounts.find_user(session, name) is not None:
                return False
            accounts.create_user(session, name)
        return True

    def list_users(self) -> list[User]:
        """Every user, oldest first."""
        with self._reading() as session:
            return accounts.list_users(session)

    def create_key(self, user: str, name: str, expires_at: datetime | None) -> str:
        """A new key for the user of that name.

        Raises:
            NotFound: there is no such user.
            Invalid: it can't be a name.
        """
        _check_name(name)
        with self._writing() as session:
            return api_keys.create_key(session, self._vault(), accounts.get_user(session, user), name, expires_at)

    def list_keys(self, user: str) -> list[ApiKey]:
        """The keys of the user of that name, oldest first.

        Raises:
            NotFound: there is no such user.
        """
        with self._reading() as session:
            return api_keys.list_keys(session, accounts.get_user(session, user))

    def revoke_key(self, prefix: str) -> int:
        """Revoke the keys that begin so.

        Returns:
            How many were revoked now.

        Raises:
            Invalid: no key in force begins so.
        """
        with self._writing() as session:
            revoked = api_keys.revoke_key(session, prefix)
        if revoked == 0:
            raise Invalid(f"no key in force begins with {prefix[: api_keys.PREFIX_LENGTH]!r}")
        return revoked

    # --- specs and nodes ---

    def list_specs(self) -> list[SandboxSpec]:
        """Every spec, the default first."""
        with self._reading() as session:
            return specs.list_specs(session)

    def add_spec(self, image: str, *, default: bool, **columns: Any) -> None:
        """Add a spec, as the default one or the last.

        Raises:
            Conflict: there is one for that image.
            Invalid: it can't be an image's reference.
        """
        if not image.isprintable() or not 1 <= len(image) <= 256 or " " in image:
            raise Invalid("an image's reference has 1 to 256 printable characters and no spaces")
        with self._writing() as session:
            specs.add_spec(session, SandboxSpec(id=image, position=0, **columns), default=default)

    def change_spec(
        self, image: str, columns: Mapping[str, Any], durations: Mapping[str, int | None], *, delete: bool
    ) -> None:
        """Change a spec; as to deadlines, its sandboxes follow.

        Args:
            columns: others to change, by their names.
            durations: deadlines to change, in seconds by their columns' names; None: never.
            delete: even if sandboxes are deleted by it at once.

        Raises:
            NotFound: there is no such spec.
            Conflict: sandboxes would be deleted at once; nothing was changed.
        """
        with self._writing() as session:
            doomed = specs.set_deadlines(session, image, durations) if durations else 0
            if doomed and not delete:
                raise Conflict(f"{doomed} sandbox(es) are past that time and would be deleted at once: say --yes to it")
            specs.change(session, image, columns)

    def count_warm_sandboxes(self) -> dict[str, tuple[int, int]]:
        """How many members of each spec's warm pool are ready, and how many boot; specs without any are left out."""
        with self._reading() as session:
            return warm_pool.count(session)

    def remove_spec(self, image: str) -> None:
        """Remove a spec.

        Raises:
            NotFound: there is none.
            Conflict: sandboxes refer to it.
        """
        with self._writing() as session:
            specs.remove_spec(session, image)

    def list_nodes(self) -> list[ListedNode]:
        """Every node by name; a forgotten one is left out when it has no sandboxes."""
        with self._reading() as session:
            used, resting, unknown = (
                node_registry.used_slots(session),
                spec_backoff.resting(session),
                quarantine.count(session),
            )
            return [
                ListedNode(
                    node,
                    used.get(node.id, 0),
                    [row for row in resting if row.node_id == node.id],
                    unknown.get(node.id, 0),
                )
                for node in node_registry.list_nodes(session)
                if node.forgotten_at is None or node.id in used
            ]

    def list_unknown(self, node: str | None = None) -> Sequence[UnknownContainer]:
        """What is in quarantine, at that node or at all of them."""
        with self._reading() as session:
            return quarantine.find(session, node)

    def approve_removal(self, node: str, names: Collection[str]) -> None:
        """Let a node's worker remove what is in quarantine there.

        Raises:
            NotFound: one of these is not.
        """
        with self._writing() as session:
            quarantine.approve(session, node, names)

    def cordon_node(self, name: str) -> None:
        """Place nothing new on a node.

        Raises:
            NotFound: there is none of that name.
        """
        with self._writing() as session:
            node_registry.cordon(session, name)

    def uncordon_node(self, name: str) -> None:
        """Let a node take sandboxes again, whatever its engine has refused before.

        Raises:
            NotFound: there is none of that name.
        """
        with self._writing() as session:
            node_registry.uncordon(session, name)

    def foresee_forgetting(self, name: str) -> list[tuple[Sandbox, str]]:
        """The sandboxes of a lost node by id, with their owners' names.

        Raises:
            NotFound: there is none of that name.
            Conflict: it is not lost.
        """
        with self._reading() as session:
            node_registry.require_lost(session, name)
            return _with_owners(session, sandbox_queries.list_of_node(session, name))

    def forget_node(self, name: str) -> None:
        """Give a lost node up.

        Raises:
            NotFound: there is none of that name.
            Conflict: it is not lost.
        """
        with self._writing() as session:
            node_registry.forget(session, name)

    def foresee_draining(self, name: str) -> list[tuple[Sandbox, str]]:
        """The sandboxes that draining a node would stop, by id, with their owners' names.

        Raises:
            NotFound: there is none of that name.
        """
        with self._reading() as session:
            node_registry.get(session, name)
            return _with_owners(session, drain.concerned(session, name))

    def drain_node(self, name: str) -> None:
        """Cordon a node, and wish each of its sandboxes STOPPED that is not.

        Raises:
            NotFound: there is none of that name.
        """
        self.cordon_node(name)
        for sandbox, _ in self.foresee_draining(name):
            with self._writing() as session:
                drain.stop(session, name, sandbox.id)

    def check_drained(self, name: str) -> Drained:
        """How far a node is that is drained."""
        with self._reading() as session:
            return drain.drain_progress(session, name)

    # --- parts ---

    def _require_secret_key(self, session: Session) -> None:
        settings = self._settings
        if not settings.secret_keys.get_secret_value() and not settings.secret_key_file.exists():
            if accounts.list_users(session):
                raise Conflict(
                    f"{settings.secret_key_file} is gone, and nothing the users have stored can be read without it: "
                    "put it back, or name the key in AW_SECRET_KEYS"
                )
            create_file(settings.secret_key_file, new_secret_key())
        self._vault()

    def _vault(self) -> Vault:
        try:
            return Vault(self._settings.vault_keys)
        except ValueError as error:
            raise Invalid(f"AW_SECRET_KEYS, or {self._settings.secret_key_file}: {error}") from None

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        with self._database() as database, database.transaction() as session:
            yield session

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with self._database() as database, database.reading() as session:
            yield session

    @contextmanager
    def _database(self) -> Iterator[Database]:
        if (file := _sqlite_file(self._settings.database)) is not None and not file.exists():
            raise Invalid(f"there is no database at {file} yet: run `agent-workspace migrate`")
        database = Database(self._settings.database, pool_size=1, lock_seconds=LOCK_SECONDS)
        try:
            follow_database(database)
            yield database
        finally:
            database.close()


def _sqlite_file(database_url: str) -> Path | None:
    url = make_url(database_url)
    return Path(url.database) if url.drivername.startswith("sqlite") and url.database else None


def _with_owners(session: Session, found: Sequence[Sandbox]) -> list[tuple[Sandbox, str]]:
    names = {user.id: user.name for user in accounts.list_users(session)}
    return [(sandbox, names.get(sandbox.owner_id or "", "")) for sandbox in found]


def _check_name(name: str) -> None:
    if not 1 <= len(name) <= 100 or not name.isprintable() or name != name.strip():
        raise Invalid("a name has 1 to 100 printable characters, and no space around them")
