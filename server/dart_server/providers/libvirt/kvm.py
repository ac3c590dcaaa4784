"""Whether machines run on this host's KVM.

Role: `kvm_fault` lets a machine run for an instant. Rule: KVM counts when a machine got through, not when its device opens: where this host
is a virtual machine itself, the device may be there and be emulated (a boot sector takes seconds), lack what every x86-64 has, or hang
in 64-bit mode. Non-goals: processors other than x86-64.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from pathlib import Path

KVM = Path("/dev/kvm")
KVM_TIMEOUT_S = 3.0
"""Far more than a processor needs for a million instructions (0.2 s emulated by QEMU), far less than an emulated KVM takes."""
SUCCESS_EXIT_CODE = (0x10 << 1) | 1
"""How QEMU ends when the sector writes 0x10 to its debug port."""
SECTOR = bytes.fromhex(
    "fa 31c0 8ed8 8ec0 8ed0 bc007c"  # segments and stack at 0, interrupts off
    "66b801000000 0fa2 f6c101 7474"  # cpuid 1: SSE3, else 0x11 below
    "66b801000080 0fa2 660fbae21d 7365"  # cpuid 80000001h: 64-bit mode, else 0x11
    "bf0010 b90018 31c0 fc f3ab"  # 12 KiB of page tables at 1000h, cleared
    "66c706001003200000 66c706002003300000 66c706003083000000"  # one page of 2 MiB, at its own address
    "66b800100000 0f22d8 0f20e0 660d20060000 0f22e0"  # cr3; cr4: PAE, SSE
    "66b9800000c0 0f32 660d00010000 0f30"  # EFER: long mode
    "0f0116c07c 0f20c0 6683e0fb 660d03000080 0f22c0 ea927c0800"  # gdt; cr0: paging, protection; into 64-bit code
    "b011 e6f4 f4"  # 0x11: the processor lacks something
    "b940420f00 0f57c0 0f11042500800000 ffc9 75f4"  # a million stores of 16 bytes
    "b010 e6f4 f4 0f1f440000"  # 0x10: came through
    "0000000000000000 00000000009a2000"  # gdt: nothing, 64-bit code
    "0f00 b07c0000"  # its limit and address
)
"""A boot sector that leaves through the debug port with 0x10 once 64-bit code with paging has run, with 0x11 where that cannot be."""


@functools.cache
def kvm_fault(emulator: str) -> str:
    """Why KVM cannot be used, empty when a machine ran on it."""
    if not KVM.exists():
        return "there is no /dev/kvm"
    if not os.access(KVM, os.R_OK | os.W_OK):
        return "/dev/kvm may not be opened"
    try:
        ended = boot(emulator, "kvm", KVM_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"/dev/kvm opens, but a machine on it did not come through a boot sector in {KVM_TIMEOUT_S:g} s"
    except OSError as error:
        return f"{emulator or 'QEMU'} cannot be started ({error.strerror})"
    return "" if ended == SUCCESS_EXIT_CODE else "/dev/kvm opens, but the machine's processor lacks what x86-64 needs"


def boot(emulator: str, accelerator: str, limit_s: float) -> int:
    """How QEMU ended that ran the sector; raises OSError when it cannot be started, TimeoutExpired when it did not end."""
    with tempfile.NamedTemporaryFile(prefix="dart-kvm-") as disk:
        disk.write(SECTOR.ljust(510, b"\0") + b"\x55\xaa")
        disk.flush()
        machine = [
            "-accel",
            accelerator,
            "-cpu",
            "host" if accelerator == "kvm" else "max",
            "-machine",
            "pc",
            "-m",
            "16",
        ]
        bare = ["-nodefaults", "-display", "none", "-no-reboot", "-device", "isa-debug-exit,iobase=0xf4,iosize=4"]
        drive = ["-drive", f"file={disk.name},format=raw,if=floppy,readonly=on"]
        argv = [emulator, *machine, *bare, *drive]
        return subprocess.run(argv, capture_output=True, timeout=limit_s, check=False).returncode
