"""What a scorer's process does when the one that asks it is gone.

Role: `follow`, which looks at the pipe of requests from a thread of its own. Rule: when nobody holds its other end any more (the asker
was killed, so that it could not tidy up), this process's home and the folder of the evaluation at hand are removed and the process ends
with its children, in the middle of a request, too. Non-goals: an asker that ends in good order, which does all this itself.
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
at_hand: set[str] = set()
"""Folders of the evaluation that runs, or ran last."""


def follow(pipe: int) -> None:
    """From now on, end when the other end of `pipe` is closed."""
    threading.Thread(target=_wait, args=(pipe,), name="follow", daemon=True).start()


def _wait(pipe: int) -> None:
    poll = select.poll()
    poll.register(pipe, 0)  # asked for nothing, it reports that the other end was closed
    poll.poll()
    tidy_up()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def tidy_up() -> None:
    """Remove what is this process's own; a folder by another name is somebody else's."""
    home = os.environ.get("HOME", "")
    for folder, prefix in [(home, HOME_PREFIX), *((folder, FOLDER_PREFIX) for folder in at_hand)]:
        if Path(folder).name.startswith(prefix):
            shutil.rmtree(folder, ignore_errors=True)
