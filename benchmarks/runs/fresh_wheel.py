"""A newcomer without a checkout: venv, install, setup, first observation, as an ordinary user with sudo in a fresh root file system.

Role: makes a Debian root file system with nothing but Python, venv and sudo, gives it this host's package sources and the built wheel,
and runs the four commands in it, as root of its own mount and process namespaces. Rule: only what package caches of the host hold is
there before. It needs root. It does not measure a training run (`bench_fresh` in the mode `clone`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
USER = "newcomer"
PACKAGES = "python3,python3-venv,sudo,mount,ca-certificates"
COPIED = ("etc/apt", "etc/pip.conf", "etc/ssl/certs", "usr/share/ca-certificates", "usr/local/share/ca-certificates")
"""What of the host says where packages come from."""
FIRST_OBSERVATION = """
import dart_envs
import gymnasium as gym
env = gym.make("DartOSWorld-v0", task="basics/press_nth", resolution=(640, 400))
observation, _ = env.reset(seed=1)
print("first observation", observation["screenshot"].shape)
env.close()
"""
ENTER = """
set -eu
root=$1; shift
mount --make-rprivate /
mount --rbind "$root" "$root"
mkdir -p "$root/proc" "$root/sys" "$root/dev" "$root/old"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
for place in /opt /etc/resolv.conf; do
  if [ -d "$place" ]; then mkdir -p "$root$place"; else touch "$root$place"; fi
  mount --rbind "$place" "$root$place"
done
cd "$root"
pivot_root . old
umount -l /old
exec "$@"
"""
"""Becomes the first process of the fresh system and runs the words that follow its root."""


def measure_wheel(place: Path | None) -> dict[str, Any]:
    """Run the newcomer's four commands.

    Args:
        place: An empty directory with 8 GiB of room; None: a temporary one.

    Returns:
        `commands_to_first_observation`, `minutes_to_first_observation`, and the seconds of each command.
    """
    if os.geteuid() != 0:
        raise SystemExit("fresh --mode wheel needs root, for namespaces and a root file system; run it with sudo.")
    work = place or Path(tempfile.mkdtemp(prefix="dart-fresh-wheel-"))
    root = work / "root"
    try:
        _make_root(root)
        build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(root / "dist"), str(ROOT)]
        subprocess.run(build, check=True, stdout=sys.stderr)
        home = f"/home/{USER}"
        (root / f"home/{USER}/first.py").write_text(FIRST_OBSERVATION, encoding="utf-8")
        commands = [
            ["python3", "-m", "venv", f"{home}/venv"],
            [f"{home}/venv/bin/pip", "install", "-q", "dart-rl[server]"],
            [f"{home}/venv/bin/dart-farm", "setup"],
            [f"{home}/venv/bin/python", f"{home}/first.py"],
        ]
        seconds = [_run(root, command, home) for command in commands]
        _run(root, [f"{home}/venv/bin/dart-farm", "stop"], home)
    finally:
        if place is None:
            shutil.rmtree(work, ignore_errors=True)
    names = ("venv", "install", "setup", "run")
    return {
        "commands_to_first_observation": len(commands),
        "minutes_to_first_observation": round(sum(seconds) / 60, 2),
        "seconds": {name: round(lasted, 1) for name, lasted in zip(names, seconds, strict=True)},
    }


def _make_root(root: Path) -> None:
    sources = "\n".join(path.read_text() for path in sorted(Path("/etc/apt").glob("sources.list*/**/*.sources")))
    found = re.search(r"^URIs:\s*(\S+/debian/?)$", sources, re.M)
    mirror = found[1] if found else "http://deb.debian.org/debian"
    bootstrap = ["mmdebstrap", "--variant=apt", f"--include={PACKAGES}", "bookworm", str(root), mirror]
    subprocess.run(bootstrap, check=True, stdout=sys.stderr, stderr=subprocess.DEVNULL)
    for name in COPIED:
        if (Path("/") / name).exists():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", f"/{name}", str((root / name).parent)], check=True)
    subprocess.run(["chroot", str(root), "useradd", "--create-home", "--shell", "/bin/bash", USER], check=True)
    (root / "etc/sudoers.d/newcomer").write_text(f"{USER} ALL=(root) NOPASSWD: ALL\n", encoding="ascii")
    pip = Path.home() / ".config/pip/pip.conf"
    if pip.exists():
        target = root / f"home/{USER}/.config/pip/pip.conf"
        target.parent.mkdir(parents=True)
        shutil.copyfile(pip, target)


def _run(root: Path, command: list[str], home: str) -> float:
    """Run one command as the newcomer; return its seconds. Raises `CalledProcessError`."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_", "http"))}
    kept["PIP_FIND_LINKS"] = " ".join(filter(None, (kept.get("PIP_FIND_LINKS"), "/dist")))
    variables = [f"{name}={value}" for name, value in kept.items()]
    # A farm that the last command starts must outlive it: the namespaces end with their first process, so the commands share no process.
    words = ["runuser", "-u", USER, "--", "env", "-C", home, f"HOME={home}", f"USER={USER}", *variables, *command]
    started = time.monotonic()
    enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", ENTER, "enter", str(root), *words]
    subprocess.run(enter, check=True, stdout=sys.stderr)
    return time.monotonic() - started
