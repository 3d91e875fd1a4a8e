"""Configuration that only workers read."""

import re
import socket
from functools import cached_property
from ipaddress import IPv4Address

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from shared.addresses import in_url
from shared.env_file import FileSettings
from shared.leasing.limits import MAX_SECONDS
from shared.service_urls import Host
from shared.settings import renamed

# Values of AW_SANDBOX_DNS beside a list of addresses.
AUTO, NO_RESOLVERS = "auto", "none"
# The addresses that Docker's client accepts: a port is required, except for sockets. Without a scheme, it takes letters
# before a colon for one.
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[\w.-]+):0*[1-9][0-9]{0,4}(?:/.*)?"
ENGINE = re.compile(
    rf"(?:http\+)?unix:(?!/*$).+|ssh://.+|(?:tcp|https?)://(?:\w+@)?{_HOST}|(?![a-z]+:){_HOST}", re.IGNORECASE
)


class WorkerSettings(FileSettings):
    """Settings of a worker. Every environment variable begins with `AW_`."""

    model_config = SettingsConfigDict(env_prefix="AW_", env_file="var/env", extra="ignore", frozen=True)

    node: str = Field(
        default_factory=socket.gethostname, min_length=1, max_length=64, description="Name of this worker's node"
    )
    docker_host: str = Field("unix:///var/run/docker.sock", min_length=1, description="The engine beside this worker")
    node_capacity: int = Field(200, ge=1, description="Max sandboxes on this node, in any state")
    node_address: Host = Field(
        "127.0.0.1", min_length=1, description="Address on which this node's door listens for the API"
    )
    door_port: int = Field(3001, ge=1, le=65535, description="Port of this node's door")
    egress_port: int = Field(
        3003, ge=1, le=65535, description="Port of this node's egress proxy, at its address in the sandboxes' network"
    )
    door_certificate: str = Field(
        "", description="Certificate and key of this node's door, a PEM file; empty: the door has no TLS"
    )
    advertised_host: Host = Field(
        "", validate_default=True, description="Host name of this node's door for the API; empty: the node's address"
    )
    database_wait_seconds: float = Field(
        300.0, ge=0, description="Max time that a process of a node waits for the database at its start, seconds"
    )
    concurrency: int = Field(32, ge=1, description="Jobs that run at a time")
    warm_boot_concurrency: int = renamed(
        "WARM_BOOTS",
        "WARM_BOOT_CONCURRENCY",
        2,
        ge=1,
        description="Warm sandboxes that boot on this node at a time",
    )
    lease_seconds: float = Field(
        15.0, gt=0, le=MAX_SECONDS, description="Seconds without a heartbeat after which a worker loses its leases"
    )
    health_timeout: float = Field(
        120.0, gt=0, description="Seconds without a response after which an agent server counts as failed"
    )
    sweep_seconds: float = Field(1.0, gt=0, description="Pause between two sweeps for due work")
    resync_seconds: float = Field(5.0, gt=0, description="Pause between two comparisons of store and engine")
    quarantine_seconds: float = Field(
        3600.0, ge=0, description="How long containers and volumes without a row in the database are kept"
    )
    health_probe_seconds: float = renamed(
        "PROBE_SECONDS",
        "HEALTH_PROBE_SECONDS",
        30.0,
        gt=0,
        description="Pause between two probes of each running agent server",
    )
    # Less than `placement.HEARTBEAT_LIMIT`: otherwise no sandboxes are placed on a node between its heartbeats.
    heartbeat_seconds: float = Field(5.0, gt=0, le=15, description="Pause between two heartbeats of the node")
    node_lost_seconds: float = Field(
        20.0, gt=0, description="Seconds without a heartbeat after which another node is marked lost"
    )
    stop_seconds: int = Field(5, ge=0, le=1800, description="Grace period of a container before it is killed")
    first_message_timeout_seconds: float = renamed(
        "FIRST_MESSAGE_SECONDS",
        "FIRST_MESSAGE_TIMEOUT_SECONDS",
        15,
        ge=0,
        description="Max time from the creation of a conversation to its first message",
    )
    allowed_capabilities: str = Field(
        "", description="Capabilities that the engine filter lets specs add, comma-separated; empty: none"
    )
    allowed_runtimes: str = Field(
        "",
        description="Runtimes besides the default that specs may use here, comma-separated; the engine must have them",
    )
    sandbox_disk_bytes: int = Field(
        20 * 1024**3, ge=0, description="Size of a new sandbox's disk if its spec has none, in bytes; 0: no limit"
    )
    min_free_disk_bytes: int = Field(
        5 * 1024**3, ge=0, description="Free bytes of the engine's disk below which this node takes no new sandboxes"
    )
    engine_data_dir: str = Field(
        "", description="A folder of this machine on the disk with the engine's data; empty: the engine's own data root"
    )
    backup_sandbox_bytes: int = Field(
        0, ge=0, description="Max size of one sandbox's archive in a backup of this node's files, bytes; 0: no limit"
    )
    sandbox_dns: str = Field(
        AUTO,
        min_length=1,
        description="Name servers of sandboxes with open egress, comma-separated; auto: this machine's; none",
    )
    container_log_days: float = Field(
        7.0, ge=0, description="Days for which the log of a removed or failed container is kept; 0: none is kept"
    )
    remote_control: bool = Field(
        default=False, description="Celery's remote control of this worker, by which Flower reads its details"
    )
    metrics_host: Host = Field(
        "127.0.0.1", min_length=1, description="Address on which a worker serves this machine's metrics"
    )
    metrics_port: int = Field(0, ge=0, le=65535, description="Port on which a worker serves metrics; 0: none")
    max_attempts: int = renamed(
        "MOST_ATTEMPTS",
        "MAX_ATTEMPTS",
        5,
        ge=1,
        description="Failed attempts after which a sandbox's or a start's status becomes ERROR",
    )

    @property
    def runtimes(self) -> frozenset[str]:
        return frozenset(filter(None, self.allowed_runtimes.replace(" ", "").split(",")))

    @field_validator("advertised_host")
    @classmethod
    def _or_address(cls, host: str, fields: ValidationInfo) -> str:
        return host or fields.data.get("node_address", "")

    @field_validator("docker_host")
    @classmethod
    def _is_address(cls, address: str) -> str:
        if not ENGINE.fullmatch(address):
            raise ValueError("use unix:///PATH, as unix:///var/run/docker.sock, or tcp://HOST:PORT")
        return address

    @field_validator("sandbox_dns")
    @classmethod
    def _names_servers(cls, setting: str) -> str:
        try:
            return setting if setting in (AUTO, NO_RESOLVERS) else ",".join(read_name_servers(setting))
        except ValueError:
            raise ValueError("use auto, none, or IPv4 addresses") from None

    @field_validator("node_lost_seconds")
    @classmethod
    def _exceeds_heartbeats(cls, seconds: float, fields: ValidationInfo) -> float:
        if seconds <= fields.data.get("heartbeat_seconds", 0.0):
            raise ValueError("use more than AW_HEARTBEAT_SECONDS: nodes would be lost between their heartbeats")
        return seconds

    @cached_property
    def door_url(self) -> str:
        """The URL of this node's door for the API and the workers."""
        scheme = "https" if self.door_certificate else "http"
        return f"{scheme}://{in_url(self.advertised_host)}:{self.door_port}"

    @cached_property
    def service_url(self) -> str:
        """The URL at which this node's sandboxes reach the service, by the door."""
        return f"http://host.docker.internal:{self.door_port}"

    @cached_property
    def webhook_url(self) -> str:
        """The URL to which agent servers send their webhooks."""
        return f"{self.service_url}/api/v1/webhooks"


def read_name_servers(listed: str) -> tuple[str, ...]:
    """The IPv4 addresses of a list with commas.

    Raises:
        ValueError: an item is no IPv4 address.
    """
    return tuple(str(IPv4Address(item.strip())) for item in listed.split(",") if item.strip())
