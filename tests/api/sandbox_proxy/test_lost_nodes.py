"""A node that loses its power or its network ends no connection: TCP's own probes end it."""

import asyncio

import httpx

from api.agent_server.transport import AgentServerTransport
from api.sandbox_proxy.server_connection import CountedConnection, SandboxConnect
from tests.api.sandbox_proxy.doubles import Agent
from tests.factories import DOOR
from tests.services.lost_peers import seconds_until_lost


def test_open_request_ends_if_its_node_is_lost(agent: Agent) -> None:
    async def find() -> float | None:
        transport = AgentServerTransport(DOOR)
        response = await transport.handle_async_request(httpx.Request("GET", agent.url))
        found = seconds_until_lost(response.extensions["network_stream"].get_extra_info("socket"))
        await response.aclose()
        await transport.aclose()
        return found

    assert asyncio.run(find()) == 60


def test_idle_websocket_ends_if_its_node_is_lost(agent: Agent) -> None:
    async def find() -> float | None:
        url = agent.url.replace("http", "ws", 1)
        async with SandboxConnect(url, proxy=None, create_connection=CountedConnection) as server:
            return seconds_until_lost(server.transport.get_extra_info("socket"))

    assert asyncio.run(find()) == 60
