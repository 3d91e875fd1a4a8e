"""Checks of the URLs, hosts and ports in settings. Their errors contain no part of a URL: it may have a password."""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo

# As SQLAlchemy reads it: a password ends at the first `@`, and what follows is the host.
DATABASE = re.compile(
    r"(?:postgres|postgresql(?:\+psycopg)?|sqlite)://"
    r"(?:[^:/@]*(?::[^@]*)?@)?(?:\[[^/?@]*\]|[^/:?@]*)(?::[0-9]*)?(?:[/?].*)?"
)
# A database in memory would be another one for each connection.
SQLITE_FILE = re.compile(r"sqlite:///(?!:memory:)[^?].*")
HOST_NAME = re.compile(r"[\w.-]+")
# A git host is an address or a name, with or without a port.
GIT_HOST = re.compile(r"[\w.:-]+")
# An origin has no path (RFC 6454). A slash at its end is dropped. That of local files and sandboxed frames is `null`.
ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^\s/?#*@]+/?", re.IGNORECASE)
BROKERS = ("redis", "rediss", "redis+socket")
ESCAPED = "in its user and password, write @ : / # ? % as %40 %3A %2F %23 %3F %25"


def check_database_url(url: str) -> str:
    """The URL, if it is one of a supported database, with a file for SQLite, and no host that ends a password.

    Raises:
        ValueError: it is not.
    """
    if url and not DATABASE.fullmatch(url):
        raise ValueError(f"use postgresql://USER:PASSWORD@HOST/NAME, and {ESCAPED}; or leave it empty for SQLite")
    if url.startswith("sqlite:") and not SQLITE_FILE.fullmatch(url):
        raise ValueError("name a file, as in sqlite:////data/agent-workspace.db; or leave it empty for SQLite")
    return url


def sqlite_url(file: Path) -> str:
    """SQLAlchemy's URL of a file, in whose path `?` and `%` would have a meaning. Other characters stay as they are."""
    return "sqlite:///" + str(file).replace("%", "%25").replace("?", "%3F")


def check_broker_url(url: str) -> str:
    """The URL, if it is one of a supported broker, and its parts can be told from each other.

    A password with an unescaped `/` would be read as a port.

    Raises:
        ValueError: they can't.
    """
    try:
        parts = urlsplit(url)
        is_usable = parts.port is None or parts.port > 0
    except ValueError:
        is_usable = False
    if not is_usable or ("@" not in parts.netloc and "@" in url):
        raise ValueError(f"not a URL that can be used: {ESCAPED}")
    if url and parts.scheme not in BROKERS:
        raise ValueError("use redis://USER:PASSWORD@HOST:PORT/NUMBER, or rediss:// for TLS")
    return url


def check_web_url(url: str) -> str:
    """The URL, if it is one of a web server. Without a scheme, its host would be read as one.

    Raises:
        ValueError: it is not.
    """
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if url and not is_usable:
        raise ValueError("use a URL such as https://HOST or http://HOST:PORT")
    return url


def check_public_url(url: str) -> str:
    """The URL, if it is one of a web server's root: pages, forms and redirects name paths from there.

    Raises:
        ValueError: it is not.
    """
    if urlsplit(check_web_url(url)).path not in ("", "/") or any(mark in url for mark in "@?#"):
        raise ValueError("use a URL without a path, such as https://HOST: the service needs a host of its own")
    return url


def check_host(host: str) -> str:
    """The host, if it is a name or an address. An IPv6 address has no brackets then: sockets do not accept them.

    Raises:
        ValueError: it is neither.
    """
    if not host or HOST_NAME.fullmatch(host):
        return host
    address = host.removeprefix("[").removesuffix("]")
    try:
        ip_address(address)
    except ValueError:
        raise ValueError("use a host name or an IP address, without a scheme and a port") from None
    return address


def check_git_hosts(text: str) -> str:
    """The text, if it lists hosts, each with or without a port.

    Raises:
        ValueError: it has a character that no host has.
    """
    if not _lists(GIT_HOST, text):
        raise ValueError("use hosts such as git.example.lan or git.example.lan:3000, without a scheme and a path")
    return text


def check_origins(text: str) -> str:
    """The text, if it lists origins of web pages.

    Raises:
        ValueError: an item is not an origin.
    """
    if not _lists(ORIGIN, text):
        raise ValueError("use origins such as https://page.example or http://localhost:5173, without a path")
    return text


def check_client_port(port: int, values: ValidationInfo) -> int:
    """The client port, if it is not the service's own: what arrives there is for sandboxes alone.

    Raises:
        ValueError: it is.
    """
    if port == values.data.get("port"):
        raise ValueError("AW_PORT is the same port: set one of them to another port")
    return port


def _lists(kind: re.Pattern[str], text: str) -> bool:
    items = filter(None, map(str.strip, text.split(",")))
    return all(map(kind.fullmatch, items))


DatabaseUrl = Annotated[str, AfterValidator(check_database_url)]
BrokerUrl = Annotated[str, AfterValidator(check_broker_url)]
Url = Annotated[str, AfterValidator(check_web_url)]
ClientPort = Annotated[int, Field(ge=0, le=65535), AfterValidator(check_client_port)]
PublicUrl = Annotated[str, AfterValidator(check_public_url)]
Host = Annotated[str, AfterValidator(check_host)]
GitHosts = Annotated[str, AfterValidator(check_git_hosts)]
Origins = Annotated[str, AfterValidator(check_origins)]
