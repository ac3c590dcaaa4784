"""What the farm needs of its host, looked at before anything starts. Rule: each finding is one sentence with its fix.

Non-goals: what the provider's root helper needs (it reports that itself when it starts; `run_checks` asks it too).
"""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import asdict

from dart_server.errors import FarmConfigError
from dart_server.pool.admission import HostReadings, SystemHostMonitor, estimate_capacity
from dart_server.process.checks import Check, nearest_existing, of_process, snapshot_place
from dart_server.settings import FarmSettings

MIB = 1024**2
HOST_RESERVE_MIB = 512
"""Memory that must be free beside one desktop's limit."""


def require(settings: FarmSettings) -> None:
    """Raises `FarmConfigError` with the first thing that is missing."""
    on_disk = [snapshot_place(settings)] if settings.provider not in ("sim", "docker") else []
    for check in (*on_disk, *_own_checks(settings)):
        if not check.ok:
            raise FarmConfigError(f"{check.name}: {check.detail} {check.fix}")


def run_checks(settings: FarmSettings) -> list[Check]:
    """Everything that was looked at, the provider's own answer included."""
    found = [*of_process(settings), *_host_checks(settings), *_own_checks(settings)]
    if settings.provider != "sim":
        now = SystemHostMonitor(settings.snapshot_dir).read()
        memory_mib, disk_mib = settings.reserve_memory_mib, settings.reserve_disk_mib
        found.append(
            capacity_check(settings.max_desktops, now, reserve_memory_mib=memory_mib, reserve_disk_mib=disk_mib)
        )
    return [*found, asyncio.run(_provider_check(settings))]


def capacity_check(max_desktops: int, now: HostReadings, *, reserve_memory_mib: int, reserve_disk_mib: int) -> Check:
    """Whether the host bears as many desktops of the usual size as the farm may make."""
    number = estimate_capacity(
        now, reserve_memory_bytes=reserve_memory_mib * MIB, reserve_files_bytes=reserve_disk_mib * MIB
    )
    detail = f"{max_desktops} may be made, this host bears about {number} now."
    fix = f"Claims would wait for the host. Lower DART_MAX_DESKTOPS to {max(1, number)}, or give the host more memory."
    return Check("desktops", number >= max_desktops, detail, fix)


def installed_images(settings: FarmSettings) -> list[dict[str, str]]:
    """Name, digest and path of every image under the home directory."""
    found = []
    for current in sorted((settings.home / "images").glob("*/current")):
        manifest = current / "manifest.json"
        try:
            digest = str(json.loads(manifest.read_text()).get("digest", current.resolve().name))
        except (OSError, ValueError, AttributeError):
            continue
        found.append({"name": current.parent.name, "digest": digest, "path": str(current.resolve())})
    return found


def _host_checks(settings: FarmSettings) -> list[Check]:
    """What the root helper of live desktops, or the container engine, needs of this host."""
    if settings.provider == "docker":
        from dart_server.providers.docker.engine import run_checks as examine_docker

        return [Check(**asdict(check)) for check in examine_docker()]
    if settings.provider == "libvirt":
        from dart_server.providers.libvirt.engine import run_checks as examine_libvirt

        return [Check(**asdict(check)) for check in examine_libvirt(settings.libvirt_uri)]
    if settings.provider != "runc":
        return []
    from dart_server.hostd import doctor

    return [Check(**asdict(check)) for check in doctor.run_checks(settings.runtime_dir, settings.home)]


def _own_checks(settings: FarmSettings) -> list[Check]:
    if settings.provider == "sim":
        return [Check("provider", True, "sim needs nothing of the host")]
    needed = [_images(settings), _memory(settings)]
    return needed if settings.provider == "docker" else [*needed, _space(settings)]


def _images(settings: FarmSettings) -> Check:
    names = [image["name"] for image in installed_images(settings)]
    detail = ", ".join(names) if names else f"no desktop image is installed under {settings.home / 'images'}."
    return Check(
        "images",
        bool(names),
        detail,
        "Run `make setup`, or `dart-farm images build basic`, or set DART_HOME to where they are.",
    )


def _memory(settings: FarmSettings) -> Check:
    import psutil

    available_mib = int(psutil.virtual_memory().available / MIB)
    needed_mib = settings.desktop_memory_mib + HOST_RESERVE_MIB
    fix = "Free some, or lower DART_DESKTOP_MEMORY_MIB."
    return Check("memory", available_mib >= needed_mib, f"{available_mib} MiB available, {needed_mib} MiB needed.", fix)


def _space(settings: FarmSettings) -> Check:
    place = nearest_existing(settings.snapshot_dir)
    free = shutil.disk_usage(place).free
    quota = settings.snapshot_quota_bytes
    fix = "Free some, lower DART_SNAPSHOT_QUOTA_BYTES, or set DART_SNAPSHOT_DIR to another disk."
    detail = f"{free // MIB} MiB free on {place}, the quota is {quota // MIB} MiB."
    return Check("snapshot space", free >= quota, detail, fix)


async def _provider_check(settings: FarmSettings) -> Check:
    from dart_server.providers.base import ProviderError
    from dart_server.providers.factory import create_provider

    provider = create_provider(settings)
    try:
        await provider.start()
    except ProviderError as error:
        return Check(f"provider {settings.provider}", False, str(error), error.hint)
    has = provider.capabilities
    await provider.aclose()
    names = [name for name in ("memory_snapshot", "fork", "restore_in_place", "tunnel") if getattr(has, name)]
    told = "can do " + (", ".join(names) or "nothing beyond booting")
    return Check(f"provider {settings.provider}", True, told + (f", on {has.accelerator}" if has.accelerator else ""))
