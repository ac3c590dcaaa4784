"""Which firmware starts a disk from elsewhere: the BIOS that QEMU brings, or UEFI, which OSWorld's own image is run with.

Rule: read off the disk's first sectors, so that one disk is started the same way always. A GPT that has an EFI system partition and no BIOS
boot partition needs UEFI; so does an MBR with an EFI system partition and no boot code; all others start by BIOS. UEFI's variables live in
the machine's memory, hence in its snapshots, and no file of the host is written.
Non-goals: secure boot, boot entries of another machine (the loader at the removable path, `EFI/BOOT/BOOTX64.EFI`, is started).
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from uuid import UUID

from dart_server.providers.base import CapabilityMissing
from dart_server.providers.libvirt.volumes import qemu_img

SECTOR = 512
TABLE_SECTORS = 34
"""The first sector, GPT's header and its 128 entries."""
BOOT_CODE_BYTES = 440
FIRST_ENTRY, ENTRIES = 446, 4
GPT_TYPE, EFI_TYPE = 0xEE, 0xEF
EFI_SYSTEM = UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
BIOS_BOOT = UUID("21686148-6449-6e6f-744e-656564454649")
UEFI_PATHS = (
    Path("/usr/share/ovmf/OVMF.fd"),
    Path("/usr/share/OVMF/OVMF_CODE.fd"),
    Path("/usr/share/edk2/ovmf/OVMF_CODE.fd"),
    Path("/usr/share/edk2/x64/OVMF_CODE.fd"),
)
"""Where distributions put what works without a file for variables."""


def find(disk: Path) -> Path | None:
    """UEFI's file for a disk that needs it, None for one that starts by BIOS. Blocking. Raises CapabilityMissing with the fix."""
    if not needs_uefi(first_sectors(disk)):
        return None
    for place in UEFI_PATHS:
        if place.is_file():
            return place
    raise CapabilityMissing("this disk starts by UEFI, which this host's QEMU lacks", hint="sudo apt-get install ovmf")


def first_sectors(disk: Path) -> bytes:
    """What a machine sees at the start of a qcow2."""
    with tempfile.TemporaryDirectory(prefix="dart-disk-") as place:
        start = Path(place) / "start"
        qemu_img(
            "dd", "-f", "qcow2", "-O", "raw", f"bs={SECTOR}", f"count={TABLE_SECTORS}", f"if={disk}", f"of={start}"
        )
        return start.read_bytes()


def needs_uefi(start: bytes) -> bool:
    """Whether only UEFI can start a disk with these first sectors."""
    start = start.ljust(TABLE_SECTORS * SECTOR, b"\0")
    types = [start[FIRST_ENTRY + 16 * number + 4] for number in range(ENTRIES)]
    if GPT_TYPE in types and start[SECTOR : SECTOR + 8] == b"EFI PART":
        count, size = struct.unpack_from("<II", start, SECTOR + 80)
        first = 2 * SECTOR
        last = min(first + count * size, len(start) - 16)
        kinds = {UUID(bytes_le=start[at : at + 16]) for at in range(first, last, max(size, 128))}
        return EFI_SYSTEM in kinds and BIOS_BOOT not in kinds
    return EFI_TYPE in types and not any(start[:BOOT_CODE_BYTES])
