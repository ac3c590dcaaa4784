"""The connection to libvirt: calls in threads of its own, its errors as the provider's, and what the host can do.

Rule: one connection, found by its URI (`DART_LIBVIRT_URI`; else the system's for root and the user's own for all others). The bindings
are imported only when a farm uses them. Without KVM (`libvirt_kvm`) machines are emulated (TCG), which is told and never silent.
libvirt must run on this machine: disks and ports are local files.
Non-goals: knowing desktops (`libvirt`), what a machine is made of (`libvirt_domain`).
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit
from xml.etree import ElementTree

from dart_server.providers.base import CapabilityMissing, DesktopGone, HostFault, ProviderError
from dart_server.providers.docker.engine import EngineCheck
from dart_server.providers.libvirt.kvm import kvm_fault
from dart_server.wire.extras import install_command

T = TypeVar("T")
THREADS = 16
_LIBVIRT_FIX = (
    "install and start it (`sudo apt-get install libvirt-daemon-system qemu-system-x86 qemu-utils`), "
    "or set DART_LIBVIRT_URI to the daemon's address, such as qemu:///session"
)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What machines are made with. `accelerator` is `kvm` or `tcg`; `no_kvm_reason` says why it is not KVM, in a sentence's end."""

    version: str
    emulator: str
    accelerator: str
    no_kvm_reason: str
    privileged: bool


def address(given: str | None) -> str:
    """The URI to connect to."""
    return given or ("qemu:///system" if os.geteuid() == 0 else "qemu:///session")


def connect(uri: str | None) -> Any:
    """A connection that answers. Raises CapabilityMissing with the fix."""
    try:
        import libvirt
    except ImportError as error:
        raise CapabilityMissing("libvirt-python is not installed", hint=install_command("libvirt")) from error
    libvirt.registerErrorHandler(lambda *_: None, None)
    try:
        return libvirt.open(address(uri))
    except libvirt.libvirtError as error:
        raise CapabilityMissing(
            f"no libvirt answers on {address(uri)}: {error.get_error_message()}", hint=_LIBVIRT_FIX
        ) from error


def facts(connection: Any) -> HostFacts:
    """Ask libvirt, and try KVM once per process."""
    capabilities = ElementTree.fromstring(connection.getDomainCapabilities(None, platform.machine(), None, "qemu", 0))
    emulator = capabilities.findtext("path") or ""
    number = connection.getLibVersion()
    no_kvm_reason = kvm_fault(emulator)
    return HostFacts(
        version=f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}",
        emulator=emulator,
        accelerator="tcg" if no_kvm_reason else "kvm",
        no_kvm_reason=no_kvm_reason,
        privileged=urlsplit(connection.getURI()).path == "/system",
    )


def run_checks(uri: str | None) -> list[EngineCheck]:
    """What desktops in machines need of this host, in the order in which to fix it."""
    checks = []
    if platform.machine() != "x86_64":
        fix = "run the farm on an x86-64 host"
        checks.append(
            EngineCheck("processor", False, f"{platform.machine()} hosts are not supported by this provider", fix)
        )
    missing = shutil.which("qemu-img") is None
    fix = "install it: `sudo apt-get install qemu-utils`" if missing else ""
    checks.append(EngineCheck("qemu-img", not missing, "not found" if missing else "found", fix))
    try:
        connection = connect(uri)
    except ProviderError as error:
        return [*checks, EngineCheck("libvirt", False, str(error), error.hint)]
    try:
        has = facts(connection)
    except _libvirt_error() as error:
        return [*checks, EngineCheck("libvirt", False, f"it does not know this host's QEMU: {error}", _LIBVIRT_FIX)]
    finally:
        connection.close()
    return [
        *checks,
        EngineCheck("libvirt", True, f"{has.version} on {address(uri)}, {has.emulator}"),
        _accelerator(has),
    ]


def _accelerator(has: HostFacts) -> EngineCheck:
    detail = (
        "KVM" if has.accelerator == "kvm" else f"emulation (TCG, one slow processor per desktop): {has.no_kvm_reason}"
    )
    return EngineCheck("accelerator", True, detail)


def _libvirt_error() -> type[Exception]:
    import libvirt

    error: type[Exception] = libvirt.libvirtError
    return error


class LibvirtConnection:
    """One farm's connection. `start` before the first call, `close` after the last."""

    def __init__(self, uri: str | None) -> None:
        self._uri = uri
        self._connection: Any = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="libvirt")

    async def start(self) -> HostFacts:
        """Connect, and refuse a host that lacks something. Raises CapabilityMissing with the fix."""
        for check in await self.thread(lambda: run_checks(self._uri)):
            if not check.ok:
                raise CapabilityMissing(f"{check.name}: {check.detail}", hint=check.fix)
        if self._connection is None:
            self._connection = await self.thread(lambda: connect(self._uri))
        return await self.run(facts)

    def close(self) -> None:
        """Let go; calls that run are left to end."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def run(self, work: Callable[[Any], T]) -> T:
        """`work(connection)` in a thread. Raises `DesktopGone` for what libvirt does not know, `HostFault` for all else."""
        if self._connection is None:
            raise HostFault("the connection to libvirt was not started")
        return await self.thread(lambda: _translated(work, self._connection))

    async def monitor(self, name: str, command: str) -> str:
        """The answer of a machine's own monitor to a line. Raises `HostFault` when it is an error, `DesktopGone`."""
        import libvirt_qemu

        def ask(connection: Any) -> str:
            human = libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP
            said: str = libvirt_qemu.qemuMonitorCommand(connection.lookupByName(name), command, human)
            return said.strip()

        said = await self.run(ask)
        if said.startswith("Error") or "rror:" in said:
            raise HostFault(f"the machine refused `{command.split()[0]}`: {said[:300]}")
        return said

    async def thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _translated(work: Callable[[Any], T], connection: Any) -> T:
    import libvirt

    try:
        return work(connection)
    except libvirt.libvirtError as error:
        gone = (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID)
        if error.get_error_code() in gone:
            raise DesktopGone(f"libvirt: {error.get_error_message()}") from error
        lost = error.get_error_domain() in (libvirt.VIR_FROM_RPC, libvirt.VIR_FROM_REMOTE)
        raise HostFault(f"libvirt: {error.get_error_message()}", hint=_LIBVIRT_FIX if lost else "") from error
