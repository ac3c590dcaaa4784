"""The layers on top of the packages: account and system settings, then the guest agent.

Role: turn a root file system of packages into a desktop.
Rule: files are replaced, never written in place, because a cheap rebuild shares the packages by hard links.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from imagebuild.bootstrap import CLEAN_PATH, POLICY, Say, environment, inside
from imagebuild.errors import BuildError
from imagebuild.manifest import guest_files, recipe_files
from imagebuild.recipe import Recipe, User

AGENT_DIR = "usr/lib/dart"
INIT_PATH = "usr/sbin/dart-init"
CLOCK_LIBRARY = f"{AGENT_DIR}/clock/dart_clock.so"
PRELOAD_FILE = "etc/ld.so.preload"
"""Programs with a set-user-id bit are given what stands here, too."""
PYTHON_PATH_FILE = "usr/lib/python3/dist-packages/dart-guest.pth"
"""Lets the desktop's own python3 import what lies beside the agent: `pyautogui`."""
INIT_SCRIPT = """#!/usr/bin/python3 -IB
import sys

sys.path.insert(0, "/usr/lib/dart")
from dart_guest.init import main

sys.exit(main())
"""

SYSTEM_FILES = {
    "etc/hostname": "desktop\n",
    "etc/hosts": "127.0.0.1 localhost desktop\n::1 localhost\n",
    "etc/machine-id": "",
    "etc/default/locale": "LANG=C.UTF-8\n",
    "etc/dconf/profile/user": "user-db:user\nsystem-db:local\n",
    "etc/xdg/user-dirs.conf": "enabled=False\n",
}
WRITTEN_IN_PLACE = ("etc", "var")
"""Where useradd keeps its last versions, dpkg its locks: an installed image would change under its desktops at the next build."""
HOME_FOLDERS = ("Desktop", "Documents", "Downloads", "Music", "Pictures", "Public", "Templates", "Videos")
LAST_CHARS, WARM_LINES = 400, 20
"""How much is told of what a program printed: characters of one that failed, lines of a warm command."""
FONT_DIRS = ("usr/share/fonts", "usr/local/share/fonts")
PRUNED = (
    "var/cache/apt", "var/cache/debconf", "var/lib/apt/lists", "var/log", "usr/share/icons/HighContrast",
    "usr/share/pixmaps/debian-logo.png",
)  # fmt: skip


def run_inside(rootfs: Path, argv: list[str], stdin: str = "") -> tuple[int, str]:
    """Run a program of the image: its exit code and all that it printed."""
    ended = subprocess.run(
        inside(rootfs, argv),
        input=stdin,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        env={"PATH": CLEAN_PATH, "LC_ALL": "C.UTF-8", "HOME": "/root"},
    )
    return ended.returncode, ended.stdout.strip()


def chroot(rootfs: Path, argv: list[str], stdin: str = "") -> None:
    """Run a program of the image; raises BuildError with its last words."""
    code, printed = run_inside(rootfs, argv, stdin)
    if code != 0:
        raise BuildError(f"{argv[0]} failed inside the image: {printed[-LAST_CHARS:]}")


