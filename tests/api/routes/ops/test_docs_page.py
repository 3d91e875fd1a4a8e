"""The page that documents the API. It has the service's origin, so its scripts have the rights of its user."""

import re

from fastapi.testclient import TestClient

ADDRESS = re.compile(r'(?:src|href)="([^"]*)"')


def test_page_loads_all_its_parts_from_this_service(client: TestClient) -> None:
    page = client.get("/docs").text
    found = ADDRESS.findall(page)
    assert any(address.endswith(".js") for address in found)
    for address in found:
        assert address.startswith("/")
        assert not address.startswith("//")
        assert client.get(address).status_code == 200
    assert "https://" not in page


def test_description_lists_the_operations(client: TestClient) -> None:
    assert "'/openapi.json'" in client.get("/docs").text
    assert "/api/v1/sandboxes" in client.get("/openapi.json").json()["paths"]


def test_page_cannot_be_framed(client: TestClient) -> None:
    assert client.get("/docs").headers["Content-Security-Policy"] == "frame-ancestors 'none'"
