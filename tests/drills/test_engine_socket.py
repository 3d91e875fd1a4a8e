"""Addresses of containers, with an engine whose list is outdated because its disk was full."""

from typing import Any

import httpx

from tests.drills.engine_socket import EngineSocket

NETWORK = "net"
ADDRESS = "198.18.161.2"


def container(name: str, address: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    networks = {NETWORK: {"IPAddress": address}}
    return {"Name": f"/{name}", "Config": {"Labels": labels}, "NetworkSettings": {"Networks": networks}}


# The list shows the address of one that has ended, none of one that runs, and one that has just been removed.
LISTED = [
    {
        "Id": "1",
        "Names": ["/ended"],
        "State": "",
        "Labels": {},
        "NetworkSettings": {"Networks": {NETWORK: {"IPAddress": ADDRESS}}},
    },
    {
        "Id": "2",
        "Names": ["/runs"],
        "State": "",
        "Labels": {},
        "NetworkSettings": {"Networks": {NETWORK: {"IPAddress": ""}}},
    },
    {"Id": "3", "Names": ["/gone"], "State": "", "Labels": {}, "NetworkSettings": {"Networks": {}}},
]
INSPECTED = {"1": container("ended", ""), "2": container("runs", ADDRESS, {"proxy": "1"})}


def respond(request: httpx.Request) -> httpx.Response:
    if request.url.path == "/containers/json":
        return httpx.Response(200, json=LISTED)
    found = INSPECTED.get(request.url.path.split("/")[2])
    return httpx.Response(200, json=found) if found else httpx.Response(404)


def test_addresses_are_those_of_inspected_containers() -> None:
    socket = EngineSocket("unix:///nonexistent")
    socket._client = httpx.Client(transport=httpx.MockTransport(respond), base_url="http://engine")
    assert socket.addresses(NETWORK) == socket.addresses(NETWORK, "proxy") == {"runs": ADDRESS}
    assert socket.addresses(NETWORK, "other") == {}
