"""The cache of list items, which counts items and not bytes."""

import pytest

from api.schemas.page_text import MAX_CACHED_ROW, cached
from api.schemas.sandbox_urls import SandboxUrls
from shared.crypto import Vault
from tests.factories import SECRET_KEY

VAULT = Vault([SECRET_KEY])


@pytest.mark.parametrize(("length", "encoded"), [(MAX_CACHED_ROW, 1), (MAX_CACHED_ROW + 1, 3)])
def test_long_rows_are_not_cached(length: int, encoded: int) -> None:
    texts: list[str] = []

    @cached
    def write(text: str, _vault: Vault, _urls: SandboxUrls) -> bytes:
        texts.append(text)
        return text.encode()

    for _ in range(3):
        assert write("x" * length, VAULT, SandboxUrls("http://service")) == b"x" * length
    assert len(texts) == encoded


def test_urls_of_the_caller_are_part_of_the_key() -> None:
    @cached
    def write(text: str, _vault: Vault, urls: SandboxUrls) -> bytes:
        return f"{urls.origin} {text}".encode()

    for _ in range(2):
        for origin in ("http://one", "http://two"):
            assert write("row", VAULT, SandboxUrls(origin)) == f"{origin} row".encode()
