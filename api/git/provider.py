"""What every git provider is asked. Each has its own words for it: see the modules beside this one."""

from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from api.errors.upstream import Unreached
from api.git.guarded_transport import check_address
from api.git.http_client import GitClient, Reply
from api.schemas.v1.git import Branch, Repository, SortOrder
from api.schemas.v1.suggested_tasks import SuggestedTask, TaskType
from shared.errors import Forbidden, Invalid
from shared.users.secrets import ProviderCredential

Item = TypeVar("Item")

FOREIGN_PAGE = "page_id is not one that this list gave out"
FURTHEST = 100_000


@dataclass(frozen=True)
class Window:
    """Which part of a list: where it begins, in the provider's own words, and how long it is at most."""

    size: int
    # None: at the beginning.
    start: Any = None

    @property
    def number(self) -> int:
        """The number of the page, from 1."""
        return self.count(1)

    @property
    def text(self) -> str | None:
        """Where it begins, as a text of the provider's.

        Raises:
            Invalid: it is none.
        """
        if self.start is None:
            return None
        if not isinstance(self.start, str) or not (self.start.isascii() and self.start.isprintable()):
            raise Invalid(FOREIGN_PAGE)
        return self.start

    def count(self, first: int) -> int:
        """Where it begins, as a number.

        Raises:
            Invalid: it is none.
        """
        if self.start is None:
            return first
        if type(self.start) is not int or not first <= self.start <= FURTHEST:
            raise Invalid(FOREIGN_PAGE)
        return self.start


@dataclass(frozen=True)
class Found(Generic[Item]):
    """Some items, and where the next ones begin (None: that was all)."""

    items: list[Item]
    following: Any = None


class GitProvider(ABC):
    """One provider, for one user."""

    name: ClassVar[str]
    # Where it is unless the user says otherwise; empty: they must.
    default_host: ClassVar[str] = ""
    has_tasks: ClassVar[bool] = False

    def __init__(self, client: GitClient, credential: ProviderCredential) -> None:
        """Ask with this token, at its host.

        Raises:
            Forbidden: there is no token, or the host can't be asked.
        """
        if not credential.token:
            raise Forbidden(f"no token is stored for {self.name}")
        if not credential.token.isascii():
            raise Forbidden(f"{self.name} does not accept the stored token: store another one")
        host = credential.host or self.default_host
        if not host:
            raise Forbidden(f"no host is stored for {self.name}")
        self._client, self._token = client, credential.token
        address = check_address(host, client.listed)
        self.host, self.folder = f"{address.scheme}://{address.netloc}", address.path
        self.is_default = address.netloc.lower() == self.default_host

    async def installations(self, window: Window) -> Found[str]:
        """Where the user's repositories are kept together."""
        raise Invalid(f"{self.name} has no installations")

    @abstractmethod
    async def repositories(self, window: Window, installation: str | None) -> Found[Repository]:
        """The user's repositories, those that changed last first; `installation`: of one of `installations`."""

    @abstractmethod
    async def search(self, window: Window, query: str, order: SortOrder) -> Found[Repository]:
        """Repositories whose names hold a text."""

    @abstractmethod
    async def branches(self, window: Window, repository: str, query: str) -> Found[Branch]:
        """A repository's branches; `query`: those whose names hold it."""

    async def tasks(self) -> list[SuggestedTask]:
        """What the user might want an agent to do there."""
        return []

    # --- for those that implement it ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def root(self) -> str:
        """Where its interface is."""

    @property
    def authorization(self) -> str:
        """How it wants to see the token."""
        return f"Bearer {self._token}"

    async def get(self, path: str, **params: Any) -> Reply:
        """The answer of a GET; a parameter that is None is left out."""
        known = {name: value for name, value in params.items() if value is not None}
        return await self._ask("GET", f"{self.root}{path}", params=known)

    async def _ask(self, method: str, url: str, **request: Any) -> Reply:
        headers = {"Authorization": self.authorization}
        return await self._client.ask(self.name, method, url, headers=headers, **request)

    def basic(self, credentials: str) -> str:
        """A user and a password, as a header."""
        return f"Basic {b64encode(credentials.encode()).decode()}"

    def read(self, items: Any, make: Callable[[Any], Item]) -> list[Item]:
        """What a provider lists, in our shape.

        Raises:
            Unreached: it is in another shape than the provider's.
        """
        if not isinstance(items, list):
            raise self._misread()
        try:
            return [make(item) for item in items]
        except (KeyError, TypeError, AttributeError, IndexError, ValidationError):
            raise self._misread() from None

    def read_object(self, reply: Reply) -> dict[str, Any]:
        """The document of a success, which is an object.

        Raises:
            Unreached: it is not.
        """
        document = reply.need()
        if not isinstance(document, dict):
            raise self._misread()
        return document

    def _misread(self) -> Unreached:
        return Unreached(f"the answer of {self.name} is not in the form that is known")

    def task(self, kind: TaskType, repository: str, number: int, title: str) -> SuggestedTask | None:
        """A suggestion; None where the start of a conversation would not take it."""
        known = {"git_provider": self.name, "task_type": kind, "repo": repository, "issue_number": number}
        try:
            return SuggestedTask.model_validate(known | {"title": title[:1000]})
        except ValidationError:
            return None


def segments(path: str) -> str:
    """A path from outside, safe in a URL.

    Raises:
        Invalid: it leads elsewhere.
    """
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise Invalid("a name is needed between slashes")
    return "/".join(quote(part, safe="") for part in path.split("/"))


def present(tasks: Iterable[SuggestedTask | None]) -> list[SuggestedTask]:
    """Those that there are."""
    return [task for task in tasks if task is not None]
