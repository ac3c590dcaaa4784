"""What a scorer's process does when the one that asks it is gone.

Role: `exit_with_parent`, which looks at the pipe of requests from a thread of its own. Rule: when nobody holds its other end any more
(the asker was killed, so that it could not tidy up), this process's home and the folder of the evaluation at hand are removed and the
process ends with its children, in the middle of a request, too. Non-goals: an asker that ends in good order, which does all this itself.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import threading
from pathlib import Path

HOME_PREFIX = "dart-scorer-"
FOLDER_PREFIX = "dart-evaluation-"
evaluation_folders: set[str] = set()
"""Folders of the evaluation that runs, or ran last."""


def exit_with_parent(pipe: int) -> None:
    """From now on, end when the other end of `pipe` is closed."""
    threading.Thread(target=_wait_for_parent, args=(pipe,), name="exit_with_parent", daemon=True).start()


def _wait_for_parent(pipe: int) -> None:
    poll = select.poll()
    poll.register(pipe, 0)  # asked for nothing, it reports that the other end was closed
    poll.poll()
    remove_folders()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def remove_folders() -> None:
    """Remove what is this process's own; a folder by another name is somebody else's."""
    home = os.environ.get("HOME", "")
    for folder, prefix in [(home, HOME_PREFIX), *((folder, FOLDER_PREFIX) for folder in evaluation_folders)]:
        if Path(folder).name.startswith(prefix):
            shutil.rmtree(folder, ignore_errors=True)
