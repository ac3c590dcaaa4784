"""Every knob of the farm, from `DART_…` variables or keyword arguments. Rule: wrong values fail here, before anything starts.

Sizes are bytes, or MiB where the name says so; times are seconds.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from dart_server.providers.egress import Destination, parse_network
from dart_server.wire.paths import KEY_FILE, LOCK_FILE, data_dir, default_runtime_dir, default_state_dir

GIB = 1024**3


def default_snapshot_dir() -> Path:
    """Memory-backed where the host has it: `/dev/shm/dart-<uid>`."""
    shm = Path("/dev/shm")
    return (shm if shm.is_dir() else Path(tempfile.gettempdir())) / f"dart-{os.getuid()}"


class FarmSettings(BaseSettings):
    """Settings of one farm process."""

    model_config = SettingsConfigDict(env_prefix="DART_", extra="ignore", frozen=True)

    provider: Literal["runc", "docker", "libvirt", "sim"] = "runc"
    """What runs desktops: `runc` or `docker` containers, `libvirt` virtual machines, or `sim` for simulated ones without pixels."""
    libvirt_uri: str | None = None
    """None: `qemu:///system` for root, `qemu:///session` for all others."""
    sim_mean_life_steps: float | None = Field(default=None, ge=1)
    """Provider sim only: its desktops die at random steps, on average at one in so many; None: never."""
    max_desktops: int = Field(default=4, ge=1, le=4096)
    """Live desktops at once, leased or not."""
    warm_desktops: int = Field(default=1, ge=0, le=4096)
    """Free desktops kept ready at the booted base, for shapes that were asked for lately. With a provider that restores nothing in place
    they are the standby that a reset takes from."""
    standby_desktops: int = Field(default=0, ge=0, le=4096)
    """Frozen copies made ahead of need, of what claims and resets ask for again and again: who asks next only has one thawed.
    Providers that cannot freeze keep them running."""
    refill_parallel: int | None = Field(default=None, ge=1, le=256)
    """Copies made ahead of need at the same time; None: all but one of `parallel_provider_calls`, so that a claim never waits for them."""
    priority_ageing_s: float = Field(default=60.0, gt=0)
    """Claims of a lower priority that wait this long gain a point on the others."""
    gang_hold_s: float = Field(default=30.0, gt=0)
    """A gang that comes first but does not fit has what becomes free kept for it this long, at first."""
    claim_streams_per_key: int = Field(default=16, ge=1)
    """Event streams of claims that one key may have open."""
    claim_event_interval_s: float = Field(default=1.0, gt=0)
    """How often such a stream looks for a new position."""
    home: Path = Field(default_factory=data_dir)
    """Images and downloaded files: `$XDG_DATA_HOME/dart`, else `~/.local/share/dart`."""
    runtime_dir: Path = Field(default_factory=default_runtime_dir)
    """Socket, lock and log."""
    state_dir: Path = Field(default_factory=lambda given: default_state_dir(given["runtime_dir"]))
    """Database, admin key and the root of the tokens: what must outlive the farm."""
    snapshot_dir: Path = Field(default_factory=default_snapshot_dir)
    """Where snapshots and what desktops write are kept: in memory when it is on a tmpfs, else on that disk."""
    desktops_without_farm_s: float = Field(default=60.0, ge=1, le=3600)
    """Provider runc: how long desktops and snapshots live while no farm runs, as after `kill -9`. A farm that starts within it takes them
    over; after it the root helper removes them and ends. The default is the time to live of a lease whose client asks for none."""
    snapshot_quota_bytes: int = Field(default=4 * GIB, ge=1)
    """What all snapshots together may take; the ones that were used longest ago are evicted."""
    quarantine_bytes: int = Field(default=GIB // 2, ge=0)
    """Room, beside the quota, for snapshots that did not restore, the latest ones; 0 keeps none."""
    desktop_memory_mib: int = Field(default=2048, ge=128)
    """Memory of one desktop; beyond it the kernel ends processes inside."""
    desktop_pids: int = Field(default=1024, ge=64)
    """Processes and threads of one desktop."""
    desktop_cpus: float = Field(default=2.0, gt=0)
    """Processors that one desktop may use."""
    desktop_disk_mib: int = Field(default=1024, ge=64)
    """What one desktop may write."""
    egress: tuple[str, ...] = ()
    """Destinations outside that desktops may reach, each `HOST:PORT`, by a proxy inside; none by default. JSON in the environment:
    `DART_EGRESS='["pypi.org:443"]'`. Provider runc only."""
    egress_networks: tuple[str, ...] = ()
    """Networks that are not public to which names in `egress` may lead, each `ADDRESS/BITS`. An address that `egress` itself names needs
    none."""
    parallel_provider_calls: int = Field(default=4, ge=1)
    """Boots, restores and snapshots that run at the same time."""
    idle_shutdown_s: float = Field(default=300.0, gt=0)
    """An embedded farm without leases and requests stops itself after this long."""
    tick_interval_s: float = Field(default=1.0, gt=0)
    """How often expiry is looked at."""
    probe_interval_s: float = Field(default=10.0, gt=0)
    """How often free desktops are looked at."""
    probe_failures: int = Field(default=3, ge=1)
    """A free desktop that does not answer so many looks in a row is quarantined or replaced; a leased one has failed then."""
    quarantine_desktops: int = Field(default=1, ge=0)
    """Desktops that failed and are kept, of `max_desktops`, for a person to look at; 0 keeps none."""
    quarantine_ttl_s: float = Field(default=3600.0, gt=0)
    """How long they are kept."""
    reserve_memory_mib: int = Field(default=512, ge=0)
    """Memory of the host that must stay free beside every desktop that is made, what lies in a snapshot directory in memory included."""
    reserve_disk_mib: int = Field(default=256, ge=0)
    """Room that must stay free in the snapshot directory."""
    max_load_per_cpu: float = Field(default=32.0, gt=0, allow_inf_nan=False)
    """No desktop more is made while the host's load over a minute is above this for each processor."""
    uds: Path | None = None
    """Unix socket to serve on in place of TCP."""
    host: str = "127.0.0.1"
    """Address to serve on; beyond loopback the farm demands TLS."""
    port: int = Field(default=8700, ge=0, le=65535)
    """TCP port to serve on; 0: a free one."""
    tls_cert: Path | None = None
    """Certificate chain, PEM. With it the farm speaks HTTPS (TLS 1.2 or later) and may listen beyond loopback."""
    tls_key: Path | None = None
    """Its private key, PEM; None: it is in the certificate's file."""
    insecure_plain_http: bool = False
    """Listen beyond loopback without TLS: keys and screens cross the network readable."""
    allowed_hosts: tuple[str, ...] = ()
    """Names of this farm beside `localhost` and `host`, as clients write them."""
    cors_origins: tuple[str, ...] = ()
    """Origins (`https://HOST[:PORT]`) whose pages may call from a browser; none by default."""
    max_connections: int = Field(default=2000, ge=8)
    """Open connections; also kept below what this process may open."""
    max_websockets: int = Field(default=1024, ge=1)
    """Open WebSockets."""
    max_websockets_per_key: int = Field(default=512, ge=1)
    """Open WebSockets of one key."""
    max_requests_per_key: int = Field(default=512, ge=1)
    """Requests of one key under way at the same time, long polls included."""
    requests_per_s_per_key: float = Field(default=1000.0, gt=0)
    """Keys of scope `admin` have no limit of their own."""
    requests_per_s_without_key: float = Field(default=100.0, gt=0)
    """Of one address, requests that bring no valid key, after ten seconds' worth at once; eight times as many of all addresses together."""
    max_leases_per_key: int = Field(default=64, ge=1)
    """Leases that a key without a number of its own (`max_leases`) may hold at a time. Keys of scope `admin` have no limit."""
    db_url: str | None = None
    """None: SQLite in the state directory."""
    history_days: float = Field(default=30.0, ge=0)
    """Events, ended leases, keys and desktops that are gone are forgotten after this long; 0 keeps them however old they are."""
    history_events: int = Field(default=10_000_000, ge=0)
    """Of more events the oldest are forgotten, with what ended before them: some three gigabytes. 0: as many as come."""
    json_body_limit_bytes: int = Field(default=1024**2, ge=1024)
    """Also of one message that a client sends on a WebSocket."""
    file_body_limit_bytes: int = Field(default=256 * 1024**2, ge=1024)
    """The largest file that a request may write into a desktop or read from it."""
    max_file_bytes_in_flight_per_key: int = Field(
        default_factory=lambda given: max(GIB // 2, 2 * given.get("file_body_limit_bytes", 0)), ge=1024
    )
    """What requests of one key may hold in the farm's memory at the same time, of files on their way into its desktops and out."""
    max_file_bytes_in_flight: int = Field(
        default_factory=lambda given: max(2 * GIB, 4 * given.get("max_file_bytes_in_flight_per_key", 0)), ge=1024
    )
    """What all keys may hold."""
    log_format: Literal["text", "json"] = "text"
    """Form of the log lines on standard error."""
    traces: Literal["off", "otlp"] = "off"
    """OpenTelemetry traces (extra `otel`), sent where `OTEL_EXPORTER_OTLP_ENDPOINT` says."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important lines that are written."""

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not re.fullmatch(r"https?://[^/*?#@\s]+", origin):
                raise ValueError(f"{origin} is no origin; write https://HOST or https://HOST:PORT")
        return origins

    @model_validator(mode="after")
    def _tls_is_whole(self) -> FarmSettings:
        if self.tls_key is not None and self.tls_cert is None:
            raise ValueError("tls_key is given without tls_cert")
        if self.tls_cert is not None and self.uds is not None:
            raise ValueError("tls_cert: a Unix socket has no TLS; listen on a port")
        return self

    @field_validator("egress")
    @classmethod
    def _named(cls, egress: tuple[str, ...]) -> tuple[str, ...]:
        for text in egress:
            Destination.parse(text)
        return egress

    @field_validator("egress_networks")
    @classmethod
    def _networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for text in networks:
            parse_network(text)
        return networks

    @model_validator(mode="after")
    def _egress_is_possible(self) -> FarmSettings:
        if self.egress and self.provider != "runc":
            raise ValueError(f"egress: desktops of the provider {self.provider} reach nothing outside; only runc's can")
        return self

    @model_validator(mode="after")
    def _a_file_fits(self) -> FarmSettings:
        if not self.file_body_limit_bytes <= self.max_file_bytes_in_flight_per_key <= self.max_file_bytes_in_flight:
            raise ValueError(
                "DART_FILE_BODY_LIMIT_BYTES, DART_MAX_FILE_BYTES_IN_FLIGHT_PER_KEY and DART_MAX_FILE_BYTES_IN_FLIGHT: "
                "each is at most the next; raise the later ones"
            )
        return self

    @model_validator(mode="after")
    def _warm_fits(self) -> FarmSettings:
        if self.warm_desktops > self.max_desktops:
            raise ValueError(f"warm_desktops ({self.warm_desktops}) is more than max_desktops ({self.max_desktops})")
        return self

    @property
    def refills_at_once(self) -> int:
        return self.refill_parallel or max(1, self.parallel_provider_calls - 1)

    @property
    def database_url(self) -> str:
        return self.db_url or f"sqlite:///{self.state_dir / 'farm.db'}"

    @property
    def socket_path(self) -> Path:
        return self.runtime_dir / "farm.sock"

    @property
    def key_path(self) -> Path:
        return self.state_dir / KEY_FILE

    @property
    def secret_path(self) -> Path:
        return self.state_dir / "farm.secret"

    @property
    def lock_path(self) -> Path:
        return self.runtime_dir / LOCK_FILE

    @property
    def log_path(self) -> Path:
        return self.runtime_dir / "farm.log"
