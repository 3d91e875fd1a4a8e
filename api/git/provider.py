"""The interface to a git provider. Each provider has a module beside this one."""

from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import quote

import structlog
from pydantic import ValidationError

from api.errors.upstream import UpstreamUnreachable
from api.git.guarded_transport import check_address
from api.git.http_client import GitClient, Reply
from api.schemas.v1.git import Branch, Repository, SortOrder
from api.schemas.v1.suggested_tasks import SuggestedTask, TaskType
from shared.errors import Forbidden, Invalid
from shared.sql import page_ids
from shared.sql.page_ids import FOREIGN_PAGE
from shared.users.secrets import ProviderCredential
from shared.users.settings import DEFAULT_HOSTS

log = structlog.get_logger()

Item = TypeVar("Item")

MAX_START = 100_000
# A page has 100 items at most, but a host may send more than it was asked for. All of 100,000 would be converted on the
# event loop.
MAX_ITEMS = 1_000


@dataclass(frozen=True)
class Window:
    """A part of a list: a position in the provider's own form, and a maximum size."""

    size: int
    # None: the beginning of the list.
    start: Any = None

    @property
    def number(self) -> int:
        """The page number, from 1."""
        return self.count(1)

    @property
    def cursor(self) -> str | None:
        """The provider's cursor, a text; None at the beginning.

        Raises:
            Invalid: the position is not a text.
        """
        if self.start is None:
            return None
        if not isinstance(self.start, str) or not (self.start.isascii() and self.start.isprintable()):
            raise Invalid(FOREIGN_PAGE)
        return self.start

    def count(self, first: int) -> int:
        """Return the position as a number; `first` at the beginning.

        Raises:
            Invalid: the position is not a number, or out of range.
        """
        if self.start is None:
            return first
        if type(self.start) is not int or not first <= self.start <= MAX_START:
            raise Invalid(FOREIGN_PAGE)
        return self.start


@dataclass(frozen=True)
class Found(Generic[Item]):
    """Items of a list, and the position of the next ones (None: there are no more)."""

    items: list[Item]
    following: Any = None


