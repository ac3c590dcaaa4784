"""The container of a desktop, as the engine's API takes it, and what the host sees of it.

The same promises as `hostd.runtime.oci` makes: own pid, ipc, uts, mount, cgroup and network namespaces, loopback only, the same named
capabilities and the same system-call filter; nothing of the host's files. Rule: pure functions of specification and engine facts, and
readers.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dart_server.hostd.evidence.collect import collect
from dart_server.hostd.evidence.layers import ImageLayers
from dart_server.hostd.evidence.queries import HostdQuery
from dart_server.hostd.linux import cgroups, syscalls
from dart_server.hostd.runtime import call_filter, oci
from dart_server.providers.base import DesktopSpec
from dart_server.providers.docker.engine import EngineFacts

LABEL_FARM = "rl.dart.farm"
LABEL_DESKTOP = "rl.dart.desktop"
OVERLAY_STORAGE = frozenset({"overlay2", "overlay"})
"""Storage drivers whose layers the host can tell apart."""
PAUSE_TIMEOUT_S = 5.0
_NOT_FROZEN = "unable to freeze"
"""runc's words for a container whose processes did not stop in time."""
_PAUSE_POLL_S = 0.05
_FILES = 65536
_PROCESSES = 32768
"""Per user; Podman gives itself no more where the host's kernel counts no further."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KILLED = 128 + 9


def options(
    farm: str,
    desktop_id: str,
    spec: DesktopSpec,
    image_id: str,
    argv: tuple[str, ...],
    engine: EngineFacts,
    call_filter: str,
) -> dict[str, Any]:
    """Keyword arguments of the SDK's `containers.create`; `call_filter` is what `system_call_filter` says."""
    from docker.types import LogConfig, Ulimit

    environment = {"PATH": _PATH, "DART_RESOLUTION": f"{spec.resolution[0]}x{spec.resolution[1]}"}
    if spec.font_size is not None:
        environment["DART_FONT_SIZE"] = str(spec.font_size)
    memory_bytes = spec.memory_mib << 20
    files = min(_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    ulimits = [Ulimit(name="nofile", soft=min(4096, files), hard=files), Ulimit(name="core", soft=0, hard=0)]
    if engine.podman:
        # It would ask for more than its own limit, which takes a capability that not every host has; `pids_limit` bounds processes.
        ulimits.append(Ulimit(name="nproc", soft=_PROCESSES, hard=_PROCESSES))
    return {
        "image": image_id,
        "command": list(argv),
        "name": container_name(farm, desktop_id),
        "labels": {LABEL_FARM: farm, LABEL_DESKTOP: desktop_id},
        "hostname": "desktop",
        "environment": environment,
        "network_mode": "none",
        "ipc_mode": "private",
        "cgroupns": "private",
        "cap_drop": ["ALL"],
        "cap_add": [name.removeprefix("CAP_") for name in oci.CAPABILITIES],
        "security_opt": [f"seccomp={call_filter}"],
        "mem_limit": memory_bytes,
        **({"memswap_limit": memory_bytes} if engine.swap else {}),
        "pids_limit": spec.pids,
        "nano_cpus": int(spec.cpus * 1e9),
        "shm_size": oci.SHM_MIB << 20,
        **({"storage_opt": {"size": f"{spec.disk_mib}M"}} if "disk" in engine.limits else {}),
        "ulimits": ulimits,
        "log_config": LogConfig(type="none"),
        "stdin_open": False,
        "tty": False,
    }


def system_call_filter(engine: EngineFacts, place: Path) -> str:
    """What the engine is told of the system-call filter: Docker takes the profile itself, Podman the path of a file, made here."""
    profile = json.dumps(call_filter.profile())
    if not engine.podman:
        return profile
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = place / "seccomp.json"
    path.write_text(profile, encoding="ascii")
    return str(path)


def container_name(farm: str, desktop_id: str) -> str:
    """The engine's name of a desktop."""
    return f"{farm}-{desktop_id}"


def control_group(pid: int) -> str:
    """`/<parent>/<group>` of a process, relative to its hierarchy's root; empty when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return ""
    kind = "" if cgroups.is_unified() else "memory"
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if kind in controllers.split(","):
            return group
    return ""


def evidence(client: Any, *, name: str, namespace_fd: int, queries: Sequence[HostdQuery]) -> bytes:
    """The message of `hostd.evidence.collect` about a container; blocks.

    The process is known by its network namespace, which the caller holds open. Raises OSError when the container has ended.
    """
    entry = client.api.inspect_container(name)
    pid = int(entry["State"]["Pid"] or 0)
    pinned = os.pidfd_open(pid)
    try:
        if os.stat(f"/proc/{pid}/ns/net").st_ino != os.fstat(namespace_fd).st_ino:
            raise ProcessLookupError(f"process {pid} is another")
        group = control_group(pid)

        @contextmanager
        def standing_still() -> Iterator[bool]:
            paused = bool(entry["State"]["Paused"])
            if not paused:
                pause(client, name=name)
            try:
                yield True
            finally:
                if not paused:
                    client.api.unpause(name)

        return collect(queries, pid, lambda: cgroups.group_members(group), image_layers(entry), standing_still)
    finally:
        os.close(pinned)


def pause(client: Any, *, name: str, timeout_s: float = PAUSE_TIMEOUT_S) -> None:
    """Pause a container; blocks. An engine gives up after some hundredths of a second, which a busy host exceeds, so it is asked again."""
    from docker.errors import APIError

    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            client.api.pause(name)
        except APIError as error:
            if _NOT_FROZEN not in str(error) or time.monotonic() > deadline_s:
                raise
            time.sleep(_PAUSE_POLL_S)
        else:
            return


def image_layers(entry: dict[str, Any]) -> ImageLayers:
    """The layers of a container on overlay storage. Docker has one more, with mount points, between the container's and the image's."""
    data = (entry.get("GraphDriver") or {}).get("Data") or {}
    lower = [Path(layer) for layer in str(data.get("LowerDir") or "").split(":") if layer]
    own = [layer for layer in lower if layer.parent.name.endswith("-init")]
    above = [Path(data["UpperDir"])] if data.get("UpperDir") else []
    return ImageLayers([*above, *own], [layer for layer in lower if layer not in own])


def health_counters(state: dict[str, Any], group: str) -> dict[str, Any]:
    """The engine's `State` and the control group's counters, in the form of the root helper's `health`."""
    usage = cgroups.usage(group) if group else cgroups.Usage()
    frozen = state.get("Status") == "paused" or bool(state.get("Paused"))
    running = frozen or state.get("Status") in ("created", "running", "restarting")
    code = int(state.get("ExitCode") or 0)
    return {
        "state": "running" if running else "ended",
        "frozen": frozen,
        "kill_pending": frozen and syscalls.kill_pending(int(state.get("Pid") or 0)),
        "exit_status": None if running else "signal 9" if code == _KILLED else f"exit {code}",
        "memory_bytes": usage.memory_bytes,
        "memory_limit_bytes": usage.memory_limit_bytes,
        "oom_kills": max(usage.oom_kills, int(bool(state.get("OOMKilled")) and not usage.host_oom_kills)),
        "host_oom_kills": usage.host_oom_kills,
        "pids": usage.pids,
        "pids_refused": usage.pids_refused,
        "disk_bytes": 0,
        "disk_free_bytes": 1 << 40,
    }
