"""Squid's configuration of an egress proxy."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Network
from string import Template

from shared.addresses import LISTED_ONLY, NEVER

# The ports that are allowed for names without a port.
PORTS = ("80", "443")
# The maximum number of concurrent connections from one sandbox. The connections of all sandboxes of a node, with one
# more for each connection to a host, need fewer descriptors than Squid has, so one user's can't block the others.
PER_SANDBOX = 64
MAX_DESCRIPTORS = 32768
# Addresses outside 2000::/3 are not public, and 2002::/16 stands for IPv4 addresses. Two exceptions: Squid represents
# IPv4 addresses as MAPPED, and compares a name that does not exist as the last address of all, NONE: its client must
# get that error.
MAPPED, NONE = IPv6Network("::ffff:0:0/96"), IPv6Network(2**128 - 1)
NOT_PUBLIC_6 = (
    *IPv6Network("::/3").address_exclude(MAPPED),
    "4000::/2",
    *IPv6Network("8000::/1").address_exclude(NONE),
    "2002::/16",
)

# The decisions are made by a URL rewriter: Squid connects to rewriters by a pair of sockets, and to other helpers by
# TCP, which the firewall's rules for its user block. The order of the rules matters: a name is resolved only for a
# sandbox that may reach it, so names carry no data out. A result is kept for a minute at least, so Squid connects to
# the address that it has checked. If it connects to another one all the same, the firewall's rules still apply.
TEXT = Template(
    """\
http_port $address:$port
visible_hostname egress-proxy
pid_filename none
coredump_dir none
netdb_filename none
pinger_enable off
digest_generation off
cache deny all
cache_mem 8 MB
memory_pools off
access_log none
cache_store_log none
cache_log /dev/null
logfile_rotate 0
via off
forwarded_for delete
httpd_suppress_version_string on
error_directory /usr/share/squid/errors/templates
error_log_languages off
err_page_stylesheet /dev/null
global_internal_static off
$resolvers
request_timeout 20 seconds
request_start_timeout 20 seconds
request_header_max_size 32 KB
reply_header_max_size 64 KB
client_idle_pconn_timeout 75 seconds
server_idle_pconn_timeout 30 seconds
connect_timeout 10 seconds
dns_timeout 10 seconds
negative_dns_ttl 1 minute
client_lifetime 1 day
half_closed_clients off
max_filedescriptors $descriptors
client_ip_max_connections $per_sandbox
shutdown_lifetime 1 second
url_rewrite_program $decisions
url_rewrite_children 1 startup=1 concurrency=1000 queue-size=16384 on-persistent-overload=ERR
url_rewrite_extras "%>a %>rd %>rP"
store_id_extras "%>a"
acl web proto HTTP
acl decided note allowed yes
acl private dst $private
http_access deny manager
http_access deny !web !CONNECT
http_access allow all
adapted_http_access deny !decided
adapted_http_access deny private
adapted_http_access allow all
"""
)


@dataclass(frozen=True)
class ProxyParameters:
    """The parameters of a proxy's configuration.

    Args:
        address: the address on which the proxy listens; only sandboxes and this machine reach it.
        port: the port on which it listens.
        decisions: the command of `decisions`, without the ports.
        resolvers: name servers; empty: this machine's.
    """

    address: str
    port: int
    decisions: str
    resolvers: Sequence[str] = ()


def write(proxy: ProxyParameters) -> str:
    """Return the configuration."""
    return TEXT.substitute(
        address=proxy.address,
        port=proxy.port,
        resolvers=f"dns_nameservers {' '.join(proxy.resolvers)}" if proxy.resolvers else "",
        per_sandbox=PER_SANDBOX,
        descriptors=MAX_DESCRIPTORS,
        decisions=" ".join((proxy.decisions, *PORTS)),
        private=" ".join(map(str, (*NEVER, *LISTED_ONLY, *NOT_PUBLIC_6))),
    )