class GitProvider(ABC):
    """A client of one provider, for one user."""

    name: ClassVar[str]
    has_tasks: ClassVar[bool] = False

    def __init__(self, client: GitClient, credential: ProviderCredential) -> None:
        """Use a user's token at its host.

        Raises:
            Forbidden: there is no token, or the host is not allowed.
        """
        if not credential.token:
            raise Forbidden(f"no token is stored for {self.name}")
        if not credential.token.isascii():
            raise Forbidden(f"{self.name} does not accept the stored token: store another one")
        default = DEFAULT_HOSTS.get(self.name)
        host = credential.host or default
        if not host:
            raise Forbidden(f"no host is stored for {self.name}")
        self._client, self._token = client, credential.token
        address = check_address(host, client.listed)
        self.host, self.folder = f"{address.scheme}://{address.netloc}", address.path
        self.is_default = address.netloc.lower() == default

    async def installations(self, window: Window) -> Found[str]:
        """List the groups of the user's repositories: installations, workspaces or projects."""
        raise Invalid(f"{self.name} has no installations")

    @abstractmethod
    async def repositories(self, window: Window, installation: str | None) -> Found[Repository]:
        """List the user's repositories, newest changes first; `installation` selects a group."""

    @abstractmethod
    async def search(self, window: Window, query: str, order: SortOrder) -> Found[Repository]:
        """Search repositories whose names contain a text."""

    @abstractmethod
    async def branches(self, window: Window, repository: str, query: str) -> Found[Branch]:
        """List a repository's branches; `query` selects those whose names contain it."""

    async def tasks(self) -> list[SuggestedTask]:
        """List tasks that an agent could do for the user."""
        return []

    # --- for subclasses ----------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def root(self) -> str:
        """The URL of the provider's API."""

    @property
    def authorization(self) -> str:
        return f"Bearer {self._token}"

    async def get(self, path: str, **params: Any) -> Reply:
        """Send a GET request; parameters that are None are omitted."""
        known = {name: value for name, value in params.items() if value is not None}
        return await self._request("GET", f"{self.root}{path}", params=known)

    async def _request(self, method: str, url: str, **request: Any) -> Reply:
        headers = {"Authorization": self.authorization}
        return await self._client.request(self.name, method, url, headers=headers, **request)

    def basic(self, credentials: str) -> str:
        """Return a header of basic authentication; `credentials` is `user:password`."""
        return f"Basic {b64encode(credentials.encode()).decode()}"

    def read(self, items: Any, make: Callable[[Any], Item], *, max_items: int = MAX_ITEMS) -> list[Item]:
        """Convert the items of a provider's list. Items of another shape are left out, unless all are of another one.

        A provider has null in an item for what it failed to read, or may not show. That must not hide the other items.

        Raises:
            UpstreamUnreachable: the list does not have the provider's documented shape, or more than `max_items` items.
        """
        if not isinstance(items, list):
            raise self._unexpected_shape()
        if len(items) > max_items:
            raise UpstreamUnreachable(f"the response of {self.name} has more than {max_items} items")
        made: list[Item] = []
        for item in items:
            with suppress(KeyError, TypeError, AttributeError, IndexError, ValidationError):
                made.append(make(item))
        if len(made) < len(items):
            log.info("git_items_skipped", provider=self.name, skipped=len(items) - len(made))
            if not made:
                raise self._unexpected_shape()
        return made

    def read_page(self, reply: Reply, window: Window, items: Any, make: Callable[[Any], Item]) -> Found[Item]:
        """Convert the items of a numbered page, as `read` does. A response header says whether another page follows."""
        return Found(self.read(items, make), window.number + 1 if reply.has_next else None)

    def read_object(self, reply: Reply) -> dict[str, Any]:
        """Return the document of a success, which must be an object.

        Raises:
            UpstreamUnreachable: it is not an object.
        """
        document = reply.require_document()
        if not isinstance(document, dict):
            raise self._unexpected_shape()
        return document

    def _unexpected_shape(self) -> UpstreamUnreachable:
        return UpstreamUnreachable(f"the response of {self.name} has an unexpected shape")

    def task(self, kind: TaskType, repository: Any, number: Any, title: Any) -> SuggestedTask | None:
        """Return a suggested task; None if the start of a conversation would refuse it, or if a value is missing."""
        known = {"git_provider": self.name, "task_type": kind, "repo": repository, "issue_number": number}
        try:
            return SuggestedTask.model_validate(known | {"title": title[:1000] if isinstance(title, str) else None})
        except ValidationError:
            return None


def segments(path: str) -> str:
    """Quote a user's path for a URL.

    Raises:
        Invalid: a segment is empty, `.` or `..`, which would lead to another path.
    """
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise Invalid("each part between slashes must be a name")
    return "/".join(quote(part, safe="") for part in path.split("/"))


def drop_none(tasks: Iterable[SuggestedTask | None]) -> list[SuggestedTask]:
    return [task for task in tasks if task is not None]


# --- pages ----------------------------------------------------------------------------------------------------------

OTHER_SIZE = "page_id belongs to another limit: use the same limit for all pages"


def open_window(kind: str, page_id: str | None, limit: int) -> Window:
    """Return the window of a list that a page id selects.

    Args:
        kind: the list; a page id of another one is refused.
        page_id: from the page before; None: the first page.

    Raises:
        Invalid: the page id belongs to another list, or to another page size.
    """
    if page_id is None:
        return Window(limit)
    size, start = page_ids.decode(page_id, [kind], 2)
    if start is None:
        raise Invalid(FOREIGN_PAGE)
    if size != limit:
        raise Invalid(OTHER_SIZE)
    return Window(limit, start)


def page_id_of(kind: str, limit: int, following: Any) -> str | None:
    """Return the id of the page that begins at `following`; None if there is none."""
    return None if following is None else page_ids.encode([kind], limit, following)
