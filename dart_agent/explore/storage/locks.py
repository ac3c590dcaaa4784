"""Locks of an exploration.

Role: `hold_folder`, so that one process explores in a folder. Rule: a lock ends with the process that holds it, however that ends; reading
needs none. Non-goals: what is stored (`dart_agent.explore.store`).
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dart_agent.errors import ConfigError

LOCK_FILE = "lock"


@contextmanager
def hold_folder(out: Path) -> Iterator[None]:
    """Hold the folder of an exploration, so that one process explores in it; reading it needs no hold.

    Args:
        out: The folder, which is made where it is not there.

    Yields:
        Nothing.

    Raises:
        ConfigError: Another process explores in it, or its file system has no locks.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK_FILE).open("w", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with this process, however that ends
        except BlockingIOError:
            raise ConfigError(
                f"another process explores in {out}: wait for it or stop it, or give another folder"
            ) from None
        except OSError as error:
            raise ConfigError(f"{out} cannot be locked: {error.strerror}; give a folder on another disk") from error
        yield
