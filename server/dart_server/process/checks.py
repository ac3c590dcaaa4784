"""What the farm's own process needs, whatever its provider: places, listening address, certificate, limits, database, clock.

Rule: a check looks and changes nothing, so that it may run beside a farm; each finding is one sentence with its fix, and a
password is never in it. Non-goals: what desktops need of the host (`preflight`, the providers).
"""

from __future__ import annotations

import os
import resource
import socket
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dart_server.errors import FarmConfigError
from dart_server.hostd.layout import ownership_problem
from dart_server.http.ingress.certificate import EXPIRY_WARNING_PERIOD, certificate_expiry
from dart_server.process import instance, listening
from dart_server.settings import FarmSettings
from dart_server.wire.extras import install_command

EARLIEST_S = datetime(2024, 1, 1, tzinfo=UTC).timestamp()
CLOCK_SLACK_S = 5.0
LOWEST_DESCRIPTORS = 1024
CONNECT_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at."""

    name: str
    ok: bool
    detail: str
    fix: str = ""

    def as_dict(self) -> dict[str, str | bool]:
        return asdict(self)


def of_process(settings: FarmSettings) -> list[Check]:
    """Everything of this module, in the order in which to fix it."""
    return [
        _place("runtime directory", settings.runtime_dir, "DART_RUNTIME_DIR"),
        _place("state directory", settings.state_dir, "DART_STATE_DIR"),
        snapshot_place(settings),
        _address(settings),
        _certificate(settings),
        _descriptors(settings),
        *_database_and_clock(settings),
    ]


def nearest_existing(path: Path) -> Path:
    """The path, or the nearest directory above it that is there."""
    while not path.exists():
        path = path.parent
    return path


def _place(name: str, path: Path, variable: str) -> Check:
    fix = f"Set {variable} to a directory of your own."
    if not path.exists():
        able = os.access(nearest_existing(path), os.W_OK | os.X_OK)
        return Check(name, able, f"{path} {'will be made' if able else 'cannot be made'}.", fix)
    status = path.stat()
    if not path.is_dir() or status.st_uid != os.getuid():
        return Check(name, False, f"{path} is no directory of this user's.", fix)
    if status.st_mode & 0o077:
        return Check(name, False, f"{path} is open to other users.", f"Run `chmod 700 {path}`.")
    return Check(name, os.access(path, os.W_OK), str(path), fix)


def snapshot_place(settings: FarmSettings) -> Check:
    """Whether snapshots can be kept where they should be, and nobody else can put something there."""
    path = settings.snapshot_dir
    fix = "Set DART_SNAPSHOT_DIR to a directory of your own."
    problem = None if settings.provider in ("sim", "docker") else ownership_problem(path, os.getuid())
    if problem is not None:
        return Check("snapshot directory", False, f"{problem}.", fix)
    place = nearest_existing(path)
    kind = file_system_of(place)
    able = os.access(place, os.W_OK | os.X_OK) or settings.provider == "sim"
    told = "in memory" if kind in ("tmpfs", "ramfs") else f"on a disk ({kind}); restores are fastest from a tmpfs"
    return Check("snapshot directory", able, f"{path}, {told}.", "Set DART_SNAPSHOT_DIR to a place that you may write.")


def file_system_of(path: Path) -> str:
    """The kind of file system that a directory lies on, as the kernel calls it."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return "unknown"


def _address(settings: FarmSettings) -> Check:
    name = "listening address"
    running = instance.running_pid(settings)
    if running is not None:
        return Check(name, True, f"the farm of process {running} listens already.")
    if settings.uds is not None:
        return _socket_path(name, settings.uds)
    try:
        listening.require_tls(settings)
    except FarmConfigError as error:
        return Check(name, False, str(error))
    where = f"{settings.host}, port {settings.port or 'of its choice'}"
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            asked_for = not {"host", "port"}.isdisjoint(settings.model_fields_set)
            fix = "Choose another with DART_PORT or --port, or end what listens there."
            told = f"{where}: {error.strerror or error}."
            return Check(name, not asked_for, told if asked_for else f"{told} The embedded farm needs none; {fix}", fix)
    return Check(name, True, f"{where} is free.")


