"""The configuration of API and workers. Only this module and `worker.settings` read the environment."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from shared.addresses import NEVER, ModelServers, Networks, in_url, split_list
from shared.env_file import FileSettings
from shared.service_urls import BrokerUrl, ClientPort, DatabaseUrl, GitHosts, Host, Origins, PublicUrl, Url, sqlite_url

FLOWER_USER = "flower"
SANDBOX_NETWORK = IPv4Network("10.213.0.0/20")


class QuotaPolicy(StrEnum):
    """What happens to a request for one more running sandbox than the quota allows."""

    # The request is rejected.
    REJECT = "reject"
    # The user's oldest running sandboxes are paused, and named in the response.
    PAUSE_OLDEST = "pause_oldest"


@dataclass(frozen=True)
class StoredQuotas:
    """The limits of what is stored for each user; 0: no limit."""

    # Conversations that are not deleted, and those that are being started.
    conversations: int = 0
    events: int = 0
    event_bytes: int = 0


@dataclass(frozen=True)
class Quotas:
    """The limits of each user; 0: no limit."""

    # Sandboxes whose desired state is RUNNING.
    running: int = 0
    # Sandboxes that are not deleted.
    sandboxes: int = 0
    # Sandboxes created within 60 seconds, deleted or not.
    creates_per_minute: int = 0
    policy: QuotaPolicy = QuotaPolicy.REJECT
    stored: StoredQuotas = StoredQuotas()

    def __bool__(self) -> bool:
        """Whether there is a limit of sandboxes. The limits in `stored` do not count."""
        return bool(self.running or self.sandboxes or self.creates_per_minute)


NO_QUOTAS = Quotas()
# Limits of the prefix length of a node's sandbox network. A bridge has at most 1,023 ports.
LONGEST_PREFIX, SHORTEST_PREFIX = 28, 16
LEVELS = "(?i)^(debug|info|warning|error|critical)$"


def renamed(old: str, new: str, default: Any, **constraints: Any) -> Any:
    """A setting read from `AW_<new>`, or for one release from `AW_<old>`, its former name."""
    return Field(default, validation_alias=AliasChoices(f"AW_{new}", f"AW_{old}", new.lower()), **constraints)


class Settings(FileSettings):
    """The `AW_` variables of the environment and of `var/env`. The environment takes precedence."""

    model_config = SettingsConfigDict(
        env_prefix="AW_", env_file="var/env", extra="ignore", frozen=True, hide_input_in_errors=True
    )

    var_dir: Path = Field(Path("var"), description="Run-time state of the single-machine default")
    database_url: DatabaseUrl = Field("", description="SQLAlchemy URL; empty: SQLite in the var directory")
    redis_url: BrokerUrl = Field("", description="Broker URL; empty: the embedded broker's socket in the var directory")
    secret_keys: SecretStr = Field(
        SecretStr(""), description="Fernet keys, comma-separated: the first writes, all read; empty: var/secret.key"
    )
    host: Host = Field("127.0.0.1", min_length=1, description="Address the API listens on")
    port: int = Field(3000, ge=1, le=65535, description="Port the API listens on")
    network_isolation: bool = Field(
        default=True,
        description="Sandboxes have a network and firewall rules of their own; off: for machines without nftables",
    )
    sandbox_addresses: IPv4Network | None = Field(
        None,
        description="Private network of a node's sandboxes; its first address is the node's; empty: 10.213.0.0/20, or "
        "docker0's without isolation",
    )
    model_servers: ModelServers = Field(
        "", description="Model servers on private addresses that sandboxes may reach, address:port, comma-separated"
    )
    web_url: PublicUrl = Field("", description="The service's URL for its users; empty: from host and port")
    canvas_dir: str = Field("", description="Directory of the web UI; empty: canvas in the var directory")
    flower_port: int = Field(5555, ge=1, le=65535, description="Port that Flower listens on, at 127.0.0.1")
    flower_url: Url = Field("", description="URL of a Flower on another machine, with its login; empty: this machine's")
    client_port: ClientPort = Field(
        3002, validate_default=True, description="Port for clients with a sandbox's key, to its agent server; 0: none"
    )
    client_url: Url = Field("", description="URL of the client port; empty: from the host of a request, and the port")
    sandbox_api_url: Url = Field("", description="The API's URL for nodes' doors; empty: this machine's host and port")
    door_ca: str = Field("", description="Certificate authority of the nodes' doors, a file; empty: they have no TLS")
    default_sandbox_image: str = Field("agent-workspace/sandbox:1.58.2", min_length=1, description="First spec's image")
    max_body_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="Max request body, bytes")
    max_webhook_bytes: int = Field(32 * 1024 * 1024, ge=1024, description="Max webhook body, bytes")
    max_connections: int = Field(
        4096, ge=1, description="Max concurrent connections of each API process; further requests get a 503"
    )
    head_seconds: float = Field(20.0, gt=0, description="Max time for a request's line and headers, seconds")
    body_seconds: float = Field(
        120.0, gt=0, description="Max time for a request's body, seconds; bodies for sandboxes have none"
    )
    body_bytes_per_second: int = Field(
        512, ge=0, description="Min rate of a request's body, bytes per second, in each 10 s; 0: none"
    )
    trusted_proxies: Networks = Field(
        "127.0.0.1,::1", description="Networks of proxies whose X-Forwarded-For and -Proto count; empty: none"
    )
    rate_logins: int = Field(30, ge=0, description="Max logins of an address in a minute; 0: no limit")
    rate_device_starts: int = Field(30, ge=0, description="Max device logins that an address may start in a minute")
    rate_device_polls: int = Field(600, ge=0, description="Max polls of device logins of an address in a minute")
    rate_keyless: int = Field(
        3000, ge=0, description="Max other requests of an address in a minute that need no key, such as pages"
    )
    rate_wrong_keys: int = Field(
        600, ge=0, description="Requests of an address in a minute with a wrong key or none that get a 401, not a 429"
    )
    rate_webhooks: int = Field(1200, ge=0, description="Max webhooks of a sandbox in a minute; 0: no limit")
    user_streams: int = Field(100, ge=1, description="Max streams of a user in each API process")
    user_websockets: int = Field(200, ge=1, description="Max websockets of a user in each API process")
    user_proxied: int = Field(500, ge=1, description="Max open requests of a user to sandboxes in each API process")
    user_waiting: int = Field(250, ge=1, description="Max waiting requests of a user in each API process")
    user_downloads: int = Field(16, ge=1, description="Max downloads of a user in each API process")
    max_streams: int = Field(1500, ge=1, description="Max streams in each API process")
    max_websockets: int = Field(1500, ge=1, description="Max websockets in each API process")
    max_proxied: int = Field(2000, ge=1, description="Max open requests to sandboxes in each API process")
    max_downloads: int = Field(64, ge=1, description="Max downloads in each API process")
    republish_seconds: float = Field(
        5.0, gt=0, le=15, description="Max time until a worker must start a published job, seconds"
    )
    list_cache_mb: int = renamed(
        "LISTS_MEMORY_MB", "LIST_CACHE_MB", 32, ge=0, description="Response cache of lists per API process, MB; 0: none"
    )
    quota_running: int = Field(0, ge=0, description="Max running sandboxes of a user; 0: no limit")
    quota_sandboxes: int = Field(0, ge=0, description="Max sandboxes of a user; 0: no limit")
    quota_creates_per_minute: int = Field(0, ge=0, description="Max sandboxes a user creates in a minute; 0: no limit")
    quota_policy: QuotaPolicy = Field(
        QuotaPolicy.REJECT, description="At the limit of running sandboxes: reject, or pause_oldest"
    )
    quota_conversations: int = Field(0, ge=0, description="Max conversations of a user; 0: no limit")
    quota_events: int = Field(0, ge=0, description="Max stored events of a user; 0: no limit")
    quota_event_bytes: int = Field(0, ge=0, description="Max bytes of stored events of a user; 0: no limit")
    wake_seconds: float = Field(60.0, gt=0, description="Max time that a request waits for its sandbox to run, seconds")
    wake_max_waiting: int = renamed(
        "WAKE_MOST_HELD", "WAKE_MAX_WAITING", 1000, ge=0, description="Max waiting requests in each API process"
    )
    cors_origins: Origins = Field("", description="Origins whose pages may call the API, comma-separated; empty: none")
    git_hosts: GitHosts = Field(
        "", description="Git hosts that may be private or without https, comma-separated, optionally with a port"
    )
    traces_url: Url = Field("", description="OTLP receiver for traces, as http://127.0.0.1:4318/v1/traces; empty: none")
    log_level: str = Field("INFO", pattern=LEVELS, description="DEBUG, INFO, WARNING or ERROR")
    log_format: str = Field("console", pattern="^(console|json)$", description="console or json")

    @field_validator("var_dir", "sandbox_addresses", mode="before")
    @classmethod
    def _or_default(cls, value: object, info: ValidationInfo) -> object:
        return value or cls.model_fields[str(info.field_name)].default

    @field_validator("sandbox_addresses")
    @classmethod
    def _is_usable(cls, network: IPv4Network | None) -> IPv4Network | None:
        if network is None:
            return None
        if network.is_global or any(map(network.overlaps, NEVER)):
            raise ValueError("not a private network: use one such as 10.213.0.0/20")
        if not SHORTEST_PREFIX <= network.prefixlen <= LONGEST_PREFIX:
            raise ValueError(f"use a prefix between /{SHORTEST_PREFIX} and /{LONGEST_PREFIX}")
        return network

    @cached_property
    def sandbox_network(self) -> IPv4Network:
        """The network of a node's sandboxes, if network isolation is on."""
        return self.sandbox_addresses or SANDBOX_NETWORK

    @cached_property
    def sandbox_gateway(self) -> str:
        """The node's address in that network."""
        return str(self.sandbox_network[1])

    @cached_property
    def database(self) -> str:
        """The SQLAlchemy URL in force, with psycopg 3 as PostgreSQL's driver."""
        url = self.database_url or sqlite_url(self.var_dir.absolute() / "agent-workspace.db")
        for short in ("postgres://", "postgresql://"):
            url = url.replace(short, "postgresql+psycopg://", 1) if url.startswith(short) else url
        return url

    @cached_property
    def broker(self) -> str:
        """The kombu URL in force."""
        if self.redis_url.startswith("rediss://") and "ssl_cert_reqs=" not in self.redis_url:
            # By default, kombu does not verify certificates.
            return f"{self.redis_url}{'&' if '?' in self.redis_url else '?'}ssl_cert_reqs=required"
        return self.redis_url or f"redis+socket://{self.broker_socket}"

    @cached_property
    def broker_socket(self) -> Path:
        return self.var_dir.absolute() / "run" / "broker.sock"

    @cached_property
    def workers_dir(self) -> Path:
        """The directory in which this machine's workers signal that they are alive."""
        return self.var_dir.absolute() / "run" / "workers"

    def readiness_file(self, process: str) -> Path:
        """The file that exists once a worker has sent its node's heartbeat and takes jobs. A restart waits for it."""
        return self.workers_dir / f"{process}.works"

    @cached_property
    def egress_folder(self) -> Path:
        """The folder in which this node's worker writes, for the egress proxy, what sandboxes may reach."""
        return self.var_dir.absolute() / "run" / "egress" / self.sandbox_gateway

    @cached_property
    def metrics_dir(self) -> Path:
        """The directory of the counter files of this machine's processes."""
        return self.var_dir.absolute() / "run" / "metrics"

    @cached_property
    def canvas(self) -> Path:
        """The directory of the web UI, if it is installed."""
        return Path(self.canvas_dir).absolute() if self.canvas_dir else self.var_dir.absolute() / "canvas"

    @cached_property
    def public_url(self) -> str:
        """The service's URL for people, without a trailing slash."""
        return (self.web_url or f"http://{in_url(self.host)}:{self.port}").rstrip("/")

    @cached_property
    def api_url(self) -> str:
        """The API's URL for a node's door, without a trailing slash."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return (self.sandbox_api_url or f"http://{in_url(host)}:{self.port}").rstrip("/")

    @cached_property
    def git_host_list(self) -> frozenset[str]:
        return frozenset(_listed(self.git_hosts))

    @cached_property
    def cors_origin_list(self) -> list[str]:
        """`cors_origins` as a list, in the form that browsers send."""
        return [origin.rstrip("/") for origin in _listed(self.cors_origins)]

    @cached_property
    def quotas(self) -> Quotas:
        return Quotas(
            self.quota_running,
            self.quota_sandboxes,
            self.quota_creates_per_minute,
            self.quota_policy,
            StoredQuotas(self.quota_conversations, self.quota_events, self.quota_event_bytes),
        )

    @cached_property
    def vault_keys(self) -> list[str]:
        """The secret keys in force; the first one writes.

        Raises:
            FileNotFoundError: none is configured, and `agent-workspace migrate` has not created one.
        """
        text = self.secret_keys.get_secret_value() or self.secret_key_file.read_text()
        return [key.strip() for key in text.replace("\n", ",").split(",") if key.strip()]

    @property
    def secret_key_file(self) -> Path:
        """The file of the generated secret key."""
        return self.var_dir / "secret.key"

    @property
    def admin_key_file(self) -> Path:
        """The file of the first user's API key."""
        return self.var_dir / "admin.key"

    @property
    def metrics_key_file(self) -> Path:
        """The file of the key that opens only `/metrics`."""
        return self.var_dir / "metrics.key"


def _listed(text: str) -> list[str]:
    return split_list(text.lower())
