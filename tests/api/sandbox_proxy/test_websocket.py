"""Websockets on the sandbox path: keys, waking, both directions, and close codes."""

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from api.sandbox_proxy import websocket
from shared.db.database import Database
from shared.models import Sandbox, SandboxSpec
from shared.sandboxes.status import ObservedState
from shared.states import Desired, PauseKind, Status
from shared.users import api_keys
from tests.api.sandbox_proxy.doubles import Agent, Serve, Worker, key_of
from tests.factories import SPEC_ID, ApiUser, make_sandbox, session_key_of
from tests.fakes.worker import settle
from tests.rows import as_stored
from tests.waiting import eventually

EVENTS = "sockets/events/1?resend_mode=all"
# A websocket without a key takes a place of all users' (`MAX_AWAITING_KEY`).
MAX_KEY_SECONDS = 15.0


@contextmanager
def socket(
    api: httpx.Client, sandbox: Sandbox | str, path: str = EVENTS, source: str = "127.0.0.1", **headers: str
) -> Iterator[ClientConnection]:
    sandbox_id = sandbox if isinstance(sandbox, str) else sandbox.id
    url = f"{str(api.base_url).replace('http', 'ws', 1)}/sandbox/{sandbox_id}/{path}"
    origin = (source, 0)
    with connect(url, additional_headers=headers, proxy=None, max_size=None, source_address=origin) as connection:
        yield connection


def auth(sandbox: Sandbox) -> str:
    return json.dumps({"type": "auth", "session_api_key": session_key_of(sandbox)})


def close_of(connection: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed):
        connection.recv(timeout=20)
    assert connection.close_code is not None
    return connection.close_code, connection.close_reason or ""


