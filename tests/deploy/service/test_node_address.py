"""A node's own address, where all nodes have the same settings."""

import os
import sys

import pytest

from deploy.service.node_address import find_address, main


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://workspace:secret@127.0.0.1/workspace",
        "postgresql://u@localhost:5433/workspace",
        "postgresql://u:a/b#c?d@127.0.0.1/workspace",
    ],
)
def test_address_is_that_of_the_route_to_the_database(url: str) -> None:
    assert find_address(url) in {"127.0.0.1", "::1"}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://workspace@/workspace?host=db.test",
        "postgresql://workspace@127.0.0.1/workspace?host=db.test",
        "postgresql://workspace@/workspace?host=db.test:5433,other.test:5433",
        "postgresql://workspace@/workspace?host=db.test&host=other.test",
    ],
)
def test_host_of_the_database_may_be_an_option(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    def resolve(host: str | None, *_: object, **__: object) -> None:
        raise OSError(host)

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    with pytest.raises(OSError, match=r"^db\.test$"):
        find_address(url)


def test_module_runs_with_that_address(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    others = {name: value for name, value in os.environ.items() if name != "AW_NODE_ADDRESS"}
    monkeypatch.setattr(os, "environ", others | {"AW_DATABASE_URL": "postgresql://u@127.0.0.1/workspace"})
    monkeypatch.setattr(sys, "argv", [])
    # Otherwise logs would be written to this test's output even after its end.
    monkeypatch.setattr("deploy.service.node_address.configure_logs", lambda *_: None)
    main("this")
    assert os.environ["AW_NODE_ADDRESS"] == "127.0.0.1"
    assert "Zen of Python" in capsys.readouterr().out
