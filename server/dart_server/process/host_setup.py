"""Prepare a Debian 12+ or Ubuntu 22.04+ host for live desktops: system packages, root helper, CRIU, desktop image, viewer.

This module is the work behind `dart-farm setup` and `make setup`. Every step is idempotent and cached, and prints what it does or that it
is up to date. What the host lacks is one `SetupFailed` sentence with the fix. The module uses the standard library only and runs on
Python 3.9, because `server/deploy/setup_host.py` imports it before there is a virtual environment.
It starts no service.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

from dart_server.hostd.doctor import setup_by_administrator

MIN_DISK_GIB = 12
MIN_MEMORY_GIB = 6
SYSTEM_PACKAGES = {
    "/usr/bin/python3": "python3",
    "runc": "runc",
    "mmdebstrap": "mmdebstrap",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
    "cc": "gcc",
    "/usr/include/dlfcn.h": "libc6-dev",
}
"""What is needed (a program, or a file) and the package that has it."""
PROXIES = ("http_proxy", "https_proxy", "no_proxy")
"""Variables that sudo drops and package tools need."""
SYSTEM_PYTHON = "/usr/bin/python3"
_PACKAGE = Path(__file__).resolve().parents[1]


class SetupFailed(Exception):
    """One sentence for the user, with the fix."""


def say(text: str) -> None:
    """Print one progress line."""
    print(f"[setup] {text}", flush=True)


def run(argv: list[str], *, quiet: bool = True) -> None:
    """Run a program.

    Args:
        argv: The program and its arguments.
        quiet: Keep its output, and show the end of it only when it fails.

    Raises:
        SetupFailed: The program failed.
    """
    result = subprocess.run(argv, text=True, capture_output=quiet, check=False)
    if result.returncode != 0:
        tail = "\n".join((result.stdout or "").splitlines()[-15:] + (result.stderr or "").splitlines()[-15:])
        raise SetupFailed(f"`{' '.join(argv[:6])}` failed with exit code {result.returncode}:\n{tail}")


def as_root(argv: list[str]) -> list[str]:
    """Return the same command with root rights, through sudo when this process is not root; proxy settings are kept."""
    if os.geteuid() == 0:
        return argv
    if shutil.which("sudo") is None:
        raise SetupFailed(
            "This needs root rights for system packages and live desktops: run it as root or install sudo."
        )
    kept = [f"{name}={os.environ[name]}" for name in PROXIES if name in os.environ]
    return ["sudo", "-n", "env", *kept, *argv]


def check_sudo() -> None:
    """Raise `SetupFailed` where sudo asks for a password: the setup installs packages and the root helper where nobody can type one."""
    if os.geteuid() == 0:
        return
    asked = subprocess.run(
        as_root(["true"]), capture_output=True, stdin=subprocess.DEVNULL, start_new_session=True, check=False
    )
    if asked.returncode != 0:
        user = pwd.getpwuid(os.geteuid()).pw_name
        raise SetupFailed(
            "The setup needs root rights for packages and the root helper, and sudo asks for a password here. Type it once before "
            f"(`sudo -v`), or let an administrator run `{setup_by_administrator(user)}`: the farm itself needs no more than "
            "the one line that the setup writes to /etc/sudoers.d/dart."
        )


def check_host(folders: list[Path], *, check_disk: bool = True) -> None:
    """Raise `SetupFailed`, with the fix, on a host that cannot work.

    Args:
        folders: Where the setup writes; each must have room.
        check_disk: False where the host was set up before.
    """
    if sys.platform != "linux":
        raise SetupFailed(
            "Live desktops need Linux; on other systems run the farm on a Linux host and set DART_FARM_URL."
        )
    if shutil.which("apt-get") is None:
        raise SetupFailed(
            "The setup knows Debian 12+ and Ubuntu 22.04+ (apt-get not found); use one of these, or a container of one."
        )
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        free_gib = shutil.disk_usage(folder).free / 2**30
        if check_disk and free_gib < MIN_DISK_GIB:
            raise SetupFailed(
                f"{folder} has {free_gib:.0f} GiB free, the setup needs {MIN_DISK_GIB}: free some space or set DART_HOME."
            )
    with open("/proc/meminfo", encoding="ascii") as handle:
        total_gib = int(handle.readline().split()[1]) / 2**20
    if total_gib < MIN_MEMORY_GIB:
        raise SetupFailed(f"This host has {total_gib:.0f} GiB of memory, DART needs at least {MIN_MEMORY_GIB}.")


def in_archive(package: str) -> bool:
    """Return True where the host's package list has a package."""
    return subprocess.run(["apt-cache", "show", package], capture_output=True, check=False).returncode == 0


