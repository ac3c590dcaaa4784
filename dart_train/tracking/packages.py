"""Which packages for tracking are installed.

Role: `missing_packages`. Rule: nothing is imported to find out. Non-goals: other packages of a run (`dart_train.run.preflight`).
"""

from __future__ import annotations

import importlib.util

from dart_server.wire.extras import install_command


def missing_packages(extras: tuple[str, ...]) -> list[str]:
    """Find out which packages for tracking are not installed.

    Args:
        extras: The extras, each of which brings the package of its name.

    Returns:
        One sentence with the command that installs it for each.
    """
    return [
        f"the Python package {name} is not installed: {install_command(name)}"
        for name in extras
        if importlib.util.find_spec(name) is None
    ]
