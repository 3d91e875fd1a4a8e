"""The configuration both processes share. The environment is read here and in `worker.settings` only."""

from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.quota_limits import QuotaPolicy, Quotas


def renamed(old: str, new: str, default: Any, **constraints: Any) -> Any:
    """A setting that is read from `AW_<new>`, or from `AW_<old>`, its former name, for one release."""
    return Field(default, validation_alias=AliasChoices(f"AW_{new}", f"AW_{old}", new.lower()), **constraints)


class Settings(BaseSettings):
    """Every variable begins with `AW_`; `var/env` may hold them, the environment wins."""

    model_config = SettingsConfigDict(env_prefix="AW_", env_file="var/env", extra="ignore", frozen=True)

    var_dir: Path = Field(Path("var"), description="Run-time state of the single-machine default")
    database_url: str = Field("", description="SQLAlchemy URL; empty: SQLite in the var directory")
    redis_url: str = Field("", description="Broker URL; empty: the embedded broker's socket in the var directory")
    secret_keys: SecretStr = Field(
        SecretStr(""),
        description="Fernet keys, comma-separated: the first writes, all read; empty: var/secret.key",
    )
    host: str = Field("127.0.0.1", description="Address the API listens on")
    port: int = Field(3000, ge=1, le=65535, description="Port the API listens on")
    gateway_host: str = Field(
        "auto", description="Second address the API listens on, for sandboxes; auto: docker0's; empty: none"
    )
    web_url: str = Field("", description="The service's URL as its users type it; empty: from host and port")
    canvas_dir: str = Field("", description="Where the web page was unpacked; empty: canvas in the var directory")
    sandbox_api_url: str = Field(
        "", description="The API's URL as sandboxes see it; empty: http://host.docker.internal:<port>"
    )
    default_sandbox_image: str = Field("agent-workspace/sandbox:1.58.2", description="Image of the first spec")
    max_body_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="Largest request body, bytes")
    max_webhook_bytes: int = Field(32 * 1024 * 1024, ge=1024, description="Largest webhook body, bytes")
    max_connections: int = Field(
        4096, ge=1, description="Connections that each API process serves at a time; requests beyond are a 503"
    )
    republish_seconds: float = Field(5.0, gt=0, le=15, description="How long a published job may take to be picked up")
    list_cache_mb: int = renamed(
        "LISTS_MEMORY_MB", "LIST_CACHE_MB", 32, ge=0, description="List cache per API process, MB; 0: none"
    )
    quota_running: int = Field(0, ge=0, description="Running sandboxes that a user may have; 0: no limit")
    quota_sandboxes: int = Field(0, ge=0, description="Sandboxes that a user may have; 0: no limit")
    quota_creates_per_minute: int = Field(0, ge=0, description="Sandboxes a user may make in a minute; 0: no limit")
    quota_policy: QuotaPolicy = Field(
        QuotaPolicy.REJECT, description="At the limit of running sandboxes: reject, or pause_oldest"
    )
    wake_seconds: float = Field(60.0, gt=0, description="How long a request waits for its sandbox to run, seconds")
    wake_max_waiting: int = renamed(
        "WAKE_MOST_HELD",
        "WAKE_MAX_WAITING",
        1000,
        ge=0,
        description="Max requests that wait for a sandbox in each API process",
    )
    cors_origins: str = Field(
        "", description="Origins of pages that may ask the API from a browser, comma-separated; empty: none"
    )
    git_hosts: str = Field(
        "", description="Git providers' hosts that may be private, or without https; comma-separated, a port may follow"
    )
    log_level: str = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")
    log_format: str = Field("console", pattern="^(console|json)$", description="console or json")

    @cached_property
    def database(self) -> str:
        """The SQLAlchemy URL in force, with psycopg 3 as PostgreSQL's driver."""
        url = self.database_url or f"sqlite:///{self.var_dir.absolute() / 'agent-workspace.db'}"
        for short in ("postgres://", "postgresql://"):
            url = url.replace(short, "postgresql+psycopg://", 1) if url.startswith(short) else url
        return url

    @cached_property
    def broker(self) -> str:
        """The kombu URL in force."""
        return self.redis_url or f"redis+socket://{self.broker_socket}"

    @cached_property
    def broker_socket(self) -> Path:
        """Where the embedded broker listens."""
        return self.var_dir.absolute() / "run" / "broker.sock"

    @cached_property
    def workers_dir(self) -> Path:
        """Where this machine's workers show that they live."""
        return self.var_dir.absolute() / "run" / "workers"

    @cached_property
    def metrics_dir(self) -> Path:
        """Where this machine's processes count."""
        return self.var_dir.absolute() / "run" / "metrics"

    @cached_property
    def canvas(self) -> Path:
        """Where the web page is, if it was unpacked."""
        return Path(self.canvas_dir).absolute() if self.canvas_dir else self.var_dir.absolute() / "canvas"

    @cached_property
    def public_url(self) -> str:
        """The service's URL for people, without a trailing slash."""
        return (self.web_url or f"http://{self.host}:{self.port}").rstrip("/")

    @cached_property
    def webhook_url(self) -> str:
        """Where agent servers send their webhooks."""
        root = self.sandbox_api_url or f"http://host.docker.internal:{self.port}"
        return root.rstrip("/") + "/api/v1/webhooks"

    @cached_property
    def git_host_list(self) -> frozenset[str]:
        """`git_hosts`, one by one."""
        return frozenset(_listed(self.git_hosts))

    @cached_property
    def cors_origin_list(self) -> list[str]:
        """`cors_origins`, one by one, as browsers write them."""
        return [origin.rstrip("/") for origin in _listed(self.cors_origins)]

    @cached_property
    def quotas(self) -> Quotas:
        """What each user may have."""
        return Quotas(self.quota_running, self.quota_sandboxes, self.quota_creates_per_minute, self.quota_policy)

    @cached_property
    def vault_keys(self) -> list[str]:
        """The secret keys in force, first the one that writes.

        Raises:
            FileNotFoundError: none is configured and `agent-workspace migrate` has not made one.
        """
        text = self.secret_keys.get_secret_value() or self.secret_key_file.read_text()
        return [key.strip() for key in text.replace("\n", ",").split(",") if key.strip()]

    @property
    def secret_key_file(self) -> Path:
        """Where the generated secret key is kept."""
        return self.var_dir / "secret.key"

    @property
    def admin_key_file(self) -> Path:
        """Where the first user's API key is kept."""
        return self.var_dir / "admin.key"

    @property
    def metrics_key_file(self) -> Path:
        """Where the key is kept that opens `/metrics`, and nothing else."""
        return self.var_dir / "metrics.key"


def _listed(text: str) -> list[str]:
    return [item.strip().lower() for item in text.split(",") if item.strip()]
