"""The packages layer: a root file system from Debian packages, which a build that was interrupted goes on with.

Role: make the base with mmdebstrap, then let the image's own apt and pip install the recipe's packages.
Rule: no service is ever started; no file of the host is used but its resolver's address; progress is told line by
line. A step that was finished is not repeated: the base appears by rename, apt keeps what it downloaded, dpkg goes on
with what was unpacked. Programs of the image run in name spaces of their own, which end with them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from imagebuild.errors import BuildError, UsageError
from imagebuild.recipe import Recipe

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MIN_FREE_BYTES = 6 * 1024**3
CLEAN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
POLICY = "#!/bin/sh\nexit 101\n"
DONE = "done"
TOLD_EVERY = 50
"""Packages between two lines of progress."""

NO_PACKAGE = re.compile(r"E: (?:Unable to locate package (\S+)|Package '(\S+)' has no installation candidate)")

COUNTED = (("Get:", "downloaded"), ("Unpacking ", "unpacked"), ("Setting up ", "set up"))

Say = Callable[[str], None]


APART = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
"""Name spaces of a command's own: when it is killed all that it started ends, and its mounts are gone before the tree is touched."""


def check_host(parent: Path) -> None:
    """Raises UsageError with the fix when a tool, the key ring or disk space is missing."""
    missing = []
    if shutil.which("mmdebstrap", path=CLEAN_PATH) is None:
        missing.append("mmdebstrap")
    if not KEYRING.is_file():
        missing.append("debian-archive-keyring")
    if missing:
        raise UsageError(
            f"building an image needs {' and '.join(missing)}: run 'apt-get install -y {' '.join(missing)}'"
        )
    free = shutil.disk_usage(parent).free
    if free < MIN_FREE_BYTES:
        raise UsageError(
            f"{parent} has {free // 1024**2} MiB free and a build needs {MIN_FREE_BYTES // 1024**2} MiB:"
            " free some space or choose another place with --home"
        )


def check_compiler() -> None:
    """Raises UsageError with the fix when the host has no C compiler, which the guest's library is made with."""
    if shutil.which("cc", path=CLEAN_PATH) is None:
        raise UsageError("building an image needs a C compiler: run 'apt-get install -y gcc libc6-dev'")


def mmdebstrap_argv(recipe: Recipe, target: Path) -> list[str]:
    """The whole command that makes the base; it ends early where the archive lacks a package of the recipe."""
    options = [f"--dpkgopt=path-exclude={path}" for path in recipe.exclude_paths]
    options += [f"--dpkgopt=path-include={path}" for path in recipe.include_paths]
    options += ["--dpkgopt=force-unsafe-io"]
    options += ['--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Languages "none"']
    options += ['--aptopt=Acquire::Retries "3"']
    plan = f"apt-get -q --simulate install {shlex.join(recipe.packages)}"
    options += [f"--setup-hook=export APT_CONFIG=$MMDEBSTRAP_APT_CONFIG; apt-get -q update && {plan} >/dev/null"]
    return [
        *APART,
        "--mount-proc",
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        "--format=directory",
        *options,
        recipe.suite,
        str(target),
        *recipe.sources(KEYRING),
    ]


def environment() -> dict[str, str]:
    """Of every program that a build runs."""
    clean = {"PATH": CLEAN_PATH, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}
    return clean | {key: os.environ[key] for key in ("http_proxy", "https_proxy", "no_proxy") if key in os.environ}


def inside(rootfs: Path, argv: list[str]) -> list[str]:
    """The command that runs a program of the image with its own /proc; whatever it leaves running ends with it."""
    return [*APART, f"--root={rootfs}", "--mount-proc=/proc", *argv]


class Teller:
    """Turns the output of mmdebstrap, apt and dpkg into few lines of progress; keeps the packages that the archive lacks."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.lacking: list[str] = []
        self.counts: dict[str, int] = {}
        self.total = 0

    def line(self, line: str) -> None:
        """One line of output."""
        if line.startswith("I: running --setup-hook"):
            self.say("fetching the lists of packages, and looking for those of the recipe")
        elif line.startswith("I: ") and "signed-by" not in line:
            self.say(line[3:].strip().removesuffix("..."))
        if lacking := NO_PACKAGE.match(line):
            self.lacking.append(lacking[1] or lacking[2])
        if planned := re.search(r"(\d+) newly installed", line):
            self.total = int(planned[1])
        for start, word in COUNTED:
            if line.startswith(start):
                self.counts[word] = self.counts.get(word, 0) + 1
                if self.counts[word] % TOLD_EVERY == 0:
                    of = (
                        f" of {self.total}" if self.counts[word] <= self.total else ""
                    )  # a resumed build goes on with more than apt plans
                    self.say(f"{word} {self.counts[word]}{of} packages")


def run_logged(argv: list[str], log: Path, teller: Teller) -> None:
    """Run a command, which ends with the builder, a killed one, too; keep its output in `log`. Raises BuildError, which names the log."""
    tail: list[str] = []
    with (
        log.open("a", encoding="utf-8") as kept,
        subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
            process_group=0,
            text=True,
            errors="replace",
        ) as child,
    ):
        assert child.stdout is not None
        try:
            for line in child.stdout:
                kept.write(line)
                tail = [*tail[-4:], line.strip()]
                teller.line(line)
        except BaseException:  # interrupted, too, the builder's processes end first; raised again
            os.killpg(child.pid, signal.SIGKILL)
            child.stdout.read()
            child.wait()
            raise
        code = child.wait()
    if code != 0 and teller.lacking:
        names = ", ".join(dict.fromkeys(teller.lacking))
        raise BuildError(
            f"the archive has no package {names}; correct [packages] and run the same command again ({log})"
        )
    if code != 0:
        name = next(word for word in argv if not word.startswith("-") and word != APART[0])
        raise BuildError(f"{name} failed ({' / '.join(tail)}); the whole log is {log}")


def bootstrap(recipe: Recipe, layer: Path, log: Path, say: Say) -> Path:
    """The root file system with all packages, in the directory `layer`, which may hold what an earlier call finished."""
    rootfs = layer / "rootfs"
    if (layer / DONE).exists():
        say("taking the packages over from an earlier build")
        return rootfs
    layer.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    teller = Teller(say)
    if rootfs.is_dir():
        say("going on with the build that was interrupted")
    else:
        base = layer / "base"
        if base.exists():
            shutil.rmtree(base)
        run_logged(mmdebstrap_argv(recipe, base), log, teller)
        os.rename(base, rootfs)
    policy = rootfs / "usr/sbin/policy-rc.d"
    policy.write_text(POLICY, encoding="ascii")
    policy.chmod(0o755)
    resolver = rootfs / "etc/resolv.conf"
    shutil.copyfile("/etc/resolv.conf", resolver)
    apt = ["apt-get", "-q", "-y", "--no-install-recommends"]
    steps = [
        ["dpkg", "--configure", "-a"],
        [*apt, "update"],
        [*apt, "--download-only", "install", *recipe.packages],
        [*apt, "install", *recipe.packages],
        [*apt, "clean"],
    ]
    for step in steps:
        run_logged(inside(rootfs, step), log, teller)
    resolver.unlink()
    (layer / DONE).touch()
    return rootfs
