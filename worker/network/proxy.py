"""What sandboxes may reach through the node's egress proxy, in a folder with one file for each of their addresses.

For each request, the proxy (`deploy.egress_proxy`) reads the file of the sender's address, so a change needs neither a
restart nor a reload. Without a file nothing is allowed. Open tunnels are not checked again: they are closed when their
sandbox may reach less (decision 75).
"""

import os
import socket
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path

import structlog

from shared.observability import failpoints
from shared.sandboxes.egress import Egress
from worker.network.firewall import Firewall, FirewallError
from worker.network.rules import element

log = structlog.get_logger()

# Label of containers whose environment names the proxy.
PROXY_LABEL = "agent-workspace.egress-proxy"
# Targets of a sandbox: host names and networks, one for each line of its file. A network stands for each of its
# addresses, for programs that request an address from the proxy.
Targets = tuple[str, ...]
# Everything that is public.
ANYTHING = "*"
DRAFT = "."
CONNECT_SECONDS = 1.0
# Consecutive comparisons without a proxy until that is a problem: a proxy starts when it is first needed.
MAX_SILENT = 2


def targets(egress: Egress, *, uses_proxy: bool) -> Targets:
    """What a sandbox reaches by the proxy.

    Args:
        egress: of its spec.
        uses_proxy: whether its environment names the proxy. What its programs may reach without the proxy, they then
            may reach by it, too.
    """
    if not (egress.names or uses_proxy):
        return ()
    return (ANYTHING,) if egress.is_open else (*egress.names, *map(str, egress.networks))


def environment(url: str, direct: Iterable[str]) -> dict[str, str]:
    """The variables that make programs use a proxy, but for these hosts. Programs differ in how they spell them."""
    found = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": ",".join(direct)}
    return {spelt: value for name, value in found.items() for spelt in (name, name.lower())}


class EgressProxy:
    """The node's egress proxy: the folder of its rules, and whether it listens."""

    def __init__(self, folder: Path, address: str, port: int, firewall: Firewall) -> None:
        self._folder = folder
        self._firewall = firewall
        self.endpoint = (address, port)
        self.url = f"http://{address}:{port}"
        self._silent = 0

    @property
    def problem(self) -> str | None:
        """Why sandboxes can't reach host names, as of the last comparisons; None: they can."""
        if self._silent < MAX_SILENT:
            return None
        place = "{}:{}".format(*self.endpoint)
        return f"egress to host names: nothing listens on {place}; run egress-proxy on this node, or see its log"

    def allow(self, address: str, found: Targets) -> None:
        """Replace what a sandbox reaches. Safe to repeat.

        Raises:
            FirewallError: the folder can't be written, or connections can't be closed.
        """
        self._replace({address: found})

    def compare(self, listed: Collection[str], wanted: Mapping[str, Targets], kept: Collection[str]) -> None:
        """Correct the folder, except for the addresses that are to be kept, and check whether the proxy listens.

        Args:
            listed: the addresses that had a file before `wanted` was derived: other workers may have added some since.
            wanted: what sandboxes reach, by address.
            kept: addresses.

        Raises:
            FirewallError: the folder can't be written, or connections can't be closed.
        """
        addresses = {*listed, *wanted}
        self._replace({address: wanted.get(address, ()) for address in addresses if address not in kept})
        self._silent = self._silent + 1 if any(wanted.values()) and not self._listens() else 0
        if self._silent == MAX_SILENT:
            log.warning("egress_proxy_missing", problem=self.problem)

    def list_addresses(self) -> set[str]:
        """List the addresses that have a file. Files that are neither an address's nor drafts are removed."""
        files = list(self._folder.iterdir()) if self._folder.is_dir() else []
        files = [file for file in files if not file.name.startswith(DRAFT)]
        for stray in (file for file in files if not _is_address(file.name)):
            stray.unlink()
        return {file.name for file in files if _is_address(file.name)}

    def _replace(self, wanted: Mapping[str, Targets]) -> None:
        """Replace files. A file without lines says that open connections of its sandbox are to be closed."""
        try:
            former = {address: self._read(self._folder / address) for address in wanted}
            less = [address for address, found in wanted.items() if _is_narrower(found, former[address])]
            for address in less:
                self._write(self._folder / address, ())
            self._firewall.disconnect([element(address, *self.endpoint) for address in less])
            for address, found in wanted.items():
                if found and found != former[address]:
                    self._write(self._folder / address, found)
                elif not found and os.path.lexists(self._folder / address):
                    self._remove(self._folder / address)
        except OSError as error:
            raise FirewallError(f"egress to host names: {self._folder} can't be written ({error.strerror})") from None

    @failpoints.around("egress.write")
    def _write(self, path: Path, found: Targets) -> None:
        if not self._folder.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._folder.chmod(0o755)  # the proxy's user may enter it, and read the files
        draft = path.with_name(f"{DRAFT}{path.name}-{os.getpid()}")
        draft.write_text("".join(f"{each}\n" for each in found))
        draft.chmod(0o644)
        draft.replace(path)

    @failpoints.around("egress.remove")
    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def _listens(self) -> bool:
        with suppress(OSError):
            socket.create_connection(self.endpoint, CONNECT_SECONDS).close()
            return True
        return False

    def _read(self, path: Path) -> Targets | None:
        with suppress(OSError):
            return tuple(path.read_text().splitlines())
        return None


def _is_address(text: str) -> bool:
    with suppress(ValueError):
        return str(IPv4Address(text)) == text
    return False


def _is_narrower(found: Targets, former: Targets | None) -> bool:
    """Whether open connections may lead to targets that are no longer allowed."""
    if former is None:
        return False
    return not former or (ANYTHING not in found and not set(former) <= set(found))
