"""`agent-workspace login` and `logout`: a key from the device flow (RFC 8628), stored in a context."""

import socket
import sys
import time
from typing import Annotated
from urllib.parse import urlsplit

import typer

from shared.cli.output import NAME, cell_text
from shared.cli.remote import contexts
from shared.cli.remote.contexts import ServiceContext
from shared.cli.remote.own_keys import PREFIX_LENGTH
from shared.cli.remote.service import NO_SERVICE, RemoteService, TimedOut, chosen_name, open_http, remote
from shared.errors import Forbidden, Invalid, Unauthenticated, Unavailable, WorkspaceError

login = typer.Typer(add_completion=False)
logout = typer.Typer(add_completion=False)

GRANT = "urn:ietf:params:oauth:grant-type:device_code"
LOCAL = ("localhost", "127.0.0.1", "::1")


@login.command("login")
def log_in(
    url: Annotated[str, typer.Argument(envvar="AGENT_WORKSPACE_URL", help="The service, such as https://host.")],
    name: Annotated[str | None, typer.Option(help="Name of the context. Default: the service's host.")] = None,
    with_key: Annotated[
        bool, typer.Option("--with-key", help="Read a key from standard input instead of using a browser.")
    ] = False,
) -> None:
    """Log in: approve this machine in a browser. It gets a key of its own, which `logout` revokes.

    An existing context of that name is replaced, and its key is revoked. A key from --with-key is never revoked.
    """
    address = contexts.check_url(url)
    parts = urlsplit(address)
    if parts.scheme == "http" and parts.hostname not in LOCAL:
        typer.echo("warning: without https, others on the network can read the key", err=True)
    chosen = name or parts.netloc
    former = contexts.load().by_name.get(chosen)  # before a key is issued: it would be lost if the file is malformed
    key = _read_key() if with_key else _run_device_flow(address)
    with open_http(address, key) as http:
        current = RemoteService(http).get("/api/keys/current")
    if not isinstance(current, dict) or "id" not in current:
        raise Unavailable(f"{address} {NO_SERVICE}")
    contexts.save(contexts.load().put(chosen, ServiceContext(address, key, is_own=not with_key)))
    if former is not None and former.key != key:
        _revoke_replaced(former)
    typer.echo(f"logged in to {address}; the context {chosen} is in use")


@logout.command("logout")
@remote
def log_out() -> None:
    """Revoke the context's key, unless it was given with `login --with-key`, and forget the context."""
    name = chosen_name()
    if name is None:
        raise Invalid("there is no context to log out of")
    try:
        _revoke(contexts.load().get(name))
    except Unauthenticated as error:
        typer.echo(f"warning: the key was no longer valid: {cell_text(error)}", err=True)
    except WorkspaceError as error:
        typer.echo(
            f"the key was not revoked, and the context {name} is kept; repeat this, or remove it with",
            err=True,
        )
        typer.echo(f"`{NAME} context remove {name}`:", err=True)
        raise error from None
    contexts.save(contexts.load().remove(name))
    typer.echo(f"logged out of {name}")


def _revoke(context: ServiceContext) -> None:
    if not context.is_own:
        typer.echo(f"the key {context.key[:PREFIX_LENGTH]}… was given to `login --with-key` and stays valid", err=True)
        return
    with open_http(context.url, context.key) as http:
        service = RemoteService(http)
        service.delete(f"/api/keys/{service.get('/api/keys/current')['id']}")


def _revoke_replaced(former: ServiceContext) -> None:
    try:
        _revoke(former)
    except Unauthenticated:
        pass  # it is not valid any more
    except WorkspaceError as error:
        advice = f"`{NAME} keys revoke {former.key[:PREFIX_LENGTH]} --own` revokes it"
        typer.echo(f"warning: the context's former key was not revoked: {cell_text(error)}; {advice}", err=True)


def _read_key() -> str:
    typed = typer.prompt("API key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    if not (key := typed.strip()):
        raise Invalid("no key on standard input")
    return key


def _run_device_flow(url: str) -> str:
    with open_http(url) as http:
        service = RemoteService(http)
        codes = service.post_form("/oauth/device/authorize", {"client_id": f"{NAME} on {socket.gethostname()}"})
        if not isinstance(codes, dict) or "device_code" not in codes:
            raise Unavailable(f"{url} {NO_SERVICE}")
        typer.echo(
            f"Open {cell_text(codes['verification_uri_complete'])}\nand approve the request, if the page shows "
            f"the code {cell_text(codes['user_code'])}. Waiting ...",
            err=True,
        )
        return _poll(service, codes["device_code"], float(codes["interval"]), float(codes["expires_in"]))


def _poll(service: RemoteService, device_code: str, pause: float, seconds: float) -> str:
    until, failure = time.monotonic() + seconds, None
    while time.monotonic() < until:
        time.sleep(pause)
        try:
            response = service.post_form("/oauth/device/token", {"device_code": device_code, "grant_type": GRANT})
        except (TimedOut, Unavailable) as error:
            failure = error  # it restarts, for example: the user may have approved already
            continue
        failure = None
        match response.get("error"):
            case None:
                return str(response["access_token"])
            case "authorization_pending":
                pass
            case "slow_down":
                pause = max(pause + 1, float(response.get("interval", pause)))
            case "access_denied":
                raise Forbidden("the request was denied")
            case error:
                raise TimedOut(str(response.get("error_description", error)))
    raise failure or TimedOut("the request was not approved in time")
