"""A root file system from elsewhere, as a tar and as a directory: added by the program, booted, used, not removed below its desktop."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from provider_cases import SPEC, Case, dart_farm, image_home, left_over, no_port_here, not_here, well

from dart_server.hostd.layout import Layout
from dart_server.process.host_setup import as_root
from dart_server.providers.base import ImageMissing
from dart_server.providers.runc.provider import RuncProvider

pytestmark = pytest.mark.desktop


@pytest.fixture
async def added_case() -> AsyncIterator[Case]:
    """Containers of the images that are added to a home directory of their own: `case.runtime`."""
    home = Path(tempfile.mkdtemp(prefix="dart-test-"))
    (home / "tools").symlink_to(image_home() / "tools")
    runtime, store = home / "run", Path("/dev/shm")
    runtime.mkdir(mode=0o700)
    layout = Layout(os.getuid(), runtime / "hostd", runtime, home / "images", store)
    provider = RuncProvider(home=home, runtime_dir=runtime, snapshot_dir=store)

    await provider.start()
    try:
        yield Case(provider, not_here, not_here, no_port_here, layout, home)
    finally:
        await provider.aclose()
        assert left_over(layout) == []
        await asyncio.to_thread(subprocess.run, as_root(["rm", "-rf", "--one-file-system", str(home)]), check=True)


@pytest.mark.slow
async def test_a_root_file_system_becomes_an_image_however_it_came(added_case: Case) -> None:
    case, home = added_case, added_case.runtime
    assert home is not None

    async def images(*arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(dart_farm, home, "images", *arguments)

    async def refused() -> None:
        ended = await images("rm", "packed")
        assert (ended.returncode, "used by running desktops" in ended.stderr) == (1, True), ended.stderr

    source = (image_home() / "images" / "basic" / "current").resolve()
    packed = home / "theirs.tar"
    tar = as_root(["tar", "--numeric-owner", "--xattrs", f"--directory={source / 'rootfs'}", "-cf", str(packed), "."])
    await asyncio.to_thread(subprocess.run, tar, check=True)
    for name, path in (("packed", packed), ("laid-out", source / "rootfs")):
        assert well(await images("add", name, str(path))) == {"added": name}
    packed.unlink()
    rows = well(await images("list"))
    told = json.loads((source / "manifest.json").read_text())
    assert [row["name"] for row in rows] == ["laid-out", "packed"]
    assert len({row["digest"] for row in rows}) == 1, "the same tree is the same image"
    assert [(row["artefacts"], row["packages"]) for row in rows] == [(["rootfs"], len(told["packages"]))] * 2
    assert await case.provider.image_digest("packed") == f"sha256:{rows[0]['digest']}"

    await case.provider.create("d1", replace(SPEC, image="packed"))
    owners = await case.exec("d1", "stat", "-c", "%U %a", "/home/user", "/usr/bin/sudo", "/etc/shadow", user="user")
    assert owners["stdout"].splitlines() == ["user 755", "root 4755", "root 640"], owners
    header, pixels = await case.step("d1", {"type": "move", "x": 31, "y": 47})
    assert (header["cursor"], len(pixels)) == ([31, 47], 640 * 400 * 3)
    await case.put("d1", "kept")

    assert well(await images("rm", "laid-out")) == {"removed": "laid-out"}
    await case.provider.snapshot("d1", "s1")
    await refused()
    await case.provider.destroy("d1")
    await refused()
    await case.provider.restore("d2", "s1")
    assert await case.get("d2") == "kept"
    await case.provider.delete_snapshot("s1")
    await refused()
    await case.provider.destroy("d2")
    assert well(await images("rm", "packed")) == {"removed": "packed"}
    assert well(await images("list")) == []
    with pytest.raises(ImageMissing):
        await case.provider.create("d3", replace(SPEC, image="packed"))
