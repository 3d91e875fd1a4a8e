"""The sandboxes as the API lists them for their owners."""

from collections.abc import Iterable

from tests.factories import ApiUser
from tests.services import http

LIMIT = 100


def list_statuses(url: str, users: Iterable[ApiUser], *, timeout: float = 30) -> dict[str, str]:
    """The status of each sandbox that the API lists for these users, by id.

    Args:
        timeout: the timeout of each page, in seconds.

    Raises:
        httpx.TransportError: the API does not respond.
        AssertionError: the API responds with an error, or lists a sandbox twice.
    """
    found: dict[str, str] = {}
    for user in users:
        page_id = None
        while page_id != "":
            parameters = {"limit": LIMIT} | ({"page_id": page_id} if page_id else {})
            response = http.get(
                f"{url}/api/v1/sandboxes/search", headers=user.headers, params=parameters, timeout=timeout
            )
            assert response.status_code == 200, response.text
            page = response.json()
            listed = {item["id"]: item["status"] for item in page["items"]}
            assert len(listed) == len(page["items"]), "a page lists a sandbox twice"
            assert not listed.keys() & found.keys(), "two pages list one sandbox"
            found |= listed
            page_id = page["next_page_id"] or ""
    return found