def replace_file(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Write a file beside the old one and put it in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.dart-new")
    fresh.write_bytes(content.encode() if isinstance(content, str) else content)
    fresh.chmod(mode)
    os.replace(fresh, path)


def share(source: Path, target: Path) -> None:
    """Copy a root file system: by hard links, but for what programs of the image may write in place when they run in the copy."""
    copies = [(["cp", "-al"], source, target)]
    copies += [(["cp", "-a"], source / name, target / name) for name in WRITTEN_IN_PLACE if (source / name).is_dir()]
    for command, original, copy in copies:
        remove(copy)
        ended = subprocess.run([*command, str(original), str(copy)], capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise BuildError(f"the packages of {source} could not be shared: {ended.stderr.strip()[-400:]}")


def lay_system(rootfs: Path, recipe: Recipe, files: Path, say: Say) -> None:
    """The account, its folders, the files that make a system of the packages, those of the recipe, and what its warm commands leave."""
    user = recipe.user
    chroot(rootfs, ["useradd", "-m", "-u", str(user.uid), "-s", "/bin/bash", "-G", ",".join(user.groups), user.name])
    chroot(rootfs, ["chpasswd"], f"{user.name}:{user.password}\n")
    home = rootfs / "home" / user.name
    for name in HOME_FOLDERS:
        (home / name).mkdir()
        os.chown(home / name, user.uid, user.uid)
    for name, text in SYSTEM_FILES.items():
        replace_file(rootfs / name, text)
    replace_file(rootfs / "usr/sbin/policy-rc.d", POLICY, 0o755)
    for name in PRUNED:
        remove(rootfs / name)
    for name in ("var/log", "var/cache/apt/archives/partial", "var/lib/apt/lists/partial"):
        (rootfs / name).mkdir(parents=True, exist_ok=True)
    cache_fonts(rootfs)
    lay_files(rootfs, recipe, files)
    for number, command in enumerate(recipe.warm, 1):
        warm(rootfs, recipe.user, command, number, say)


def cache_fonts(rootfs: Path) -> None:
    """Fontconfig's cache, true in every form of the image: it counts a directory's nanoseconds, which tars and disks may drop."""
    for name in FONT_DIRS:
        for directory, _, _ in os.walk(rootfs / name):
            whole_s = int(os.stat(directory).st_mtime)
            os.utime(directory, (whole_s, whole_s))
    chroot(rootfs, ["fc-cache", "-s"])


def lay_files(rootfs: Path, recipe: Recipe, files: Path) -> None:
    """The recipe's own files; what lies in the user's home, the directories on the way too, belongs to the user."""
    home = Path("home") / recipe.user.name
    for source in recipe_files(files):
        name = source.relative_to(files)
        mode = 0o755 if source.stat().st_mode & 0o111 else 0o644
        replace_file(rootfs / name, source.read_bytes(), mode)
        if name.is_relative_to(home):
            for owned in (name, *name.parents):
                if owned.is_relative_to(home) and owned != home:
                    os.chown(rootfs / owned, recipe.user.uid, recipe.user.uid)


def warm(rootfs: Path, user: User, command: tuple[str, ...], number: int, say: Say) -> None:
    """Run a command as the user, so that it leaves its profile and its settings; temporary files are removed.

    It has a D-Bus session of its own, without which `gsettings set` keeps nothing. What it prints is told, not what D-Bus logs.
    Raises BuildError with its last words.
    """
    called = f"warm command {number} (`{shlex.join(command)}`)"
    drop = ["setpriv", f"--reuid={user.uid}", f"--regid={user.uid}", "--init-groups"]
    variables = [f"HOME=/home/{user.name}", f"USER={user.name}", "GIO_USE_VFS=local"]
    say(called)
    code, printed = run_inside(rootfs, [*drop, "env", *variables, "dbus-run-session", "--", *command])
    if code != 0:
        raise BuildError(
            f"{called} failed with exit code {code}: {printed[-LAST_CHARS:]}; correct `warm` and run the same command again,"
            " the packages are kept"
        )
    for line in [line for line in printed.splitlines() if not line.startswith("dbus-daemon[")][-WARM_LINES:]:
        say(f"  {line}")
    for left in (rootfs / "tmp").iterdir():
        remove(left)


def remove(path: Path) -> None:
    """Remove a file or a tree, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def lay_guest(rootfs: Path, guest_dir: Path) -> None:
    """The agent and init, byte-compiled, and the default look."""
    target = rootfs / AGENT_DIR
    remove(target)
    for source in guest_files(guest_dir):
        place = target / source.relative_to(guest_dir)
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".c":
            compile_library(source, place.with_suffix(".so"))
        else:
            shutil.copyfile(source, place)
    replace_file(rootfs / PRELOAD_FILE, f"/{CLOCK_LIBRARY}\n")
    replace_file(rootfs / PYTHON_PATH_FILE, f"/{AGENT_DIR}\n")
    replace_file(rootfs / INIT_PATH, INIT_SCRIPT, 0o755)
    compile_argv = ["python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    chroot(rootfs, [*compile_argv, f"/{AGENT_DIR}"])
    program = f"import sys; sys.path.insert(0, '/{AGENT_DIR}'); from dart_guest import look, session; "
    chroot(
        rootfs, ["python3", "-B", "-c", program + "look.apply(session.DEFAULT_FONT_SIZE, session.DEFAULT_RESOLUTION)"]
    )


def compile_library(source: Path, target: Path) -> None:
    """A shared library for the programs of the image, by the host's compiler; raises BuildError with its first words."""
    argv = ["cc", "-std=gnu11", "-O2", "-Wall", "-fPIC", "-shared", "-o", str(target), str(source)]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment())
    if ended.returncode != 0:
        raise BuildError(f"{source.name} could not be compiled: {ended.stderr.strip()[:400]}")


def guest_version(guest_dir: Path) -> str:
    """The agent's version, read without importing it."""
    for line in (guest_dir / "dart_guest" / "__init__.py").read_text(encoding="utf-8").splitlines():
        if line.startswith("VERSION"):
            return line.split("=", 1)[1].strip().strip('"')
    raise BuildError("the guest agent has no VERSION")


def measure(rootfs: Path) -> tuple[int, int]:
    """(bytes on disk, files), hard links counted once."""
    seen: set[tuple[int, int]] = set()
    total = files = 0
    for directory, _, names in os.walk(rootfs):
        for name in names:
            status = os.lstat(os.path.join(directory, name))
            files += 1
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
    return total, files
