"""`dart-farm images`: what is installed, and the builder's verbs.

Role: list the images; hand `build`, `verify`, `rm` and `add` to the programs of `vm_images`, as processes; `verify` to the client's
conformance suite, too.
Rule: a builder's exit code is this command's: 2 for wrong input, before anything starts; 1 for a build that failed. With `--json` its
progress is not shown, and its last word is the document or the error.
Non-goals: building; booting anything itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from dart_server.cli.session import address, key_for, load_settings, request
from dart_server.cli.terminal import Json, fail, show, show_rows
from dart_server.process.host_setup import builder_directory

if TYPE_CHECKING:
    from dart_server.settings import FarmSettings

CONFORMANCE = "dart_envs.testing.image_conformance"
"""The program that asks a desktop of an image for its promises; a process like the others, for the farm's own code knows no client."""
PACKAGES_PREFIX, LEFTOVER_PREFIXES = ".packages-", (".build-", ".removed-")
"""How the builder calls the folders of packages, and those that an interrupted build or removal leaves."""
FARM_START_LIMIT_S = 300.0
POLL_S = 0.1

Name = Annotated[str, typer.Argument(help="The image's name.")]

app = typer.Typer(help="The desktop images: list (the default), build, verify, rm, add.", invoke_without_command=True)


@app.callback()
def images(context: typer.Context, as_json: Json = False) -> None:
    """The desktop images that are installed."""
    if context.invoked_subcommand is None:
        list_images(as_json)


@app.command("list")
def list_images(as_json: Json = False) -> None:
    """All builds of the images: `current`, which desktops start from; `kept`, an older one; `unfinished`, left by a failed one."""
    folders = sorted(path for path in (load_settings().home / "images").glob("[!.]*") if path.is_dir())
    rows = [row for folder in folders for row in (*_finished(folder), *_unfinished(folder))]
    show_rows(rows, ("name", "digest", "state", "size_mib", "packages", "artefacts", "built_at", "path"), as_json)


def _finished(folder: Path) -> list[dict[str, Any]]:
    """The builds of an image that have a manifest, the current one first, then the newest."""
    current = (folder / "current").resolve().name
    rows = []
    for place in folder.glob("[!.]*"):
        told = None if place.is_symlink() else _manifest(place)
        if told is not None:
            state = "current" if place.name == current else "kept"
            row = {"name": folder.name, "digest": str(told.get("digest", place.name)), "state": state}
            rows.append(row | _described(place, told) | {"path": str(place.resolve())})
    rows.sort(key=lambda row: str(row["built_at"]), reverse=True)
    return sorted(rows, key=lambda row: row["state"] != "current")


def _manifest(place: Path) -> dict[str, Any] | None:
    """The manifest of a build; None where it has none that can be read."""
    try:
        told = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def _described(place: Path, told: dict[str, Any]) -> dict[str, Any]:
    """What an image's manifest tells of it: `size_mib`, the number of `packages`, its `artefacts`, `built_at`; None where it does not."""
    size, packages, made = told.get("size_bytes"), told.get("packages"), told.get("artefacts")
    has = ["rootfs"] if (place / "rootfs").is_dir() else []
    return {
        "size_mib": size >> 20 if isinstance(size, int) else None,
        "packages": len(packages) if isinstance(packages, dict) else None,
        "artefacts": has + (sorted(made) if isinstance(made, dict) else []),
        "built_at": told.get("built_at"),
    }


def _unfinished(folder: Path) -> list[dict[str, Any]]:
    """What failed and interrupted builds left, and packages that no finished build shares."""
    rows = []
    for place in sorted(folder.glob(".*-*")):
        unused = place.name.startswith(PACKAGES_PREFIX) and not _is_shared(place / "rootfs/usr/bin/dpkg")
        if place.is_dir() and (unused or place.name.startswith(LEFTOVER_PREFIXES)):
            digest = place.name.removeprefix(PACKAGES_PREFIX).removeprefix(".")
            described: dict[str, Any] = {
                "size_mib": _disk_bytes(place) >> 20,
                "packages": None,
                "artefacts": [],
                "built_at": None,
            }
            rows.append(
                {"name": folder.name, "digest": digest, "state": "unfinished"} | described | {"path": str(place)}
            )
    return rows


def _is_shared(path: Path) -> bool:
    """Whether a file has more than one name: images share the files of their packages by hard links."""
    with contextlib.suppress(OSError):
        return path.stat().st_nlink > 1
    return False


def _disk_bytes(top: Path) -> int:
    """What the files of a folder take on the disk, those that this user may see and that nobody removes meanwhile."""
    total = 0
    for directory, _, names in os.walk(top):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(directory, name)).st_blocks * 512
    return total


@app.command()
def build(
    name: Annotated[str, typer.Argument(help="A recipe's name, or the path of your own (FOLDER/NAME.toml).")],
    force: Annotated[bool, typer.Option("--force", help="From nothing, whatever is there.")] = False,
    artefact: Annotated[str, typer.Option(help="rootfs, docker or qcow2.")] = "rootfs",
    as_json: Json = False,
) -> None:
    """Build an image of a recipe, or one more artefact of it; goes on where an interrupted build stopped."""
    recipe = str(Path(name).absolute()) if name.endswith(".toml") else name
    arguments = ["build", recipe, "--artefact", artefact, *(["--force"] if force else [])]
    _run_builder(arguments, {"built": name, "artefact": artefact}, as_json)


