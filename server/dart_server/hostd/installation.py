"""The installed copy of dart-hostd: root-owned, outside every user's environment.

The farm runs this copy as root, never the package that it imports itself: whoever may write to a virtual environment must not decide what
root runs. Each version lies in a directory of its own, named by the digest of its source files, so that farms of several versions can run
side by side. This module uses the standard library only and also runs as a script:
`/usr/bin/python3 -I installation.py [--into DIR] [--allow-uid UID]`, as root.
It does not start the helper (`dart_server.providers.runc.hostd_client`).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

INSTALL_DIR = Path("/usr/local/lib/dart-hostd")
"""Every installed version, and the tools (CRIU) that the helper runs."""
PYTHON = Path("/usr/bin/python3")
"""The system's interpreter: its packages belong to root."""
PROGRAM = "dart-hostd"
SUDOERS = Path("/etc/sudoers.d/dart")
"""DART's part of sudo's rules: one line for each user."""
_SUDOERS_HEAD = "# Written by `dart-farm setup`: who may start DART's root helper, and nothing else of it.\n"
_PACKAGE = Path(__file__).resolve().parent
_START = """import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from dart_server.hostd.{module} import main

sys.exit(main())
"""
STARTER = "dart-starter"
_PROGRAMS = {PROGRAM: "__main__", STARTER: "users.starter", "dart-criu": "runtime.criu_installation"}
"""Start scripts of an installed version, and the modules whose `main` they call."""


class HelperNotInstalled(Exception):
    """The helper of this version is not installed, or its files could be changed by somebody other than root."""


def source_files(package: Path = _PACKAGE) -> list[Path]:
    """Return the Python files of the helper, as paths relative to `package`, sorted."""
    return sorted(path.relative_to(package) for path in package.rglob("*.py"))


def source_digest(package: Path = _PACKAGE) -> str:
    """Return the first 16 hex digits of the sha256 over names and contents of the helper's files."""
    digest = hashlib.sha256()
    for path in source_files(package):
        content = (package / path).read_bytes()
        digest.update(f"{path.as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def installed_version(directory: Path = INSTALL_DIR) -> Path:
    """Return the directory in which this version of the helper belongs; it need not exist."""
    return directory / source_digest()


def command(program: str = PROGRAM, directory: Path = INSTALL_DIR) -> list[str]:
    """Return the command that starts an installed program of this version, without arguments.

    Args:
        program: `dart-hostd`; `dart-starter`, which starts it for an ordinary user; or `dart-criu`, which installs and finds CRIU.
        directory: Where versions are installed.

    Raises:
        HelperNotInstalled: This version is missing, or somebody other than root may change it.
    """
    version = installed_version(directory)
    start = version / program
    if not start.is_file():
        raise HelperNotInstalled(f"the root helper of this version is not installed in {directory}")
    for path in (start, version / "dart_server" / "hostd", version, *version.parents):
        status = path.stat()
        if status.st_uid != 0 or (status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX):
            raise HelperNotInstalled(
                f"{path} can be changed by others than root, so the helper in it cannot be trusted"
            )
    return [str(PYTHON), "-IS", str(start)]


def install(directory: Path = INSTALL_DIR) -> Path:
    """Install this version of the helper, if it is not installed yet.

    Args:
        directory: Where versions are installed; it is made when it is missing.

    Returns:
        The directory of this version.

    Raises:
        PermissionError: The caller is not root.
    """
    version = installed_version(directory)
    if version.is_dir():
        return version
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".installing-", dir=directory))
    try:
        package = staging / "dart_server" / "hostd"
        for path in source_files():
            target = package / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_PACKAGE / path, target)
        (staging / "dart_server" / "__init__.py").touch()
        for name, module in _PROGRAMS.items():
            (staging / name).write_text(_START.format(module=module), encoding="utf-8")
        for path in (staging, *staging.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        try:
            staging.rename(version)
        except OSError:
            if not version.is_dir():  # otherwise another process has installed the same files meanwhile
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return version


def sudoers_line(uid: int, directory: Path = INSTALL_DIR) -> str:
    """Return the line that lets one user start the root helper of this version, with exactly these arguments and no variable of his own."""
    words = " ".join(command(STARTER, directory))
    return f"#{uid} ALL=(root) NOPASSWD:NOSETENV: {words}\n"


def allow(uid: int, directory: Path = INSTALL_DIR, sudoers: Path = SUDOERS) -> None:
    """Put a user's line into the file of DART's in sudo's directory, in the place of an older one of his.

    Args:
        uid: The user.
        directory: Where versions are installed.
        sudoers: The file; sudo checks the new one before it takes the place of the old one.

    Raises:
        HelperNotInstalled: This version is missing, or somebody other than root may change it.
        OSError: The file cannot be written, or sudo is not installed.
        ValueError: sudo refuses the file.
    """
    line = sudoers_line(uid, directory)
    old = sudoers.read_text(encoding="ascii").splitlines(keepends=True) if sudoers.exists() else []
    kept = [other for other in old if not other.startswith((f"#{uid} ", "# "))]
    descriptor, name = tempfile.mkstemp(prefix=".dart.", dir=sudoers.parent)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write("".join([_SUDOERS_HEAD, *kept, line]))
        os.chmod(name, 0o440)
        checked = subprocess.run(
            ["/usr/sbin/visudo", "-c", "-q", "-f", name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if checked.returncode != 0:
            raise ValueError(f"visudo refuses {sudoers}: {(checked.stderr or checked.stdout).strip()}")
        os.replace(name, sudoers)
    finally:
        if os.path.exists(name):
            os.unlink(name)


def main(argv: list[str] | None = None) -> int:
    """Install from the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Install DART's root helper, owned by root.")
    parser.add_argument("--into", type=Path, default=INSTALL_DIR, help="directory of all installed versions")
    parser.add_argument("--allow-uid", type=int, help=f"let this user start the helper: a line in {SUDOERS}")
    chosen = parser.parse_args(argv)
    if os.geteuid() != 0:
        print("dart-hostd: only root can install the root helper; run `dart-farm setup`.", file=sys.stderr)
        return 2
    version = install(chosen.into)
    if chosen.allow_uid:
        try:
            allow(chosen.allow_uid, chosen.into)
        except (HelperNotInstalled, OSError, ValueError) as error:
            print(f"dart-hostd: the user {chosen.allow_uid} was not allowed to start it: {error}", file=sys.stderr)
            return 2
    print(version)
    return 0


if __name__ == "__main__":
    sys.exit(main())
