"""runc and CRIU as child processes: argv lists only, errors as one sentence with the tool's own last words."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from dart_server.hostd.errors import HostdError, HostdHostFault, HostdSnapshotBroken
from dart_server.hostd.linux import cgroups, inotify, rlimits
from dart_server.hostd.runtime import supervisor, syscall_filter

_log = logging.getLogger(__name__)

CRIU_SETTINGS = """\
ghost-limit 268435456
network-lock skip
"""
"""Unlinked files that are still open (Chromium has large ones) are saved too. A desktop's network is loopback only and all its processes
are frozen together, so no traffic has to be kept out meanwhile."""

_UNLOGGED = "log-file /dev/null\n"
HINTS = {
    "ctty inheritance detected": "CRIU does not save a terminal whose program has opened /dev/tty, as sudo does at its password prompt. "
    "Answer the prompt or end the program, then save the desktop.",
}
"""What to do about a failure, by a part of CRIU's words for it."""
"""For restores: runc asks CRIU for its whole log, and a tenth of a restore's time goes into writing that (1.4 MB for an idle desktop)."""


@dataclass(frozen=True, slots=True)
class Runc:
    """One runc with its own state directory; `criu` is found by runc through PATH."""

    program: Path
    criu: Path
    root: Path
    failure_log: Path
    """Where CRIU's whole log goes when a checkpoint or a restore fails (the latest one only)."""
    timeout_s: float = 120.0
    restore_timeout_s: float = 30.0
    """CRIU waits for ever on some damage; a desktop that was not brought back in this time is not coming."""
    profile_for_start: Callable[[], str] = str
    """Returns the AppArmor profile of a desktop that starts now, empty for none; may raise `HostdError`."""
    _filters: list[syscall_filter.Filter] = field(default_factory=list)
    """The desktops' filter as the kernel has it, once one has run."""

    def run(self, name: str, bundle: Path) -> int:
        """Start a container from its bundle; returns the host pid of its init."""
        pid_file = bundle / "init.pid"
        self._call(
            ["run", "--detach", "--bundle", str(bundle), "--pid-file", str(pid_file), name], bundle, HostdHostFault
        )
        pid = int(pid_file.read_text(encoding="ascii"))
        if not self._filters:
            self._filters.append(syscall_filter.read(pid))
        return pid

    def checkpoint(
        self,
        name: str,
        images: Path,
        work: Path,
        *,
        supervised: bool,
        further: Mapping[int, Sequence[syscall_filter.Filter]],
    ) -> None:
        """Write the container's processes and memory to `images`; it stays frozen or running as it was.

        `supervised`: CRIU needs answers that the kernel refuses it (`supervisor`); it gets them anyway where the host's root lacks rights.
        `further`: all filters of those processes that have more than the desktop's.
        """
        arguments = ["--image-path", str(images), "--work-path", str(work), "--leave-running"]
        self._call(
            ["checkpoint", *arguments, *self._checkpoint_options(), name],
            work,
            HostdHostFault,
            "dump.log",
            None,
            supervised,
            further,
        )

    def restore(self, name: str, bundle: Path, images: Path, work: Path, cgroup: str) -> int:
        """Bring the processes in `images` to life in a new container; returns the host pid of its init.

        `cgroup`: the group that runc made for them. With version 2 of control groups runc 1.1 does not tell CRIU, which would put them into
        the group of the desktop that was saved.
        CRIU keeps no log of a restore. One that fails is tried again with a log, which then says why; one that ran out of time is not.
        Raises `HostdSnapshotBroken`, and `HostdHostFault` where the log says that the host is to blame.
        """
        pid_file = bundle / "init.pid"
        arguments = ["--image-path", str(images), "--work-path", str(work), "--bundle", str(bundle), "--detach"]
        command = ["restore", *arguments, "--pid-file", str(pid_file), *self._checkpoint_options(), name]
        settings = criu_config(bundle)
        said = CRIU_SETTINGS + (f"cgroup-root {cgroup}\n" if cgroups.is_unified() else "")
        settings.write_text(said + _UNLOGGED, encoding="ascii")
        try:
            self._call(command, work, HostdSnapshotBroken, None, self.restore_timeout_s)
        except HostdSnapshotBroken as error:
            settings.write_text(said, encoding="ascii")
            if isinstance(error.__cause__, subprocess.TimeoutExpired):
                raise
            try:
                self._call(command, work, HostdSnapshotBroken, "restore.log", self.restore_timeout_s)
            except HostdSnapshotBroken as again:
                if not inotify.ran_out(work / "restore.log"):
                    raise
                detail = f"the host has no inotify instances left for another desktop ({inotify.instance_limit()} for each user)"
                raise HostdHostFault(detail, hint=f"Run `{inotify.FIX_COMMAND}`.") from again
            _log.warning("The restore of %s succeeded at the second try; the first said: %s", name, error)
        settings.write_text(CRIU_SETTINGS, encoding="ascii")
        return int(pid_file.read_text(encoding="ascii"))

    def state_dir(self, name: str) -> Path:
        """runc's record of one container; removing it, once its processes and groups are gone, forgets the container."""
        return self.root / "state" / name

    @staticmethod
    def _checkpoint_options() -> list[str]:
        return ["--file-locks", "--ext-unix-sk", "--tcp-established"]

    def _call(
        self,
        command: list[str],
        work: Path,
        failure: type[HostdError],
        tool_log: str | None = None,
        timeout_s: float | None = None,
        supervised: bool = False,
        further: Mapping[int, Sequence[syscall_filter.Filter]] = MappingProxyType({}),
    ) -> None:
        limit_s = timeout_s or self.timeout_s
        runc_log = work / "runc.log"
        argv = [
            str(self.program),
            "--root",
            str(self.root / "state"),
            "--log",
            str(runc_log),
            "--log-format",
            "json",
            *command,
        ]
        environment = {"PATH": f"{self.criu.parent}:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
        helped = supervised or (command[0] == "checkpoint" and rlimits.is_needed())
        try:
            known = self._filters[0] if self._filters else None
            helper = supervisor.supervised(argv, known, further) if helped else nullcontext((argv, None))
            with helper as (started, inherited):
                code = _run(started, environment, () if inherited is None else (inherited,), limit_s)
        except subprocess.TimeoutExpired as error:
            if tool_log:
                self._save_log(work / tool_log)
            raise failure(f"runc {command[0]} took longer than {limit_s:.0f} s") from error
        if code != 0:
            words = self._save_log(work / tool_log) if tool_log else []
            said = "; ".join(words or _runc_errors(runc_log)) or "no message"
            hint = next((hint for sign, hint in HINTS.items() if sign in said), "")
            raise failure(f"runc {command[0]} failed: {said}", hint=hint)

    def _save_log(self, log: Path) -> list[str]:
        """Save CRIU's log for a person to read; returns its last errors."""
        if not log.exists():
            return []
        shutil.copyfile(log, self.failure_log)
        return _root_errors(log)


def criu_config(bundle: Path) -> Path:
    """Where a bundle's settings of CRIU are; the container's configuration names this file."""
    return bundle / "criu.conf"


def _run(argv: list[str], environment: dict[str, str], inherited: tuple[int, ...], timeout_s: float) -> int:
    """Exit code of a program without input and output; at the time-out it is killed with what it started (CRIU), and that is raised."""
    null = subprocess.DEVNULL
    with subprocess.Popen(
        argv, env=environment, cwd="/", pass_fds=inherited, stdin=null, stdout=null, stderr=null, process_group=0
    ) as process:
        try:
            return process.wait(timeout_s)
        except BaseException:  # whatever ends the wait, the group goes too; raised again
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def _runc_errors(log: Path) -> list[str]:
    words = []
    for line in _tail(log):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("level") in ("error", "fatal"):
            words.append(str(entry.get("msg", "")))
    return words[-2:]


def _root_errors(log: Path) -> list[str]:
    """The last errors before CRIU gave up; earlier ones are often harmless probes."""
    found = [line for line in _tail(log) if "Error" in line and not line.endswith("FAILED.")]
    return [re.sub(r"^\([\d.]+\)\s*\d*:?\s*", "", line) for line in found[-3:]]


def _tail(path: Path, limit_bytes: int = 65536) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit_bytes))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