class TestKeys:
    def test_key_may_be_in_the_first_frame(self, api: httpx.Client, running: Sandbox) -> None:
        with socket(api, running) as connection:
            connection.send(auth(running))
            assert connection.recv(timeout=20) == "/sockets/events/1?resend_mode=all"

    def test_key_may_be_in_the_query_or_a_header(self, api: httpx.Client, running: Sandbox, user: ApiUser) -> None:
        key = session_key_of(running)
        for path, headers in (
            (f"{EVENTS}&session_api_key={key}", {}),
            (EVENTS, key_of(running)),
            (EVENTS, user.headers),
        ):
            with socket(api, running, path, **headers) as connection:
                assert connection.recv(timeout=20) == "/sockets/events/1?resend_mode=all"

    @pytest.mark.parametrize("status", [Status.RUNNING, Status.PAUSED])
    def test_websocket_without_access_wakes_no_sandbox(
        self, api: httpx.Client, database: Database, user: ApiUser, other_user: ApiUser, worker: Worker, status: Status
    ) -> None:
        sandbox, other = make_sandbox(database, user, status=status), make_sandbox(database, other_user)
        frames: list[Any] = ["", "{", "[" * 4_000, "null", '{"type": "auth"}', b"\xff", auth(other)]
        closes = set()
        for sandbox_id in (sandbox.id, "f" * 32):
            for frame in frames:
                with socket(api, sandbox_id) as connection:
                    connection.send(frame)
                    closes.add(close_of(connection)[0])
            with socket(api, sandbox_id, **key_of(other)) as connection:
                closes.add(close_of(connection)[0])
        assert (closes, worker.jobs, as_stored(database, sandbox)) == ({4001}, [], sandbox)
        with socket(api, sandbox, **other_user.headers) as connection:
            assert close_of(connection)[0] == 4004

    def test_socket_ends_with_its_key(
        self, api: httpx.Client, database: Database, running: Sandbox, user: ApiUser, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """This includes a websocket on which the client sends nothing."""
        monkeypatch.setattr("api.sandbox_proxy.access.RECHECK_SECONDS", 0.05)
        with socket(api, running, EVENTS, **user.headers) as connection:
            connection.recv(timeout=20)
            with pytest.raises(TimeoutError):
                connection.recv(timeout=0.5)
            with database.transaction() as session:
                assert api_keys.revoke_key(session, user.key) == 1
            assert close_of(connection)[0] == 4001

    def test_socket_without_a_key_is_closed_in_time(
        self, api: httpx.Client, running: Sandbox, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert websocket.KEY_SECONDS <= MAX_KEY_SECONDS
        monkeypatch.setattr(websocket, "KEY_SECONDS", 0.1)
        with socket(api, running) as connection:
            code, reason = close_of(connection)
        assert (code, "first frame must be an auth frame" in reason, worker.jobs) == (4001, True, [])

    def test_silent_sockets_without_a_key_do_not_block_other_addresses(
        self, api: httpx.Client, running: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("api.sandbox_proxy.websocket.MAX_AWAITING_KEY", 8)
        monkeypatch.setattr("api.sandbox_proxy.websocket.MAX_AWAITING_OF_ADDRESS", 2)
        with ExitStack() as stack:
            silent = [stack.enter_context(socket(api, running, source="127.0.0.2")) for _ in range(9)]
            assert {close_of(connection)[0] for connection in silent[2:]} == {1013}
            connection = stack.enter_context(socket(api, running))
            connection.send(auth(running))
            assert connection.recv(timeout=20) == "/sockets/events/1?resend_mode=all"

    def test_key_is_not_logged(
        self,
        api: httpx.Client,
        running: Sandbox,
        paused: Sandbox,
        user: ApiUser,
        agent: Agent,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.DEBUG)
        key = agent.server.key = session_key_of(running)
        with socket(api, running, f"{EVENTS}&session_api_key={key}") as connection:
            connection.recv(timeout=20)
        api.get(f"/sandbox/{paused.id}/api/x?session_api_key={session_key_of(paused)}", headers=user.headers)
        api.get(f"/sandbox/{running.id}/api/x?session_api_key={key}x", headers=user.headers)
        messages = [record.getMessage() for record in caplog.records]
        assert [
            line for line in messages if any(text in line for text in (key, user.key, session_key_of(paused)))
        ] == []
        assert [line for line in messages if "waking" in line] != []


class TestFrames:
    def test_frames_of_both_kinds_pass_in_both_directions(self, api: httpx.Client, running: Sandbox) -> None:
        with socket(api, running, **key_of(running)) as connection:
            connection.recv(timeout=20)
            for frame in ("text", b"\x00bytes", "x" * 2_000_000):
                connection.send(frame)
                assert connection.recv(timeout=20) == frame

    def test_server_s_close_reaches_the_client(self, api: httpx.Client, running: Sandbox) -> None:
        with socket(api, running, **key_of(running)) as connection:
            connection.recv(timeout=20)
            connection.send("close")
            assert close_of(connection) == (4004, "requested")

    def test_client_s_close_reaches_the_server(self, api: httpx.Client, running: Sandbox, agent: Agent) -> None:
        with socket(api, running, **key_of(running)) as connection:
            connection.recv(timeout=20)
            connection.close(3001, "enough")
        with socket(api, running, **key_of(running)) as connection:
            connection.recv(timeout=20)
            connection.socket.close()  # without a close frame
        assert eventually(lambda: len(agent.server.closed_with) == 2)
        assert agent.server.closed_with[0] == (3001, "enough")


class TestWaking:
    @pytest.mark.parametrize("by_frame", [True, False])
    def test_paused_sandbox_is_woken(
        self, api: httpx.Client, database: Database, paused: Sandbox, worker: Worker, by_frame: bool
    ) -> None:
        with socket(api, paused, **({} if by_frame else key_of(paused))) as connection:
            if by_frame:
                assert worker.jobs == []
                connection.send(auth(paused))
            connection.send("said before it woke")
            assert connection.recv(timeout=20) == "/sockets/events/1?resend_mode=all"
            assert connection.recv(timeout=20) == "said before it woke"
        assert (worker.resumed, as_stored(database, paused).generation) == ([paused.id], 2)

    def test_frame_wakes_a_sandbox_paused_since_the_connect(
        self, api: httpx.Client, database: Database, running: Sandbox, worker: Worker
    ) -> None:
        with socket(api, running, **key_of(running)) as connection:
            connection.recv(timeout=20)
            with database.transaction() as session:
                row = session.get_one(Sandbox, running.id)
                row.desired, row.generation = Desired.PAUSED, row.generation + 1
            settle(database, running.id, ObservedState(Status.PAUSED, pause_kind=PauseKind.FROZEN))
            connection.send("still there?")
            assert connection.recv(timeout=20) == "still there?"
        assert worker.resumed == [running.id]

    def test_socket_to_a_sandbox_that_can_not_wake_is_closed_with_a_reason(
        self, serve: Serve, database: Database, paused: Sandbox, user: ApiUser, worker: Worker
    ) -> None:
        with serve(wake_seconds=0.1) as api:
            worker.resume = lambda _: None
            with socket(api, paused, **key_of(paused)) as connection:
                assert close_of(connection)[0] == 1013
            with database.transaction() as session:
                session.get_one(SandboxSpec, SPEC_ID).wake_on_traffic = False
            other = make_sandbox(database, user, status=Status.PAUSED)
            with socket(api, other, **key_of(other)) as connection:
                code, reason = close_of(connection)
            assert (code, "disables waking" in reason) == (1013, True)

    @pytest.mark.parametrize("urls", [[], [{"name": "AGENT_SERVER", "url": "http://127.0.0.1:9", "port": 8000}]])
    def test_socket_to_an_unreachable_server_is_closed(
        self, api: httpx.Client, database: Database, user: ApiUser, urls: list[dict[str, Any]]
    ) -> None:
        sandbox = make_sandbox(database, user, exposed_urls=urls)
        with socket(api, sandbox, **key_of(sandbox)) as connection:
            assert close_of(connection)[0] == 1014

    def test_socket_that_the_server_refuses_is_closed(self, api: httpx.Client, running: Sandbox) -> None:
        with socket(api, running, "refused", **key_of(running)) as connection:
            assert close_of(connection)[0] == 1014
