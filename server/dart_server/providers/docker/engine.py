"""The connection to a container engine: calls in threads of its own, its errors as the provider's, and what the engine can do here.

Rule: Docker or Podman by their one API, found as their own tools find it (`DOCKER_HOST`); the SDK is imported only when a farm uses it.
The engine must run on this machine, because the farm enters its containers' network namespaces.
Non-goals: knowing desktops (`docker`), images (`docker_images`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from dart_server.hostd.linux import rlimits
from dart_server.providers.base import CapabilityMissing, DesktopGone, HostFault, ProviderError
from dart_server.wire.extras import install_command

T = TypeVar("T")
CALL_TIMEOUT_S = 60
THREADS = 16
_CAP_SYS_ADMIN = 21
_UNIX = "unix://"
_USUAL_ADDRESS = "unix:///var/run/docker.sock"
_ENGINE_FIX = "install and start one (`sudo apt-get install docker.io`, `sudo systemctl start docker`), or set DOCKER_HOST to its socket"


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine says of itself. `limits`: names of `DesktopSpec` limits that it enforces."""

    version: str
    storage: str
    local: bool
    seccomp: bool
    limits: frozenset[str]
    swap: bool
    """Whether it can bound swap."""
    podman: bool
    """Whether it is Podman: where the two differ."""


@dataclass(frozen=True, slots=True)
class EngineCheck:
    """One need of the host; `fix` is empty when `ok`."""

    name: str
    ok: bool
    detail: str
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def connect(timeout_s: int = CALL_TIMEOUT_S) -> Any:
    """A client of the engine that answers. Raises CapabilityMissing with the fix."""
    try:
        import docker
    except ImportError as error:
        raise CapabilityMissing("the docker SDK is not installed", hint=install_command("docker")) from error
    address = os.environ.get("DOCKER_HOST") or _USUAL_ADDRESS
    try:
        if address.startswith(_UNIX):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(address.removeprefix(_UNIX))
        client = docker.from_env(timeout=timeout_s, max_pool_size=THREADS)
        client.ping()
    except (docker.errors.DockerException, OSError) as error:
        raise CapabilityMissing(f"no container engine answers on {address}", hint=_ENGINE_FIX) from error
    return client


def facts(client: Any) -> EngineFacts:
    """Ask the engine."""
    info = client.info()
    found = {"memory": info.get("MemoryLimit"), "pids": info.get("PidsLimit"), "cpus": info.get("CpuCfsQuota")}
    limits = {name for name, has in found.items() if has}
    if _limits_disk(info):
        limits.add("disk")
    return EngineFacts(
        version=str(info.get("ServerVersion")),
        storage=str(info.get("Driver")),
        local=client.api.base_url.startswith("http+docker://"),
        seccomp=any("seccomp" in option for option in info.get("SecurityOptions") or ()),
        limits=frozenset(limits),
        swap=bool(info.get("SwapLimit")),
        podman=any("podman" in str(part.get("Name")).lower() for part in client.version().get("Components") or ()),
    )


def _limits_disk(info: dict[str, Any]) -> bool:
    """Whether the storage driver keeps a container's writes under a size: btrfs and zfs do, overlay2 on XFS with project quotas."""
    if info.get("Driver") in ("btrfs", "zfs"):
        return True
    place = Path(str(info.get("DockerRootDir", "/var/lib/docker")))
    mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    over = [words for words in mounts if place.is_relative_to(words[1])]
    nearest = max(over, key=lambda words: len(words[1]), default=None)
    return info.get("Driver") == "overlay2" and nearest is not None and nearest[2] == "xfs" and "prjquota" in nearest[3]


def run_checks() -> list[EngineCheck]:
    """What desktops in containers need of this host, in the order in which to fix it."""
    inside = rlimits.has_capability(_CAP_SYS_ADMIN)
    fix = "run the farm as root: the control channel enters the desktops' network namespaces"
    checks = [EngineCheck("privilege", inside, "root" if inside else "not root", "" if inside else fix)]
    try:
        client = connect()
    except ProviderError as error:
        return [*checks, EngineCheck("container engine", False, str(error), error.hint)]
    has = facts(client)
    client.close()
    summary = f"{has.version}, storage {has.storage}, limits {', '.join(sorted(has.limits)) or 'none'}"
    checks.append(EngineCheck("container engine", True, summary))
    if not has.local:
        checks.append(
            EngineCheck(
                "engine location", False, "the engine is on another machine", "set DOCKER_HOST to a Unix socket"
            )
        )
    if not has.seccomp:
        checks.append(EngineCheck("system-call filter", False, "the engine has no seccomp", "install one that has it"))
    lacking = {"memory", "pids", "cpus"} - has.limits
    if lacking:
        fix = "enable these control groups on the kernel command line"
        checks.append(EngineCheck("limits", False, f"the engine cannot bound {', '.join(sorted(lacking))}", fix))
    return checks


class DockerEngine:
    """One farm's connection. `start` before the first call, `close` after the last."""

    def __init__(self) -> None:
        self._client: Any = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="engine")

    async def start(self) -> EngineFacts:
        """Connect, and refuse a host that lacks something. Raises CapabilityMissing with the fix."""
        for check in await self._thread(run_checks):
            if not check.ok:
                raise CapabilityMissing(f"{check.name}: {check.detail}", hint=check.fix)
        if self._client is None:
            self._client = await self._thread(connect)
        return await self.run(facts)

    def close(self) -> None:
        """Let go; calls that run are left to end."""
        if self._client is not None:
            self._client.close()
            self._client = None

    async def run(self, work: Callable[[Any], T]) -> T:
        """`work(client)` in a thread. Raises `DesktopGone` for what the engine does not know, `HostFault` for all else."""
        if self._client is None:
            raise HostFault("the connection to the container engine was not started")
        return await self._thread(lambda: _translated(work, self._client))

    async def _thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _translated(work: Callable[[Any], T], client: Any) -> T:
    from docker.errors import APIError, DockerException, NotFound
    from requests.exceptions import RequestException

    try:
        return work(client)
    except NotFound as error:
        raise DesktopGone(f"the container engine: {error.explanation}") from error
    except APIError as error:
        raise HostFault(f"the container engine refused: {error.explanation or error}") from error
    except (DockerException, RequestException) as error:
        raise HostFault(f"the container engine does not answer: {error}", hint=_ENGINE_FIX) from error
