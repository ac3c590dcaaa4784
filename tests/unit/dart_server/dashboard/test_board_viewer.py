"""Fetching the viewer: one version, one checksum, nothing outside its directory."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from dart_server.dashboard import novnc


def package(names: list[str]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 5
            archive.addfile(member, io.BytesIO(b"words"))
    return file.getvalue()


def served(monkeypatch: pytest.MonkeyPatch, content: bytes, *, known: bool) -> None:
    monkeypatch.setattr(novnc, "download", lambda: content)
    if known:
        monkeypatch.setattr(novnc, "SHA512", base64.b64encode(hashlib.sha512(content).digest()).decode())


def test_a_package_with_the_right_checksum_is_unpacked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert novnc.installed(tmp_path) is None
    served(monkeypatch, package(["package/core/rfb.js", "package/LICENSE.txt"]), known=True)
    directory = novnc.install(tmp_path)
    assert (directory / "core" / "rfb.js").read_bytes() == b"words"
    monkeypatch.setattr(novnc, "download", lambda: pytest.fail("it is there already"))
    assert novnc.install(tmp_path) == directory == novnc.installed(tmp_path)


def test_another_package_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served(monkeypatch, package(["package/core/rfb.js"]), known=False)
    with pytest.raises(novnc.ViewerNotInstalled, match="sha512"):
        novnc.install(tmp_path)
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("name", ["package/../../out.js", "/etc/out.js", "elsewhere/out.js"])
def test_names_that_lead_out_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    served(monkeypatch, package(["package/core/rfb.js", name]), known=True)
    with pytest.raises(novnc.ViewerNotInstalled, match="nothing was installed"):
        novnc.install(tmp_path / "home")
    assert novnc.installed(tmp_path / "home") is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
