"""HAProxy's configuration of a door. It contains no secret: tokens are compared by their digests."""

import hashlib
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from string import Template
from urllib.parse import urlsplit

from deploy.door.network import SandboxSubnet
from shared.agent_server.door import API_CHECK, ERROR_HEADER, TOKEN_HEADER
from shared.agent_server.limits import CONNECT_SECONDS, KEEPALIVE_SECONDS, LOST_SECONDS, PROBES

MAX_CONNECTIONS = 8192
# File descriptors of a connection: one on each side.
PER_CONNECTION = 2
SPARE_DESCRIPTORS = 128
# The maximum number of concurrent connections from one sandbox; its agent server and its programs need a few. All
# sandboxes together may use half of the door's connections, and the service the other half.
PER_SANDBOX = 256
# When half of the sandboxes' share is in use, a sandbox that has more than this fraction (1/64) of the share gets no
# more connections, so that a few sandboxes of one user can't block the others.
CROWDED_PART = 64
MIN_CROWDED = 8
# Idle connections to sandboxes that are kept. By default, HAProxy keeps as many as are in use, as if all led to one
# server.
MAX_IDLE = 1024
AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
REFUSED = 403
# How a name server may fail.
FAILURES = ("nx", "other", "refused", "timeout")
STATUSES = (400, REFUSED, 404, 408, 413, 500, 502, 503, 504)

# The timeouts are long, because a command may run for hours without output, and a paused sandbox keeps its websockets.
# TCP's own probes end the connections of machines that are lost.
TEXT = Template(
    """\
global
    maxconn $connections
    nbthread 1
    tune.bufsize 81920
    tune.maxrewrite 4096
    tune.http.maxhdr 256

defaults both
    mode http
    timeout connect ${connect}s
    timeout http-request 20s
    timeout http-keep-alive 75s
    timeout client 24h
    timeout server 24h
    timeout tunnel 24h
    timeout client-fin 30s
    timeout server-fin 30s
    option tcpka
    clitcpka-idle ${idle_tcp}s
    clitcpka-intvl ${probe_tcp}s
    clitcpka-cnt $probes
    srvtcpka-idle ${idle_tcp}s
    srvtcpka-intvl ${probe_tcp}s
    srvtcpka-cnt $probes
    retries 0
    option http-no-delay
    option disable-h2-upgrade

# A sandbox may never respond. Without this, its connections would outlast the clients that have left, for a day. The
# API always responds, and a program in a sandbox may end its side of the connection after the request.
defaults inward from both
    option abortonclose

frontend service from inward
    bind fd@$inner_socket$tls
    maxconn $from_service
    option accept-invalid-http-request
$errors
    http-request set-var(txn.address) path,field(2,/)
    http-request set-var(txn.port) path,field(3,/)
    # By this path the node's worker checks that sandboxes' reports would reach the API.
    acl is_check path $check
    http-request deny deny_status 403 unless { req.fhdr($token),sha2(256),hex -m str $digests }
    http-request deny deny_status 403 unless is_check or { path_reg ^/[0-9.]+/[1-9][0-9]{0,4}/ }
    http-request deny deny_status 403 unless is_check or { var(txn.address) -m ip $addresses }
    http-request deny deny_status 403 if { var(txn.address) -m ip $reserved }
    http-request del-header $token
    http-request set-header host $api_host if is_check
    http-request set-header host %[var(txn.address)]:%[var(txn.port)] unless is_check
    http-request replace-path ^/[^/]+/[^/]+(/.*)$$ \\1
    use_backend api_check if is_check
    default_backend sandboxes

# Without the bridge, this machine does not have the address, and no connection is opened.
backend sandboxes from inward
    source $gateway
    http-reuse safe
    http-request set-dst var(txn.address)
    http-request set-dst-port var(txn.port)
    http-response del-header $error
    server sandbox 0.0.0.0:0 pool-purge-delay ${keepalive}s pool-low-conn $idle

frontend sandboxes from both
    bind fd@$outer_socket
    maxconn $from_sandboxes
    stick-table type ip size 100k expire 1m store conn_cur
    tcp-request connection track-sc0 src unless { src_is_local }
    tcp-request connection reject if { sc0_conn_cur gt $per_sandbox }
    tcp-request connection reject if { fe_conn gt $crowded } { sc0_conn_cur gt $when_crowded }
    acl is_report path_reg ^/api/v1/webhooks/[A-Za-z0-9_/-]+$$
    acl is_secret path_reg ^/api/v1/sandboxes/[0-9a-f]{32}/settings/secrets(/[^/]*)?$$
    # Programs on this machine: the SDK gives a sandbox URLs at the address that it uses itself.
    acl is_machine src_is_local
    http-request deny deny_status 404 unless is_report or is_secret or is_machine
    http-request del-header cookie
    http-request del-header x-forwarded-for
    http-request set-header host $api_host
    default_backend api

$resolvers
backend api from both
    http-reuse safe
$api_servers

# An API that stops waits for the end of idle connections. HAProxy would keep one, and checks are rare.
backend api_check from both
    option httpclose
$api_servers
"""
)


