"""The parts of the provider `libvirt` that need no hypervisor: what a machine is made of, which disk is kept, what is read of an answer."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from uuid import UUID
from xml.etree import ElementTree

import pytest

from dart_server.providers.base import CapabilityMissing, DesktopSpec, ImageMissing
from dart_server.providers.libvirt import domain, engine, firmware, kvm, vm
from dart_server.providers.libvirt import images as libvirt_images
from dart_server.providers.libvirt.engine import HostFacts
from dart_server.providers.libvirt.volumes import AGENT, Volume, Volumes, VolumeSnapshot
from dart_server.providers.osworld import guest_programs
from dart_server.providers.osworld.guest import elements

SPEC = DesktopSpec("basic", (640, 400), font_size=14, memory_mib=768, cpus=2.5, disk_mib=128)
EMULATED = HostFacts("9.0.0", "/usr/bin/qemu-system-x86_64", "tcg", "there is no /dev/kvm", privileged=True)
PARTS = domain.DomainFiles(Path("/d"), Path("/p"), Path("/c"), Path("/k"), Path("/i"), isolated_network=False)


def task_domain(host: HostFacts, parts: domain.DomainFiles) -> ElementTree.Element:
    return ElementTree.fromstring(domain.xml("ours-d1", SPEC, parts, host))


def test_a_machine_of_ours_has_no_network_and_its_limits() -> None:
    made = task_domain(EMULATED, PARTS)
    assert made.get("type") == "qemu"
    assert made.findtext("memory") == "768"
    assert made.findtext("vcpu") == "1", "an emulated machine has one processor"
    assert made.find("devices/interface") is None
    assert "netdev" not in ElementTree.tostring(made, encoding="unicode")
    assert "dart.resolution=640x400 dart.font_size=14" in (made.findtext("os/cmdline") or "")
    (label,) = made.findall("seclabel")
    assert label.get("relabel") == "no", "images keep their owner"


def test_a_machine_with_kvm_has_whole_processors() -> None:
    made = task_domain(replace(EMULATED, accelerator="kvm", privileged=False), PARTS)
    assert (made.get("type"), made.findtext("vcpu")) == ("kvm", "3")
    assert made.find("seclabel") is None


def test_a_guest_from_elsewhere_gets_a_network_that_leads_nowhere() -> None:
    made = task_domain(EMULATED, replace(PARTS, kernel=None, initrd=None, isolated_network=True))
    assert made.find("os/kernel") is None
    words = [word.get("value") or "" for word in made.iter(f"{{{domain.QEMU_NAMESPACE}}}arg")]
    assert words[:2] == ["-netdev", f"user,id={domain.NETWORK},restrict=on"]
    assert not any("hostfwd" in word for word in words)
    assert made.find("os/loader") is None
    size, model = made.find("devices/video/model/resolution"), made.find("devices/video/model")
    assert size is not None
    assert model is not None
    assert (size.get("x"), size.get("y"), model.get("vram")) == ("640", "400", "16384")
    assert domain.screen_kib(3840, 2160) == 32768


def test_a_guest_that_starts_by_uefi_gets_it_without_a_file_for_its_variables() -> None:
    made = task_domain(EMULATED, replace(PARTS, kernel=None, initrd=None, isolated_network=True, uefi=Path("/u")))
    (loader,) = made.findall("os/loader")
    assert (loader.text, loader.get("type")) == ("/u", "rom")
    assert made.find("os/nvram") is None


def table(*types: int, code: bytes = b"", kinds: tuple[UUID, ...] = ()) -> bytes:
    """The first sectors of a disk: boot code, MBR, and a GPT where there are kinds of partitions."""
    entries = b"".join(bytes([0] * 4 + [kind] + [0] * 11) for kind in types).ljust(64, b"\0")
    first = code.ljust(446, b"\0") + entries + b"\x55\xaa"
    if not kinds:
        return first
    header = b"EFI PART".ljust(80, b"\0") + struct.pack("<II", 128, 128)
    return first + header.ljust(512, b"\0") + b"".join(kind.bytes_le.ljust(128, b"\0") for kind in kinds)


DATA = UUID("0fc63daf-8483-4772-8e79-3d69d8477de4")


@pytest.mark.parametrize(
    ("start", "uefi"),
    [
        (table(0xEE, kinds=(firmware.EFI_SYSTEM, DATA)), True),
        (table(0xEE, code=b"jump", kinds=(DATA, firmware.EFI_SYSTEM)), True),
        (table(0xEE, kinds=(firmware.BIOS_BOOT, firmware.EFI_SYSTEM, DATA)), False),
        (table(0xEE, code=b"jump", kinds=(DATA,)), False),
        (table(0xEF, 0x83), True),
        (table(0xEF, 0x83, code=b"jump"), False),
        (table(0x83, code=b"jump"), False),
        (b"", False),
    ],
)
def test_the_firmware_follows_the_disk(start: bytes, uefi: bool) -> None:
    assert firmware.needs_uefi(start) is uefi


def test_a_host_without_uefi_is_told_so_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firmware, "first_sectors", lambda _disk: table(0xEF))
    monkeypatch.setattr(firmware, "UEFI_PATHS", (tmp_path / "none", tmp_path / "there"))
    with pytest.raises(CapabilityMissing, match="UEFI") as caught:
        firmware.find(tmp_path)
    assert "ovmf" in caught.value.hint
    (tmp_path / "there").touch()
    assert firmware.find(tmp_path) == tmp_path / "there"


def test_the_address_follows_the_setting_and_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.address("qemu+unix:///session?socket=/s") == "qemu+unix:///session?socket=/s"
    monkeypatch.setattr(engine.os, "geteuid", lambda: 1000)
    assert engine.address(None) == "qemu:///session"
    monkeypatch.setattr(engine.os, "geteuid", lambda: 0)
    assert engine.address(None) == "qemu:///system"


def test_a_libvirt_that_does_not_answer_is_told_with_its_cure(tmp_path: Path) -> None:
    pytest.importorskip("libvirt")
    with pytest.raises(CapabilityMissing, match="no libvirt answers") as caught:
        engine.connect(f"qemu+unix:///session?socket={tmp_path}/none")
    assert "DART_LIBVIRT_URI" in caught.value.hint


def test_kvm_counts_only_where_a_machine_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kvm.kvm_fault.cache_clear()
    device = tmp_path / "kvm"
    monkeypatch.setattr(kvm, "KVM", device)
    assert kvm.kvm_fault("/none") == "there is no /dev/kvm"
    device.touch()
    for program, told in (("exit 33", ""), ("exit 35", "lacks"), ("sleep 5", "did not come through")):
        kvm.kvm_fault.cache_clear()
        monkeypatch.setattr(kvm, "KVM_TIMEOUT_S", 0.5)
        emulator = tmp_path / "pretended-qemu"
        emulator.write_text(f"#!/bin/sh\nexec sh -c '{program}'\n")
        emulator.chmod(0o755)
        assert told in kvm.kvm_fault(str(emulator))
        assert bool(told) == bool(kvm.kvm_fault(str(emulator)))
    kvm.kvm_fault.cache_clear()


def put_image(images: Path, **manifest: object) -> None:
    place = images / "basic" / "one"
    place.mkdir(parents=True)
    (images / "basic" / "current").symlink_to("one")
    for name in ("disk.qcow2", "vmlinuz"):
        (place / name).write_text("")
    (place / "manifest.json").write_text(json.dumps({"digest": "0" * 12, **manifest}))


def test_an_image_without_a_disk_is_missing_with_its_cure(tmp_path: Path) -> None:
    put_image(tmp_path)
    for name in ("basic", "nothing", "../basic"):
        with pytest.raises(ImageMissing) as caught:
            libvirt_images.find(tmp_path, name)
        assert "--artefact qcow2" in caught.value.hint


def test_an_images_files_lie_beside_its_manifest(tmp_path: Path) -> None:
    files = {"qcow2": {"file": "../../disk.qcow2"}, "kernel": {"file": "vmlinuz"}}
    put_image(tmp_path, guest_digest="12ab", artefacts=files)
    found = libvirt_images.find(tmp_path, "basic")
    assert found.disk == tmp_path / "basic" / "one" / "disk.qcow2"
    assert found.kernel == tmp_path / "basic" / "one" / "vmlinuz"
    assert (found.digest, found.has_agent, found.initrd) == (f"sha256:{'0' * 12}", True, None)


def volume(place: Path, name: str, desktop: str | None, **saved: str | None) -> Volume:
    place.mkdir(exist_ok=True)
    (place / f"{name}.qcow2").write_text("")
    held = {one: VolumeSnapshot(7, parent) for one, parent in saved.items()}
    return Volume(place / f"{name}.qcow2", "sha256:0", SPEC, False, AGENT, desktop, None, held)


def test_a_disk_is_kept_while_it_alone_holds_a_snapshot(tmp_path: Path) -> None:
    place = tmp_path / "disks"
    for one in (volume(place, "a", "d1", s1=None), volume(place, "b", "d2", s1=None, s2="s1")):
        Volumes(place).write(one)
    (place / "stray.qcow2").write_text("")
    known = Volumes(place)
    known.load()
    assert not (place / "stray.qcow2").exists()
    first, second = known.find("d1"), known.find("d2")
    assert first is not None
    assert second is not None
    assert known.snapshots() == {"s1", "s2"}
    known.detach(second)
    assert second.path.exists(), "s2 is nowhere else"
    assert known.with_snapshot("s1") == [second, first], "a parked disk is taken before one in use is copied"
    known.detach(first)
    assert not first.path.exists()
    assert known.attach(second, "d3", "s2")
    assert not known.attach(second, "d4", "s1")
    again = Volumes(place)
    again.load()
    assert again.find("d3") == second


def test_a_copy_takes_a_snapshot_and_what_it_came_from(tmp_path: Path) -> None:
    held = volume(tmp_path, "a", "d1", base=None, task="base", other="base")
    assert held.ancestry("task") == {"task", "base"}
    assert held.ancestry("gone") == set()


def test_forwarded_ports_are_read_from_the_monitor() -> None:
    said = (
        "Hub -1 (dart0):\n  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\n"
        "  TCP[HOST_FORWARD]  19       127.0.0.1 40001       10.0.2.15  5000     0     0\n"
        "  TCP[ESTABLISHED]   20       127.0.0.1 40001       10.0.2.15  5000     0     0\n"
    )
    assert vm.forwards(said) == {5000: 40001}


def test_events_for_osworlds_server_are_checked_first() -> None:
    events = [{"type": "move", "x": 900, "y": -3}, {"type": "text", "text": "ü"}, {"type": "down"}]
    moved, typed, pressed = guest_programs.validate_events(events, (640, 400))
    assert (moved["x"], moved["y"], typed["text"], pressed) == (639, 0, "ü", {"type": "down"})
    for wrong in ({"type": "release_all"}, {"type": "move", "x": "1", "y": 2}, {"type": "text", "text": 3}, "move"):
        with pytest.raises(ValueError, match="event 0"):
            guest_programs.validate_events([wrong], (640, 400))
    body = guest_programs.command(guest_programs.EVENTS_PROGRAM, [typed])
    assert body["shell"] is False
    assert json.loads(body["command"][3]) == [typed]
    for program in (guest_programs.EVENTS_PROGRAM, guest_programs.EXEC_PROGRAM):
        compile(program, "inside", "exec")


FAKE_PYAUTOGUI = """
import string, sys
isValidKey = lambda key: key in ("enter", *string.ascii_letters)
keyDown = write = press = lambda *what: print(what, file=sys.stderr)
position = lambda: (3, 4)
"""


@pytest.mark.parametrize(
    ("event", "answer", "performed"),
    [
        ({"type": "key_down", "key": "enter"}, [3, 4], True),
        ({"type": "key_down", "key": "no-such-key"}, {"unknown_key": "no-such-key"}, False),
        ({"type": "text", "text": "ab\n"}, [3, 4], True),
        ({"type": "text", "text": "aé"}, {"unknown_key": "é"}, False),
    ],
)
def test_what_the_guest_cannot_type_is_told_before_anything_is_performed(
    event: dict[str, str], answer: object, performed: bool, tmp_path: Path
) -> None:
    (tmp_path / "pyautogui.py").write_text(FAKE_PYAUTOGUI)
    events = [{"type": "key_down", "key": "a"}, event]
    argv = [sys.executable, *guest_programs.command(guest_programs.EVENTS_PROGRAM, events)["command"][1:]]
    only = {"PYTHONPATH": str(tmp_path), "PATH": str(tmp_path)}
    ended = subprocess.run(argv, env=only, capture_output=True, text=True, check=False)
    assert json.loads(ended.stdout) == answer, ended.stderr
    assert bool(ended.stderr) is performed


def test_osworlds_tree_becomes_showing_elements() -> None:
    space = "https://accessibility.ubuntu.example.org/ns/"
    tree = (
        f'<desktop-frame xmlns:st="{space}state" xmlns:cp="{space}component"><application name="zenity"><dialog name="Sure">'
        '<push-button name="Yes" st:enabled="true" cp:screencoord="(10, 20)" cp:size="(30, 40)">Yes!</push-button>'
        '<push-button name="Off"/></dialog></application></desktop-frame>'
    )
    (found,) = elements(tree)
    assert (found["role"], found["name"], found["text"]) == ("push button", "Yes", "Yes!")
    assert (found["x"], found["y"], found["w"], found["h"]) == (10, 20, 30, 40)
    assert (found["states"], found["app"], found["window"]) == (["enabled"], "zenity", "Sure")
