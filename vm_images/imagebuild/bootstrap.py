"""The packages layer: a root file system from Debian packages.

Role: run mmdebstrap with the recipe's packages and path filters.
Rule: no service is ever started; no file of the host is used; progress is told line by line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from imagebuild.errors import BuildError, UsageError
from imagebuild.recipe import Recipe

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MIN_FREE_BYTES = 3 * 1024**3
CLEAN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Say = Callable[[str], None]


def check_host(parent: Path) -> None:
    """Raises UsageError with the cure when a tool, the key ring or disk space is missing."""
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


def mmdebstrap_argv(recipe: Recipe, target: Path) -> list[str]:
    """The whole command."""
    options = [f"--dpkgopt=path-exclude={path}" for path in recipe.exclude_paths]
    options += [f"--dpkgopt=path-include={path}" for path in recipe.include_paths]
    options += ["--dpkgopt=force-unsafe-io"]
    options += ['--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Languages "none"']
    options += ['--aptopt=Acquire::Retries "3"']
    return [
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        "--format=directory",
        f"--include={','.join(recipe.packages)}",
        *options,
        recipe.suite,
        str(target),
        *recipe.sources(KEYRING),
    ]


def bootstrap(recipe: Recipe, target: Path, log: Path, say: Say) -> None:
    """Make the root file system in `target` (which must not exist), telling all in `log`; raises BuildError, which names the log."""
    environment = {"PATH": CLEAN_PATH, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}
    environment |= {key: os.environ[key] for key in ("http_proxy", "https_proxy", "no_proxy") if key in os.environ}
    tail: list[str] = []
    with (
        log.open("w", encoding="utf-8") as kept,
        subprocess.Popen(
            mmdebstrap_argv(recipe, target),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            errors="replace",
        ) as child,
    ):
        assert child.stdout is not None
        try:
            for line in child.stdout:
                kept.write(line)
                tail = [*tail[-4:], line.strip()]
                if line.startswith("I: ") and "signed-by" not in line:
                    say(line[3:].strip().removesuffix("..."))
        except BaseException:
            # Interrupted: mmdebstrap undoes its mounts before it ends, and only then may the tree be removed.
            child.terminate()
            child.stdout.read()
            child.wait()
            raise
        code = child.wait()
    if code != 0:
        raise BuildError(f"mmdebstrap failed ({' / '.join(tail)}); the whole log is {log}")
