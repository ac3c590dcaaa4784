"""What getters learn of a desktop without trusting what runs in it.

Role: `look` asks the host; `read_content`, `list_tree` and `list_processes` read its answers; `run_program` runs a program of the image.
Rule: where the host can look (`SupportsEvidence`), no program of the desktop takes part, and a program that a getter must run is first
seen to be the image's own. Elsewhere the guest is asked, by programs with absolute paths and an environment of ours. What the policy left
missing, special or too large is `InvalidArtifact`. Non-goals: what a fact means for a task (getters).
"""

from __future__ import annotations

from collections.abc import Sequence

from dart_envs.errors import TOO_LARGE_CODE, FarmError, GuestError
from dart_envs.evaluators.artifacts import InvalidArtifact
from dart_envs.types import Desktop, Evidence, SupportsEvidence
from dart_server.wire import (
    ErrorCode,
    EvidenceAnswer,
    EvidenceQuery,
    ExecReply,
    FileFacts,
    FileQuery,
    ProcessesQuery,
    ProcessFacts,
    StatQuery,
    TreeQuery,
)

PROGRAM_TIMEOUT_S = 60.0
CLEAN_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/home/user",
    "USER": "user",
    "LANG": "C.UTF-8",
    "DISPLAY": ":0",
    "XDG_RUNTIME_DIR": "/run/user/1000",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1000/bus",
}
"""What a program gets instead of the session's environment."""
CLEAN_START = "/usr/bin/env"
PRELOADED = "/etc/ld.so.preload"
"""Names libraries that the loader puts into every program."""
_KINDS = {"f": "file", "d": "folder", "l": "link"}
_SUMS_SCRIPT = 'cd "$1" && /usr/bin/find . -type f -size -32769k -exec /usr/bin/sha256sum -z {} +'
"""sha256 of every file of at most 32 MiB below `$1`."""


async def look(desktop: Desktop, *queries: EvidenceQuery) -> Evidence | None:
    """The host's answers, all of one moment; None where nobody can look from outside."""
    if not isinstance(desktop, SupportsEvidence):
        return None
    try:
        return await desktop.evidence(queries)
    except FarmError as error:
        if error.code != ErrorCode.CAPABILITY_MISSING:
            raise
        return None


def require(answer: EvidenceAnswer, path: str) -> EvidenceAnswer:
    """An answer that has no error. Raises InvalidArtifact."""
    if answer.error is not None:
        words = {"not_found": "does not exist", "not_regular_file": "is not a file", "not_a_folder": "is not a folder"}
        raise InvalidArtifact(f"{path} {words.get(answer.error, f'cannot be read: {answer.error}')}")
    return answer


async def read_content(desktop: Desktop, path: str, limit_nbytes: int) -> bytes:
    """The content of a regular file. Raises InvalidArtifact when it is missing, something else, or larger than the limit."""
    seen = await look(desktop, FileQuery(path=path, limit_nbytes=limit_nbytes))
    if seen is not None:
        return seen.content(require(seen.answers[0], path))
    stat = await _ask_guest(desktop, ["/usr/bin/stat", "-L", "-c", "%s %F", path], timeout_s=10.0)
    size, _, kind = stat.stdout.strip().partition(" ")
    if stat.returncode != 0:
        raise InvalidArtifact(f"{path} does not exist")
    if kind not in ("regular file", "regular empty file"):
        raise InvalidArtifact(f"{path} is a {kind}, not a file")
    if int(size) > limit_nbytes:
        raise InvalidArtifact(f"{path} has {size} bytes, more than any answer needs")
    try:
        content = await desktop.read_file(path)
    except GuestError as error:
        if error.code in ("not_found", "not_regular_file", TOO_LARGE_CODE):
            raise InvalidArtifact(f"{path} cannot be read: {error}") from error
        raise
    if content is None:
        raise InvalidArtifact(f"{path} does not exist")
    if len(content) > limit_nbytes:  # it may have grown since its size was asked for
        raise InvalidArtifact(f"{path} has {len(content)} bytes, more than any answer needs")
    return content


