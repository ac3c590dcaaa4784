"""`dart-envs scorer`: the osworld scorer's installation.

Role: arguments and words. Non-goals: installing (`dart_envs.scorer.install`).
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dart_envs.cli.exits import runtime_error, usage_error
from dart_envs.errors import DartEnvError
from dart_envs.scorer import paths

app = typer.Typer(no_args_is_help=True, help="OSWorld's own evaluators, in an environment of their own.")


@app.command()
def install(
    extras: Annotated[
        str,
        typer.Option(
            "--with", help="packages of rare metrics too, with commas between: audio, googledrive, ocr, or all"
        ),
    ] = "",
    python: Annotated[str, typer.Option(help="the interpreter to make it with, Python 3.11 or 3.12")] = sys.executable,
) -> None:
    """Install desktop-env and what its evaluators need; about 800 MB. What is there already stays."""
    from dart_envs.scorer.install import InstallError, check_prerequisites
    from dart_envs.scorer.install import install as make

    chosen = [one.strip() for one in extras.split(",") if one.strip()]
    chosen = list(paths.EXTRAS) if chosen == ["all"] else chosen
    try:
        check_prerequisites(chosen, python)
    except InstallError as error:
        raise usage_error(str(error)) from None
    try:
        make(paths.scorer_folder(), chosen, python=python, on_message=lambda line: print(line, flush=True))
    except DartEnvError as error:
        raise runtime_error(str(error)) from None


@app.command()
def status() -> None:
    """Say what is installed, where, and whether it starts. Exit code 1 where it is not usable."""
    from dart_envs.scorer.workers import INSTALL_HINT, ScorerWorker

    folder = paths.scorer_folder()
    record = paths.read_installation(folder)
    if record is None:
        raise runtime_error(f"OSWorld's osworld scorer is not installed in {folder}. {INSTALL_HINT}")
    try:
        with ScorerWorker(folder) as worker:
            hello = worker.request({"op": "hello"}, timeout_s=60.0)
    except DartEnvError as error:
        raise runtime_error(f"{error} {INSTALL_HINT}") from None
    print(f"{folder}: desktop-env {hello['release']} on Python {hello['python']}")
    print(
        f"extras: {', '.join(record.extras) or 'none'}; {len(hello['metrics'])} metrics, {len(hello['getters'])} getters"
    )
    for package in hello["missing_packages"]:
        extra = paths.PACKAGE_EXTRAS.get(package)
        fix = f"dart-envs scorer install --with {extra}" if extra else "no task needs it"
        print(f"without {package}: {fix}")
    if record.pins != paths.pins_digest(record.extras):
        print(f"it was made from other pins than this version's; {INSTALL_HINT}")
