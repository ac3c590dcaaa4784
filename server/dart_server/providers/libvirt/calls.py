"""What the provider `libvirt` asks of a connection, one function per question.

Rule: blocking; run by the engine's threads, which translate the errors.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from dart_server.providers.base import HostFault


def define_and_start(connection: Any, *, text: str, paused: bool) -> None:
    """Make a machine; one that does not start is not left defined."""
    import libvirt

    domain = connection.defineXML(text)
    try:
        domain.createWithFlags(libvirt.VIR_DOMAIN_START_PAUSED if paused else 0)
    except libvirt.libvirtError as error:
        domain.undefine()
        raise HostFault(f"libvirt could not start the machine: {error.get_error_message()}") from error


def remove(connection: Any, *, name: str) -> None:
    """End and forget a machine."""
    import libvirt

    domain = connection.lookupByName(name)
    if domain.isActive():
        # It may have ended by itself just now; `undefine` tells whether it still runs.
        with suppress(libvirt.libvirtError):
            domain.destroy()
    domain.undefine()


def suspend(connection: Any, *, name: str) -> None:
    """Let a machine stand still; what it has written is in its disk afterwards."""
    connection.lookupByName(name).suspend()


def resume(connection: Any, *, name: str) -> None:
    """Let it go on."""
    connection.lookupByName(name).resume()


def saved_bytes(connection: Any, *, name: str, tag: str) -> int:
    """Memory and devices of a snapshot inside a running machine's disk."""
    import libvirt_qemu

    said = libvirt_qemu.qemuMonitorCommand(connection.lookupByName(name), '{"execute": "query-named-block-nodes"}', 0)
    for node in json.loads(said)["return"]:
        for one in node.get("image", {}).get("snapshots", ()):
            if one["name"] == tag:
                return int(one["vm-state-size"])
    raise HostFault(f"the machine has saved nothing under {tag}")


def is_active(connection: Any, *, name: str) -> bool:
    """Whether the machine runs or stands still."""
    return bool(connection.lookupByName(name).isActive())


def names(connection: Any, *, prefix: str) -> list[str]:
    """Machines of a prefix, without it."""
    found = (domain.name() for domain in connection.listAllDomains())
    return [name.removeprefix(prefix) for name in found if name.startswith(prefix)]


def health_counters(connection: Any, *, name: str) -> dict[str, Any]:
    """State and counters, in the form of the root helper's `health`."""
    import libvirt

    domain = connection.lookupByName(name)
    state, reason = domain.state()
    running = state in (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_BLOCKED, libvirt.VIR_DOMAIN_PAUSED)
    killed = reason in (libvirt.VIR_DOMAIN_SHUTOFF_CRASHED, libvirt.VIR_DOMAIN_SHUTOFF_FAILED)
    limit = domain.maxMemory() * 1024
    resident = 0
    if running:
        with suppress(libvirt.libvirtError):
            resident = domain.memoryStats().get("rss", 0) * 1024
    return {
        "state": "running" if running else "ended",
        "exit_status": None if running else "signal 9" if killed else "power off",
        "memory_bytes": min(resident, limit),
        "memory_limit_bytes": limit,
        "pids_refused": 0,
        "disk_free_bytes": 1 << 40,
    }
