"""The viewer, noVNC: a package of its own (MPL-2.0) that is fetched from the npm registry by the setup, checked, and served as it came.

Rule: one version, one checksum; what does not match is not unpacked. Standard library only. Non-goals: changing any of its files.

    python -m dart_server.dashboard.novnc [--home DIR]      install it, or say that it is there
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path, PurePosixPath

PACKAGE = "@novnc/novnc"
VERSION = "1.7.0"
SHA512 = "ucEJOx4T2avIRCleodk7YobZj5O2Ga2AeLfQ69A/yjG9HHba2+PDgwSkN3FttrmG+70ZGx21sElNFouK13RzyA=="
"""The registry's integrity value of the package file."""
URL = f"https://registry.npmjs.org/{PACKAGE}/-/novnc-{VERSION}.tgz"
MAX_PACKAGE_BYTES = 16 * 1024**2
TIMEOUT_S = 60.0
INSTALL_COMMAND = "python -m dart_server.dashboard.novnc"
_STAMP = "dart-complete"


class ViewerNotInstalled(Exception):
    """The package could not be had; the message is one sentence with the fix."""


def install_dir(home: Path) -> Path:
    """Where this version belongs."""
    return home / "tools" / f"novnc-{VERSION}"


def installed(home: Path) -> Path | None:
    """The package's directory, None while it is not there."""
    directory = install_dir(home)
    return directory if (directory / _STAMP).exists() else None


def install(home: Path) -> Path:
    """Fetch, check and unpack, unless it is there. Raises `ViewerNotInstalled`."""
    there = installed(home)
    if there is not None:
        return there
    content = download()
    if base64.b64encode(hashlib.sha512(content).digest()).decode() != SHA512:
        raise ViewerNotInstalled(
            f"{PACKAGE} {VERSION} is not the package that it should be (its sha512 differs); nothing was unpacked."
        )
    directory = install_dir(home)
    directory.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".novnc-", dir=directory.parent))
    try:
        unpack(content, fresh)
        (fresh / _STAMP).touch()
        fresh.chmod(0o755)
        shutil.rmtree(directory, ignore_errors=True)
        os.replace(fresh, directory)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return directory


def unpack(content: bytes, target: Path) -> None:
    """The package's plain files below `target`; links, and names that lead out of it, are refused."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            if not member.isfile():
                continue
            if path.is_absolute() or ".." in path.parts or path.parts[0] != "package":
                raise ViewerNotInstalled(f"the package has a file with the name {member.name}; nothing was installed.")
            source = archive.extractfile(member)
            assert source is not None
            destination = target.joinpath(*path.parts[1:])
            destination.parent.mkdir(parents=True, exist_ok=True)
            destination.write_bytes(source.read())


def download() -> bytes:
    """The package file, from the registry or, where only npm knows the way to one, by npm. Raises `ViewerNotInstalled`."""
    try:
        with urllib.request.urlopen(URL, timeout=TIMEOUT_S) as answer:
            return bytes(answer.read(MAX_PACKAGE_BYTES))
    except (urllib.error.URLError, OSError) as error:
        if shutil.which("npm") is None:
            raise ViewerNotInstalled(
                f"{URL} cannot be read ({error}); where there is a mirror, install npm with its address and run `{INSTALL_COMMAND}`."
            ) from error
    with tempfile.TemporaryDirectory() as directory:
        command = ["npm", "pack", "--silent", f"{PACKAGE}@{VERSION}"]
        result = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, check=False, timeout=5 * TIMEOUT_S
        )
        files = list(Path(directory).glob("*.tgz"))
        if result.returncode != 0 or len(files) != 1:
            raise ViewerNotInstalled(f"`{' '.join(command)}` failed: {result.stderr.strip()[-300:]}")
        return files[0].read_bytes()


def main() -> int:
    """0 when it is installed, 2 with one sentence when it cannot be had."""
    from dart_server.wire.paths import data_dir

    parser = argparse.ArgumentParser(description="Install noVNC, the dashboard's viewer.")
    parser.add_argument("--home", type=Path, default=data_dir())
    home = parser.parse_args().home
    try:
        before = installed(home)
        directory = install(home)
    except ViewerNotInstalled as error:
        print(f"noVNC: {error}", file=sys.stderr)
        return 2
    print(f"noVNC {VERSION}: {'up to date' if before else f'installed in {directory}'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