@app.command()
def rm(
    name: Name,
    digest: Annotated[str | None, typer.Argument(help="Only this build of it, as the list has it.")] = None,
    as_json: Json = False,
) -> None:
    """Remove an image, with what unfinished builds of it left."""
    _run_builder(["rm", name, *([digest] if digest else [])], {"removed": name}, as_json)


@app.command()
def add(
    name: Name,
    path: Annotated[Path, typer.Argument(help="A root file system (directory or tar) or a qcow2.")],
    as_json: Json = False,
) -> None:
    """Install an image from elsewhere."""
    _run_builder(["add", name, str(path.absolute())], {"added": name}, as_json)


@app.command()
def verify(
    name: Name,
    start_limit_s: Annotated[float | None, typer.Option(help="Seconds an application may take to show.")] = None,
    as_json: Json = False,
) -> None:
    """Boot the image, run the conformance suite on it, and check what a person and a task need of it.

    Starts a farm for that time when none runs.
    """
    from dart_server.process.preflight import installed_images

    settings = load_settings()
    places = {row["name"]: Path(row["path"]) for row in installed_images(settings)}
    known = list(places)
    if name not in known:
        fail(
            f"there is no image {name!r} (there is {', '.join(known) or 'none'}); build it: `dart-farm images build {name}`."
        )
    check_packages(settings.home / "images" / name / "current")
    own = None if request(settings, "/v1/farm") is not None else _start_farm(settings)
    url = address(settings)
    look = [
        sys.executable,
        str(_program("verify.py")),
        name,
        "--farm",
        url,
        "--manifest",
        str(places[name] / "manifest.json"),
    ]
    look += [] if start_limit_s is None else ["--start-limit-s", str(start_limit_s)]
    suite = [sys.executable, "-m", CONFORMANCE, name, "--farm", url]
    environment = {**os.environ, "DART_API_KEY": key_for(settings, url)}
    try:
        ended = [
            subprocess.run(argv, check=False, text=True, env=environment, stdout=_kept(as_json), stderr=_kept(as_json))
            for argv in (suite, look)
        ]
    finally:
        if own is not None:
            own.terminate()
            own.wait()
    # A program that a signal ended has a negative code.
    code = max(one.returncode if one.returncode >= 0 else 1 for one in ended)
    if as_json:
        found = [line for one in ended for line in (*one.stdout.splitlines(), *one.stderr.splitlines())]
        show({"verified": name, "ok": code == 0, "found": found}, "", as_json)
    raise typer.Exit(code)


def check_packages(place: Path) -> None:
    """End with exit code 1 when the packages of an image are not those that its manifest recorded when it was built."""
    from dart_server.process.sbom import image_packages

    try:
        problems = image_packages(place).problems
    except (OSError, ValueError) as error:
        fail(f"the image's manifest cannot be read ({error}); build it again with --force.", 1)
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        fail(f"the image is not what was built: {problems[0]}{more}; build it again with --force.", 1)


def _kept(as_json: bool) -> int | None:
    """Where what a program says goes: to this terminal, or into its result."""
    return subprocess.PIPE if as_json else None


def _start_farm(settings: FarmSettings) -> subprocess.Popen[bytes]:
    """A farm of our own; returns when it answers."""
    settings.runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = settings.runtime_dir / "farm.log"
    with log.open("ab") as kept:
        farm = subprocess.Popen(
            [sys.executable, "-m", "dart_server.cli", "serve", "--embedded"],
            stdin=subprocess.DEVNULL,
            stdout=kept,
            stderr=kept,
            start_new_session=True,
        )
    give_up_s = time.monotonic() + FARM_START_LIMIT_S
    while request(settings, "/v1/farm") is None:
        code = farm.poll()
        if code is not None:
            fail(f"the farm ended at its start with exit code {code}; see {log}, or run `dart-farm doctor`.", 1)
        if time.monotonic() > give_up_s:
            farm.terminate()
            farm.wait()
            fail(f"the farm did not answer within {FARM_START_LIMIT_S:.0f} s; see {log}, or run `dart-farm doctor`.", 1)
        time.sleep(POLL_S)
    return farm


def _program(name: str) -> Path:
    """Return a program of the image builder."""
    directory = builder_directory()
    if directory is None:
        fail("the image builder is not installed; install dart-rl again, with pip install --force-reinstall.")
    return directory / name


def _run_builder(arguments: list[str], done: dict[str, str], as_json: bool) -> NoReturn:
    """Run the builder with this terminal, or with `--json` for its last word; ends with its exit code."""
    argv = [sys.executable, "-u", str(_program("build.py")), *arguments, "--home", str(load_settings().home)]
    builder = subprocess.Popen(argv, text=True, stdout=_kept(as_json), stderr=_kept(as_json))
    while True:
        try:
            _, complaint = builder.communicate()
            break
        except KeyboardInterrupt:
            # The terminal interrupts the builder too, and it says what is left.
            continue
    if as_json and builder.returncode == 0:
        show(done, "", as_json)
    elif as_json:
        last = [line for line in complaint.splitlines() if line.strip()][-1:] or ["the builder ended without a word"]
        fail(last[0].removeprefix("error: "), builder.returncode)
    raise typer.Exit(builder.returncode)
