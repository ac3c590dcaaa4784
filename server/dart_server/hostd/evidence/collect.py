"""Answers to queries about one desktop, as one binary message.

The message: 4 bytes, big-endian, the length of a JSON header; the header; the contents of files behind it. An answer about a file says
where its content lies (`offset` from the end of the header, `content_nbytes`). Rule: an answer is bounded whatever the desktop holds.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from dart_server.hostd.evidence import processes
from dart_server.hostd.evidence.budget import Refused
from dart_server.hostd.evidence.files import DesktopFiles, IdMap
from dart_server.hostd.evidence.layers import ImageLayers
from dart_server.hostd.evidence.queries import (
    HostdFileQuery,
    HostdProcessesQuery,
    HostdQuery,
    HostdStatQuery,
    HostdTreeQuery,
)


def collect(
    queries: Sequence[HostdQuery],
    init_pid: int,
    process_ids: Callable[[], Iterable[int]],
    layers: ImageLayers,
    standing_still: Callable[[], AbstractContextManager[bool]],
) -> bytes:
    """Answer all queries about one moment of a desktop.

    Args:
        queries: What is asked.
        init_pid: The host's process id of the desktop's init, which the caller keeps from being reused.
        process_ids: Gives the host's ids of all processes of the desktop.
        layers: Which of the desktop's files are the image's.
        standing_still: Makes a context in which the desktop is frozen; its value is whether it is.

    Returns:
        The message.

    Raises:
        OSError: The desktop has ended.
    """
    root = os.open(f"/proc/{init_pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        maps = [IdMap(Path(f"/proc/{init_pid}/{name}").read_text(encoding="ascii")) for name in ("uid_map", "gid_map")]
        wants_processes = any(isinstance(query, HostdProcessesQuery) for query in queries)
        before = processes.states(process_ids()) if wants_processes else {}
        answers: list[dict[str, Any]] = []
        contents: list[bytes] = []
        began_s = time.monotonic()
        with standing_still() as frozen:
            files = DesktopFiles(root, layers, *maps)
            for query in queries:
                if isinstance(query, HostdProcessesQuery):
                    try:
                        found = processes.facts(process_ids(), before, files, network_of=init_pid, code=query.code)
                        answers.append({"processes": found})
                    except Refused as refusal:
                        answers.append({"error": str(refusal)})
                else:
                    answers.append(_answer(query, files, contents))
        header = {"source": "host", "frozen": frozen, "pause_s": time.monotonic() - began_s, "answers": answers}
    finally:
        os.close(root)
    return pack(header, contents)


def pack(header: dict[str, Any], contents: Sequence[bytes]) -> bytes:
    """Put a message together."""
    words = json.dumps(header, separators=(",", ":")).encode("ascii")
    return b"".join([struct.pack(">I", len(words)), words, *contents])


def _answer(
    query: HostdFileQuery | HostdStatQuery | HostdTreeQuery, files: DesktopFiles, contents: list[bytes]
) -> dict[str, Any]:
    """The answer about one path; the content of a file goes to `contents`."""
    try:
        if isinstance(query, HostdFileQuery):
            facts, content = files.read(query)
            offset = sum(map(len, contents))
            contents.append(content)
            return {"facts": facts, "offset": offset, "content_nbytes": len(content)}
        if isinstance(query, HostdStatQuery):
            return {"facts": files.stat(query)}
        return {"entries": files.tree(query)}
    except Refused as refusal:
        return {"error": str(refusal)}
