"""Operations on users and their API keys."""

from datetime import datetime

from shared.changes import recorder as change_recorder
from shared.changes.recorder import Usage
from shared.cli.local.installation import Installation
from shared.errors import Invalid
from shared.models import ApiKey, User
from shared.users import accounts, api_keys, roles


class UserOperations(Installation):
    """Operations on the users of an installation."""

    def create_user(self, name: str, *, exist_ok: bool = False) -> bool:
        """Create a user, an operator if it is the first one.

        Returns:
            Whether this call created it.

        Raises:
            Conflict: the name is taken, and `exist_ok` is false.
            Invalid: the name is malformed.
        """
        _check_name(name)
        with self.writing() as session:
            if exist_ok and accounts.find_user(session, name) is not None:
                return False
            accounts.create_first_or_next(session, name)
        return True

    def list_users(self) -> list[tuple[User, Usage]]:
        """Every user, oldest first, and what is stored for them."""
        with self.reading() as session:
            return [(user, change_recorder.read_usage(session, user.id)) for user in accounts.list_users(session)]

    def grant_admin(self, name: str) -> bool:
        """Make the user of that name an operator.

        Returns:
            Whether the user was none before.

        Raises:
            NotFound: there is no such user.
        """
        with self.writing() as session:
            return roles.grant_admin(session, name)

    def take_admin(self, name: str) -> bool:
        """Make the user of that name a user like the others.

        Returns:
            Whether the user was an operator before.

        Raises:
            NotFound: there is no such user.
            Conflict: the user is the last operator.
        """
        with self.writing() as session:
            return roles.take_admin(session, name)

    def create_key(self, user: str, name: str, expires_at: datetime | None) -> str:
        """Create a key for the user of that name.

        Raises:
            NotFound: there is no such user.
            Invalid: the key's name is malformed.
        """
        _check_name(name)
        with self.writing() as session:
            return api_keys.create_key(session, self.vault(), accounts.get_user(session, user), name, expires_at)

    def list_keys(self, user: str) -> list[ApiKey]:
        """The keys of the user of that name, oldest first.

        Raises:
            NotFound: there is no such user.
        """
        with self.reading() as session:
            return api_keys.list_keys(session, accounts.get_user(session, user))

    def revoke_key(self, prefix: str) -> int:
        """Revoke the keys with that prefix.

        Returns:
            The number of keys revoked by this call.

        Raises:
            Invalid: no key in force has that prefix.
        """
        with self.writing() as session:
            revoked = api_keys.revoke_key(session, prefix)
        if revoked == 0:
            raise Invalid(f"no key in force begins with {prefix[: api_keys.PREFIX_LENGTH]!r}")
        return revoked


def _check_name(name: str) -> None:
    if not 1 <= len(name) <= 100 or not name.isprintable() or name != name.strip():
        raise Invalid(f"invalid name {name[:100]!r}: use 1 to 100 printable characters, without spaces around them")
