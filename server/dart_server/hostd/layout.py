"""Names and places: everything dart-hostd makes carries one prefix and lies in one directory.

`Layout` is computed once from the command line. Paths under `live` exist only inside the helper's own mount namespace
and vanish with it; what the host can see is the socket, the log, and the control groups named `prefix`.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Layout:
    """Where one helper keeps its things; `owner_uid` is the user it works for."""

    owner_uid: int
    state_dir: Path
    runtime_dir: Path
    images_dir: Path
    store_dir: Path
    """Snapshots and written files are kept here when this is on a disk; on a tmpfs the helper mounts its own."""

    @property
    def prefix(self) -> str:
        """Ownership prefix: differs for every (user, state directory) pair."""
        digest = hashlib.sha256(os.fsencode(self.state_dir.resolve())).hexdigest()[:8]
        return f"dart-{self.owner_uid}-{digest}"

    @property
    def socket(self) -> Path:
        """The helper's listening socket."""
        return self.runtime_dir / "hostd.sock"

    @property
    def lock(self) -> Path:
        """Held while a helper works on this state directory."""
        return self.state_dir / "hostd.lock"

    @property
    def failure_log(self) -> Path:
        """CRIU's log of the latest checkpoint or restore that failed."""
        return self.state_dir / "criu-failure.log"

    @property
    def live(self) -> Path:
        """Mount point of the private tmpfs that holds all desktops, layers and snapshots."""
        return self.state_dir / "live"

    @property
    def disk(self) -> Path:
        """Where snapshots and written files go when they are kept on disk instead of memory."""
        return self.store_dir / self.prefix
