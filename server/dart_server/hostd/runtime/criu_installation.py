"""CRIU for the host: finds one that is new enough, or installs a Debian build of it beside its own libraries.

Rule: the system is never changed. Packages are fetched by apt with a private configuration (own sources, state and
cache, the host's proxy settings), unpacked under `/usr/local/lib/dart-hostd/tools/`, owned by root, and run through their own dynamic
loader, so that any host of the same architecture can run them.
Non-goals: other tools (runc comes from the host's own packages).

Command: the installed program `dart-criu install`, which `dart-farm setup` runs; exit code 2 with one sentence when it cannot.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dart_server.hostd.installation import INSTALL_DIR

CRIU_REQUIREMENTS = (((6, 16), (4, 2), "forky"), ((0, 0), (4, 0), "trixie"))
"""(from this kernel on, at least this CRIU, from this Debian suite), newest first. CRIU 4.1 cannot save any process with
a TCP or UDP socket on Linux 6.16 and newer: the kernel refuses two socket options that it asks for."""

FALLBACK_MIRROR = "http://deb.debian.org/debian/"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
TOOL_DIR = Path("tools") / "criu-4"
COMMAND_TIMEOUT_S = 300.0


class ToolError(Exception):
    """A host tool is missing or cannot be installed; the message names the fix."""


def criu_version(criu: str | Path) -> tuple[int, int] | None:
    """(major, minor) as reported by a CRIU executable, or None when it does not run."""
    try:
        done = subprocess.run([str(criu), "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"Version:\s*(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found and done.returncode == 0 else None


def required_version() -> tuple[tuple[int, int], str]:
    """(oldest CRIU for this host's kernel, Debian suite that has one)."""
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    kernel = (int(found[1]), int(found[2])) if found else (0, 0)
    return next((version, suite) for since, version, suite in CRIU_REQUIREMENTS if kernel >= since)


def installed_criu(directory: Path) -> Path:
    """Where `install` puts the executable wrapper under the tools directory."""
    return directory / TOOL_DIR / "bin" / "criu"


def find_criu(directory: Path | None) -> Path | None:
    """A CRIU that is new enough: the host's own, else the installed one, else None."""
    on_path = shutil.which("criu", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    candidates = [Path(on_path)] if on_path else []
    if directory is not None:
        candidates.append(installed_criu(directory))
    for candidate in candidates:
        version = criu_version(candidate) if candidate.exists() else None
        if version is not None and version >= required_version()[0]:
            return candidate
    return None


def install(directory: Path) -> Path:
    """Return a CRIU that is new enough, installing one under `directory` when the host has none. Idempotent.

    Raises ToolError with the fix when apt, dpkg, the network or the result fails.
    """
    found = find_criu(directory)
    if found is not None:
        return found
    minimum, suite = required_version()
    wanted = ".".join(map(str, minimum))
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise ToolError(f"{tool} is not on this host: install CRIU {wanted} or newer by hand")
    target = directory / TOOL_DIR
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="criu-install-", dir=target.parent) as scratch_name:
        scratch = Path(scratch_name)
        packages = _download_closure(scratch, suite, ["criu", "libc6"])
        fresh = scratch / "criu"
        for package in packages:
            _run(["dpkg-deb", "-x", str(package), str(fresh)])
        _write_wrapper(fresh)
        if target.exists():
            shutil.rmtree(target)
        fresh.rename(target)
    criu = installed_criu(directory)
    version = criu_version(criu)
    if version is None or version < minimum:
        raise ToolError(f"the CRIU installed in {target} is not {wanted}: install CRIU {wanted} or newer by hand")
    return criu


def _write_wrapper(root: Path) -> None:
    loaders = sorted(root.glob("usr/lib/*/ld-linux-*.so.*")) + sorted(root.glob("usr/lib*/ld-linux-*.so.*"))
    programs = [path for path in (root / "usr/sbin/criu", root / "usr/bin/criu") if path.exists()]
    if not loaders or not programs:
        raise ToolError("the CRIU packages have an unknown layout: install CRIU 4 from your distribution")
    loader, program = loaders[0].relative_to(root), programs[0].relative_to(root)
    libraries = loader.parent
    wrapper = root / "bin" / "criu"
    wrapper.parent.mkdir()
    wrapper.write_text(
        "#!/bin/sh\n"
        "here=${0%/*}/..\n"
        f'exec "$here/{loader}" --library-path "$here/{libraries}" "$here/{program}" "$@"\n',
        encoding="utf-8",
    )
    wrapper.chmod(0o755)


def _download_closure(scratch: Path, suite: str, names: list[str]) -> list[Path]:
    """Download packages and the libraries they depend on (only packages named `lib…` are followed)."""
    options = _private_apt(scratch, suite)
    _run(["apt-get", *options, "update"])
    pool = scratch / "debs"
    pool.mkdir()
    seen: set[str] = set()
    queue = list(names)
    packages: list[Path] = []
    while queue:
        batch = [name for name in dict.fromkeys(queue) if name not in seen]
        queue = []
        if not batch:
            break
        seen.update(batch)
        before = set(pool.glob("*.deb"))
        _run(["apt-get", *options, "download", *batch], cwd=pool)
        for package in sorted(set(pool.glob("*.deb")) - before):
            packages.append(package)
            depends = _run(["dpkg-deb", "-f", str(package), "Depends", "Pre-Depends"])
            queue.extend(library_dependencies(depends))
    return packages


def library_dependencies(control_fields: str) -> list[str]:
    """Names of the `lib…` packages in dpkg's `Depends:` fields; the first of alternatives, versions dropped."""
    names = []
    for line in control_fields.splitlines():
        for clause in line.partition(":")[2].split(",") if ":" in line else line.split(","):
            name = clause.split("|")[0].split("(")[0].strip().split(":")[0]
            if name.startswith("lib"):
                names.append(name)
    return names


def _private_apt(scratch: Path, suite: str) -> list[str]:
    for part in ("state/lists/partial", "cache/archives/partial", "etc"):
        (scratch / part).mkdir(parents=True)
    (scratch / "state/status").touch()
    keyring = f" [signed-by={KEYRING}]" if KEYRING.exists() else ""
    sources = scratch / "etc/sources.list"
    sources.write_text(f"deb{keyring} {debian_mirror()} {suite} main\n", encoding="utf-8")
    settings = {
        "Dir::Etc::sourcelist": str(sources),
        "Dir::Etc::sourceparts": "/nonexistent",
        "Dir::Etc::preferences": "/nonexistent",
        "Dir::Etc::preferencesparts": "/nonexistent",
        "Dir::State": str(scratch / "state"),
        "Dir::State::status": str(scratch / "state/status"),
        "Dir::Cache": str(scratch / "cache"),
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    return ["-qq", *(item for key, value in settings.items() for item in ("-o", f"{key}={value}"))]


def debian_mirror() -> str:
    """The Debian mirror this host's apt already uses, else the public one."""
    listing = ["apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI)", "Created-By: Packages"]
    done = subprocess.run(listing, capture_output=True, text=True, timeout=60, check=False)
    for uri in done.stdout.split():
        if re.fullmatch(r"(https?|file|copy)://?\S+/debian/?", uri):
            return uri
    return FALLBACK_MIRROR


def _run(argv: list[str], cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError(
            f"{argv[0]} took longer than {COMMAND_TIMEOUT_S:.0f} s: check the network and try again"
        ) from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.strip().splitlines() if line] or ["no message"]
        fix = "install the package debian-archive-keyring" if "NO_PUBKEY" in done.stderr else "check the network"
        raise ToolError(f"{argv[0]} failed ({lines[-1]}): {fix} and run the command again")
    return done.stdout


def main(argv: list[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(prog="dart-criu", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("install", "find"):
        command = commands.add_parser(name)
        command.add_argument("--tools-dir", type=Path, default=INSTALL_DIR, help="where CRIU is installed")
    chosen = parser.parse_args(argv)
    directory = chosen.tools_dir.expanduser().resolve()
    try:
        criu = install(directory) if chosen.command == "install" else find_criu(directory)
    except ToolError as error:
        print(f"dart-hostd tools: {error}", file=sys.stderr)
        return 2
    if criu is None:
        print(
            "no CRIU that is new enough: run `dart-farm setup`",
            file=sys.stderr,
        )
        return 1
    print(criu)
    return 0


if __name__ == "__main__":
    sys.exit(main())