@dataclass(frozen=True)
class Door:
    """The parameters of a door's configuration.

    Args:
        inner_socket: descriptor of the socket for the API and the workers.
        outer_socket: descriptor of the socket for sandboxes.
        network: the network of the sandboxes.
        tokens: the tokens that the door accepts.
        api_url: the API that gets sandboxes' requests.
        certificate: file of the certificate and its key; empty: no TLS.
        name_servers: the name servers that know the API's address; none: it stays the same.
        family: the kind of address that is preferred for the API's name.
    """

    inner_socket: int
    outer_socket: int
    network: SandboxSubnet
    tokens: Sequence[str]
    api_url: str
    certificate: str = ""
    name_servers: Sequence[str] = ()
    family: str = "ipv4"


def write(door: Door) -> str:
    """Return the configuration."""
    url = urlsplit(door.api_url)
    network, connections = door.network, _max_connections()
    from_sandboxes = connections // 2
    return TEXT.substitute(
        connections=connections,
        from_service=connections - from_sandboxes,
        from_sandboxes=from_sandboxes,
        per_sandbox=PER_SANDBOX,
        crowded=from_sandboxes // 2,
        when_crowded=max(MIN_CROWDED, from_sandboxes // CROWDED_PART),
        connect=round(CONNECT_SECONDS),
        idle_tcp=LOST_SECONDS // 2,
        probe_tcp=LOST_SECONDS // 2 // PROBES,
        probes=PROBES,
        keepalive=round(KEEPALIVE_SECONDS),
        idle=MAX_IDLE,
        inner_socket=door.inner_socket,
        outer_socket=door.outer_socket,
        tls=f" ssl crt {_quoted(door.certificate)}" if door.certificate else "",
        errors="\n".join(map(_error, STATUSES)),
        check=API_CHECK,
        token=TOKEN_HEADER.lower(),
        error=ERROR_HEADER.lower(),
        digests=" ".join(hashlib.sha256(token.encode()).hexdigest().upper() for token in door.tokens),
        addresses=network.addresses,
        gateway=network.gateway,
        reserved=" ".join(map(str, _reserved(network))),
        api_host=url.netloc,
        resolvers=_resolvers(door.name_servers),
        api_servers="\n".join(f"    server {each}" for each in _api_servers(door)),
    )


def _reserved(network: SandboxSubnet) -> list[IPv4Address]:
    """The addresses that no sandbox has: the node's own, and those of the network itself."""
    return [network.gateway, network.addresses.network_address, network.addresses.broadcast_address]


def _resolvers(name_servers: Sequence[str]) -> str:
    if not name_servers:
        return ""
    servers = [f"    nameserver server{number} {address}" for number, address in enumerate(name_servers)]
    # The last address stays while no name server responds, or none knows the name.
    return "\n".join(["resolvers system", *servers, *(f"    hold {failure} 1d" for failure in FAILURES), ""])


def _api_servers(door: Door) -> list[str]:
    """The API at its address as of now, or, while the name servers know its name, at the address that they have."""
    url = urlsplit(door.api_url)
    api = _server(url.scheme, url.hostname or "", url.port)
    if not door.name_servers:
        return [f"api {api}"]
    return [f"api {api} resolvers system resolve-prefer {door.family} init-addr none", f"first {api} backup"]


def _server(scheme: str, host: str, port: int | None) -> str:
    address = f"[{host}]" if ":" in host else host
    if scheme == "https":
        return f"{address}:{port or 443} ssl verify required ca-file {AUTHORITIES} sni str({host}) verifyhost {host}"
    return f"{address}:{port or 80}"


def _error(status: int) -> str:
    text = f'"the door answers {status}"'
    # The connection of a client without a token is closed.
    end = " hdr connection close" if status == REFUSED else ""
    return f'    http-error status {status} content-type text/plain string {text} hdr {ERROR_HEADER} "{status}"{end}'


def _max_connections() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if hard < 0 else max(64, min(MAX_CONNECTIONS, (hard - SPARE_DESCRIPTORS) // PER_CONNECTION))


def _quoted(path: str) -> str:
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'
