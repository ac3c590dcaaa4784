"""The machine of a desktop, as libvirt takes it.

Rule: a pure function of what is asked for. Least of everything: one disk, one port for the host's calls, a source of randomness, a
console that is written to a file; no network unless the guest can be reached in no other way, and then one that leads nowhere: the
machine's own, with `restrict=on`, into which the host alone dials, from its loopback. Such a guest has a screen, too, that prefers the size
that was asked for: a session on the machine's own screen takes it over.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, tostring

from dart_server.providers.base import DesktopSpec
from dart_server.providers.libvirt.engine import HostFacts

QEMU_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
PORT_NAME = "rl.dart.control"
NETWORK = "dart0"


@dataclass(frozen=True, slots=True)
class DomainFiles:
    """The files of one machine. `kernel` and `initrd` are None where the disk starts itself, `uefi` where it does so by BIOS."""

    disk: Path
    port: Path
    console: Path
    kernel: Path | None
    initrd: Path | None
    isolated_network: bool
    uefi: Path | None = None


def command_line(spec: DesktopSpec, accelerator: str) -> str:
    """What the kernel of our own images is told."""
    words = ["root=/dev/vda", "rw", "rootfstype=ext4", "init=/usr/sbin/dart-init", "console=ttyS0", "quiet", "panic=-1"]
    words += ["random.trust_cpu=on", "net.ifnames=0", f"dart.port={PORT_NAME}"]
    if accelerator == "tcg":
        words += ["mitigations=off", "no_timer_check"]
    words.append(f"dart.resolution={spec.resolution[0]}x{spec.resolution[1]}")
    if spec.font_size is not None:
        words.append(f"dart.font_size={spec.font_size}")
    return " ".join(words)


def vcpu_count(spec: DesktopSpec, accelerator: str) -> int:
    """Whole processors that hold the limit; an emulated machine has one, which is at most one of the host's."""
    return 1 if accelerator == "tcg" else max(1, math.ceil(spec.cpus))


def screen_kib(width: int, height: int) -> int:
    """Memory of a screen of 32-bit pixels, a power of two as QEMU wants it."""
    return max(16 * 1024, 1 << (width * height * 4 // 1024 - 1).bit_length())


def xml(name: str, spec: DesktopSpec, parts: DomainFiles, host: HostFacts) -> str:
    """The domain, ready to be defined."""
    top = Element("domain", {"type": "kvm" if host.accelerator == "kvm" else "qemu", "xmlns:qemu": QEMU_NAMESPACE})
    SubElement(top, "name").text = name
    SubElement(top, "memory", unit="MiB").text = str(spec.memory_mib)
    SubElement(top, "vcpu").text = str(vcpu_count(spec, host.accelerator))
    system = SubElement(top, "os")
    SubElement(system, "type", arch="x86_64", machine="pc").text = "hvm"
    if parts.kernel is not None:
        SubElement(system, "kernel").text = str(parts.kernel)
        SubElement(system, "initrd").text = str(parts.initrd)
        SubElement(system, "cmdline").text = command_line(spec, host.accelerator)
    if parts.uefi is not None:
        SubElement(system, "loader", type="rom").text = str(parts.uefi)
    SubElement(SubElement(top, "features"), "acpi")
    SubElement(top, "cpu", mode="host-passthrough" if host.accelerator == "kvm" else "maximum")
    SubElement(top, "clock", offset="utc")
    for event in ("on_poweroff", "on_reboot", "on_crash"):
        SubElement(top, event).text = "destroy"
    if host.privileged:
        label = SubElement(top, "seclabel", type="static", model="dac", relabel="no")
        SubElement(label, "label").text = f"+{os.getuid()}:+{os.getgid()}"
    devices = SubElement(top, "devices")
    SubElement(devices, "emulator").text = host.emulator
    disk = SubElement(devices, "disk", type="file", device="disk")
    SubElement(disk, "driver", name="qemu", type="qcow2", cache="unsafe", discard="unmap")
    SubElement(disk, "source", file=str(parts.disk))
    SubElement(disk, "target", dev="vda", bus="virtio")
    channel = SubElement(devices, "channel", type="unix")
    SubElement(channel, "source", mode="bind", path=str(parts.port))
    SubElement(channel, "target", type="virtio", name=PORT_NAME)
    console = SubElement(devices, "serial", type="file")
    SubElement(console, "source", path=str(parts.console))
    SubElement(SubElement(devices, "rng", model="virtio"), "backend", model="random").text = "/dev/urandom"
    SubElement(devices, "controller", type="usb", model="none")
    SubElement(devices, "memballoon", model="none")
    if parts.isolated_network:
        width, height = spec.resolution
        screen = SubElement(SubElement(devices, "video"), "model", type="vga", vram=str(screen_kib(width, height)))
        SubElement(screen, "resolution", x=str(width), y=str(height))
        line = SubElement(top, "qemu:commandline")
        network = f"user,id={NETWORK},restrict=on"
        for word in ("-netdev", network, "-device", f"virtio-net-pci,netdev={NETWORK},bus=pci.0,addr=0x1e"):
            SubElement(line, "qemu:arg", value=word)
    return tostring(top, encoding="unicode")
