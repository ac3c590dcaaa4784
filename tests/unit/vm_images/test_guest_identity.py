"""The machine id is renewed wherever programs look for it, and links of the user are not followed."""

from __future__ import annotations

from pathlib import Path

from dart_guest import identity


def test_every_place_gets_the_id(tmp_path: Path) -> None:
    files = (tmp_path / "etc", tmp_path / "dbus")
    precious = tmp_path / "precious"
    precious.write_text("kept")
    files[1].symlink_to(precious)
    identity.write_machine_id("ab" * 16, files)
    assert [file.read_text() for file in files] == ["ab" * 16 + "\n"] * 2
    assert precious.read_text() == "kept"
    identity.write_machine_id("cd" * 16, files)
    assert files[0].read_text() == "cd" * 16 + "\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dbus", "etc", "precious"]


def test_what_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    identity.write_machine_id("ab" * 16, (tmp_path / "missing" / "id", tmp_path / "id"))
    assert (tmp_path / "id").read_text() == "ab" * 16 + "\n"