def install_packages(packages: list[str]) -> None:
    """Install Debian packages, after the package list is refreshed."""
    say(f"installing system packages: {' '.join(packages)}")
    quiet = ["env", "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_MODE=a"]
    run(as_root([*quiet, "apt-get", "update", "-q"]))
    run(as_root([*quiet, "apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]))


def has_tool(tool: str) -> bool:
    """Return True where a program is installed (also outside a user's PATH), or a file exists."""
    if tool.startswith("/"):
        return Path(tool).exists()
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None


def install_system_packages() -> None:
    """Install the host tools that are missing."""
    missing = [package for tool, package in SYSTEM_PACKAGES.items() if not has_tool(tool)]
    if missing:
        install_packages(missing)
    else:
        say("system packages: up to date")


def served_uid(user: str | None) -> int:
    """Return the uid of the ordinary user whose farm the setup is for: the one named, who ran sudo, or who runs this; 0 for root's own."""
    if user is not None:
        try:
            return pwd.getpwnam(user).pw_uid
        except KeyError as error:
            raise SetupFailed(f"This host has no user {user!r}.") from error
    return os.geteuid() or int(os.environ.get("SUDO_UID", "0"))


def install_root_helper(uid: int = 0) -> None:
    """Install dart-hostd for root, and CRIU beside it, in `/usr/local/lib/dart-hostd`.

    Args:
        uid: The ordinary user who may start it by one exact line in `/etc/sudoers.d/dart`; 0: nobody but root.
    """
    script = _PACKAGE / "hostd" / "installation.py"
    say(f"root helper; user {uid} may start it" if uid else "root helper")
    allowed = ["--allow-uid", str(uid)] if uid else []
    argv = as_root([SYSTEM_PYTHON, "-I", str(script), *allowed])
    result = subprocess.run(argv, text=True, capture_output=True, check=False)
    if result.returncode != 0:
        raise SetupFailed(f"The root helper could not be installed: {result.stderr.strip()[-500:]}")
    version = Path(result.stdout.strip())
    print(version, flush=True)
    say("CRIU")
    run(as_root([SYSTEM_PYTHON, "-IS", str(version / "dart-criu"), "install"]), quiet=False)


def default_home() -> Path:
    """Return `DART_HOME`, else the user's data directory."""
    if "DART_HOME" in os.environ:
        return Path(os.environ["DART_HOME"])
    return Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share")) / "dart"


def builder_directory() -> Path | None:
    """Return the directory of the image builder: beside the installed packages, or in the source checkout; None without one."""
    for parent in (_PACKAGE.parent, _PACKAGE.parents[1]):
        if (parent / "vm_images" / "build.py").is_file():
            return parent / "vm_images"
    return None


def build_image(python: Path, name: str, home: Path) -> None:
    """Build a desktop image when it is missing or out of date.

    Args:
        python: The interpreter that runs the builder.
        name: Name of a recipe.
        home: DART's home directory, which keeps the images.
    """
    builder = builder_directory()
    if builder is None:
        raise SetupFailed("The image builder is not installed; install dart-rl again.")
    run(as_root([str(python), str(builder / "build.py"), "build", name, "--home", str(home)]), quiet=False)


def install_novnc(python: Path, home: Path) -> None:
    """Install the dashboard's viewer, which is checked by its sha512, under DART's home directory."""
    run([str(python), "-m", "dart_server.dashboard.novnc", "--home", str(home)], quiet=False)


def prepare(home: Path, images: list[str], *, check_disk: bool = True, user: str | None = None) -> None:
    """Run every step for a farm on this host.

    Args:
        home: DART's home directory.
        images: Names of the desktop images to build; none: system packages, helper and CRIU only.
        check_disk: Refuse a disk that has too little room.
        user: The ordinary user whose farm it is; None: who runs this, also through sudo.

    Raises:
        SetupFailed: One step failed.
    """
    python = Path(sys.executable)
    uid = served_uid(user)
    check_host([home], check_disk=check_disk)
    check_sudo()
    install_system_packages()
    install_root_helper(uid)
    for image in images:
        build_image(python, image, home)
    try:
        install_novnc(python, home)
    except SetupFailed:
        say("going on without the dashboard's live view; everything else works")
