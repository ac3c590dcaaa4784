"""What the host sees of a pretended desktop: its files by path, and one process. Non-goals: what `hostd.evidence` guards against."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from dart_server.hostd.evidence import queries as hostd_queries
from dart_server.hostd.evidence.collect import pack
from dart_server.hostd.evidence.queries import HostdFileQuery, HostdProcessesQuery, HostdQuery, HostdStatQuery

_PROCESS = {
    "pid": 2,
    "uid": 1000,
    "state": "S",
    "started_s": 0.0,
    "argv": ["sim"],
    "executable": "/usr/bin/sim",
    "from_image": True,
    "code_from_image": True,
}


def answer(files: Mapping[str, bytes], asked: Sequence[Mapping[str, Any]]) -> bytes:
    """The message of `hostd.evidence.collect` about pretended files."""
    contents: list[bytes] = []
    answers = [_one(query, files, contents) for query in hostd_queries.check("queries", [dict(q) for q in asked])]
    return pack({"source": "host", "frozen": True, "pause_s": 0.0, "answers": answers}, contents)


def _one(query: HostdQuery, files: Mapping[str, bytes], contents: list[bytes]) -> dict[str, Any]:
    if isinstance(query, HostdProcessesQuery):
        return {"processes": [_PROCESS]}
    path = query.path.rstrip("/") or "/"
    below = sorted(name for name in files if name.startswith(path.rstrip("/") + "/"))
    if isinstance(query, HostdFileQuery | HostdStatQuery):
        if path not in files and not below:
            return {"error": "not_found"}
        facts = {**_facts(files.get(path)), "real_path": path, "from_image": False}
        if isinstance(query, HostdStatQuery):
            return {"facts": facts}
        if path not in files:
            return {"error": "not_regular_file"}
        if len(files[path]) > query.limit_nbytes:
            return {"error": "too_large"}
        offset = sum(map(len, contents))
        contents.append(files[path])
        return {"facts": facts, "offset": offset, "content_nbytes": len(files[path])}
    if not below:
        return {"error": "not_a_folder" if path in files else "not_found"}
    entries: dict[str, dict[str, Any]] = {}
    for name in below:
        parts = name.removeprefix(path.rstrip("/") + "/").split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            entries[folder] = {**_facts(None), "path": folder}
        digest = {"sha256": hashlib.sha256(files[name]).hexdigest()} if query.digests else {}
        entries["/".join(parts)] = {**_facts(files[name]), "path": "/".join(parts), **digest}
    if len(entries) > query.max_entries:
        return {"error": "too_many_entries"}
    return {"entries": [entries[name] for name in sorted(entries)]}


def _facts(content: bytes | None) -> dict[str, Any]:
    """Of a file, or of a folder (None)."""
    kind, mode, nbytes = ("folder", 0o755, 0) if content is None else ("file", 0o644, len(content))
    return {"kind": kind, "nbytes": nbytes, "mode": mode, "uid": 1000, "gid": 1000, "modified_s": 0.0}