def _socket_path(name: str, path: Path) -> Check:
    fix = "Choose another with DART_UDS or --uds."
    if len(os.fsencode(path)) > listening.SOCKET_PATH_LIMIT:
        return Check(name, False, f"{path} is too long for a Unix socket.", fix)
    if path.exists() and not path.is_socket():
        return Check(name, False, f"{path} exists and is not a socket.", fix)
    return Check(name, True, str(path))


def _certificate(settings: FarmSettings) -> Check:
    if settings.tls_cert is None:
        return Check("certificate", True, "none: the farm speaks plain HTTP, on loopback or a socket.")
    try:
        listening.tls_context(settings)
        until = certificate_expiry(settings.tls_cert.read_text(encoding="ascii", errors="replace"))
    except (FarmConfigError, OSError, ValueError) as error:
        return Check("certificate", False, f"{error}", "Set DART_TLS_CERT and DART_TLS_KEY to a matching pair.")
    left = until - datetime.now(UTC)
    if left <= timedelta(0):
        return Check("certificate", False, f"{settings.tls_cert} ended on {until:%Y-%m-%d}.", "Get a new one.")
    notice = " Get a new one soon." if left < EXPIRY_WARNING_PERIOD else ""
    return Check("certificate", True, f"{settings.tls_cert}, good until {until:%Y-%m-%d}.{notice}")


def _descriptors(settings: FarmSettings) -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * settings.max_connections + listening.SPARE_DESCRIPTORS
    unbounded = hard == resource.RLIM_INFINITY
    allowed = settings.max_connections if unbounded else min(settings.max_connections, (hard - 128) // 2)
    detail = f"{'no limit' if unbounded else hard}, enough for {allowed} of {settings.max_connections} connections."
    more = "" if unbounded or hard >= wanted else f" `ulimit -Hn {wanted}` gives room for all."
    enough = unbounded or hard >= LOWEST_DESCRIPTORS
    return Check("open files", enough, detail + more, f"Raise the limit (`ulimit -Hn`) to {wanted}.")


def _database_and_clock(settings: FarmSettings) -> list[Check]:
    from sqlalchemy import create_engine, text
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

    name = "database"
    try:
        url = make_url(settings.database_url)
    except ArgumentError:
        return [
            Check(name, False, "DART_DB_URL is no database URL.", "Write it as postgresql+psycopg://USER@HOST/NAME.")
        ]
    shown = url.render_as_string(hide_password=True)
    local = Path(url.database or "") if url.get_backend_name() == "sqlite" else None
    if local is not None and not local.exists():
        able = os.access(nearest_existing(local.parent), os.W_OK | os.X_OK)
        fix = "Set DART_STATE_DIR to a directory of your own."
        return [Check(name, able, f"{shown} {'will be made' if able else 'cannot be made'}.", fix), _clock(None)]
    options = {} if local is not None else {"connect_args": {"connect_timeout": CONNECT_TIMEOUT_S}}
    try:
        engine = create_engine(url, **options)
        try:
            with engine.connect() as connection:
                made = engine.dialect.has_table(connection, "events")
                last = connection.execute(text("SELECT max(at) FROM events")).scalar() if made else None
        finally:
            engine.dispose()
    except (ImportError, NoSuchModuleError) as error:
        return [Check(name, False, f"{shown}: {error}.", f"Install its driver: {install_command('postgres')}.")]
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        fix = "Start the database, or correct DART_DB_URL." if local is None else f"Restore {local}, or move it away."
        return [Check(name, False, f"{shown} cannot be used: {reason.rstrip('.')}.", fix)]
    return [Check(name, True, f"{shown} answers." if made else f"{shown} answers and is empty."), _clock(last)]


def _clock(last_event_s: float | None) -> Check:
    now_s = time.time()
    fix = "Set the clock, and keep it right with NTP: expiry and history go by it."
    if now_s < EARLIEST_S:
        return Check("clock", False, f"it is {datetime.fromtimestamp(now_s, UTC):%Y-%m-%d}, long past.", fix)
    if last_event_s is not None and last_event_s > now_s + CLOCK_SLACK_S:
        ahead_s = last_event_s - now_s
        return Check("clock", False, f"the database's last event is {ahead_s:.0f} s in the future: it went back.", fix)
    return Check("clock", True, f"{datetime.fromtimestamp(now_s, UTC):%Y-%m-%d %H:%M:%S} UTC")