async def list_tree(desktop: Desktop, path: str, *, max_entries: int, digests: bool = False) -> list[FileFacts]:
    """Everything below a folder, sorted. Raises InvalidArtifact when it is no folder, or holds more than any answer needs."""
    seen = await look(desktop, TreeQuery(path=path, max_entries=max_entries, max_depth=64, digests=digests))
    if seen is not None:
        return require(seen.answers[0], path).entries or []
    argv = ["/usr/bin/find", path, "-mindepth", "1", "-printf", r"%y\t%m\t%s\t%U\t%G\t%T@\t%l\t%P\0"]
    listed = await _ask_guest(desktop, argv)
    if listed.returncode != 0:
        raise InvalidArtifact(f"{path} cannot be listed: {listed.stderr.strip()[:200]}")
    lines = [line.split("\t", 7) for line in listed.stdout.split("\0") if line]
    if len(lines) > max_entries:
        raise InvalidArtifact(f"{path} has {len(lines)} entries, more than any answer needs")
    sums: dict[str, str] = {}
    if digests:
        summed = await _ask_guest(desktop, ["/bin/sh", "-c", _SUMS_SCRIPT, "sums", path])
        words = (line.partition("  ") for line in summed.stdout.split("\0") if line)
        sums = {name.removeprefix("./"): digest for digest, _, name in words}
    entries = [
        FileFacts(
            kind=_KINDS.get(kind, "other"),
            nbytes=int(nbytes),
            mode=int(mode, 8),
            uid=int(uid),
            gid=int(gid),
            modified_s=float(modified_s),
            target=target if kind == "l" else None,
            path=name,
            sha256=sums.get(name),
        )
        for kind, mode, nbytes, uid, gid, modified_s, target, name in lines
    ]
    return sorted(entries, key=lambda entry: str(entry.path))


async def list_processes(desktop: Desktop, *, code: bool = False) -> list[ProcessFacts] | None:
    """All processes that have not ended, the oldest first; None where nobody can look from outside.

    Raises InvalidArtifact when there is more to look at than the host has time for.
    """
    seen = await look(desktop, ProcessesQuery(code=code))
    if seen is None:
        return None
    processes = require(seen.answers[0], "the list of processes").processes or []
    return [process for process in processes if process.state != "Z"]


async def require_listener(desktop: Desktop, port: int, executable: str) -> ProcessFacts | None:
    """The one process that listens on a port of the desktop, if it is an unchanged program of the image; None where nobody can tell.

    Raises InvalidArtifact when nobody listens there, or somebody else.
    """
    seen = await list_processes(desktop, code=True)
    if seen is None:
        return None
    owners = [process for process in seen if any(socket.port == port for socket in process.listening)]
    if len(owners) != 1 or owners[0].executable != executable or not owners[0].code_from_image:
        raise InvalidArtifact(f"it is not {executable} of the image that answers on port {port}")
    return owners[0]


async def run_program(
    desktop: Desktop, argv: Sequence[str], *, user: str = "user", timeout_s: float = PROGRAM_TIMEOUT_S
) -> ExecReply:
    """Run a program of the image by its absolute path, without anything of the session's environment.

    Raises InvalidArtifact when the program, or what every program is started with, is not as the image has it.
    """
    paths = (argv[0], CLEAN_START, PRELOADED)
    seen = await look(desktop, *(StatQuery(path=path) for path in paths))
    for path, answer in zip(paths, seen.answers if seen is not None else (), strict=False):
        if path == PRELOADED and answer.error == "not_found":
            continue
        facts = require(answer, path).facts
        if facts is None or not facts.from_image:
            raise InvalidArtifact(f"{path} is not the image's own any more")
    return await _ask_guest(desktop, argv, user=user, timeout_s=timeout_s)


async def _ask_guest(
    desktop: Desktop, argv: Sequence[str], *, user: str = "root", timeout_s: float = PROGRAM_TIMEOUT_S
) -> ExecReply:
    clean = [CLEAN_START, "-i", *(f"{name}={value}" for name, value in CLEAN_ENVIRONMENT.items())]
    return await desktop.exec([*clean, *argv], timeout_s=timeout_s, user=user)
