"""Getters of what was done in the browser: the log of the suite `web`, and the browser's bookmarks.

Role: one coroutine per getter, and `GETTERS` of this module; all names are ours. Rule: the setup saw the log
made, so that whoever took it away or damaged it was the policy: `InvalidArtifact`, like everything else that is missing. Non-goals:
comparing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from dart_envs.evaluators.artifacts import InvalidArtifact, load_json
from dart_envs.evaluators.evidence import run_program
from dart_envs.evaluators.getters.base import Getter, GetterConfig, GetterContext, read_guest_file, required_text
from dart_envs.setup.protected import PROTECTED_GID

BOOKMARKS = "/var/lib/dart/browser/Default/Bookmarks"
"""In the profile that only the browser of the task can enter."""
BOOKMARK_ROOTS = ("bookmark_bar", "other", "synced")
MAX_DEPTH = 50
VISIT = "visit"
"""The event of a page that the task's browser has loaded."""


async def web_log(context: GetterContext, config: GetterConfig) -> Any:
    """{path[, name, last]}: the events that the suite's server logged, each {name, data}, in order; with `name` those of that name, else
    all but the visits of pages.

    With `last` the last of them, None where there is none.
    """
    path = required_text(config, "path")
    try:
        events = [load_json(line) for line in (await read_guest_file(context, path)).text.splitlines()]
    except ValueError as error:
        raise InvalidArtifact(f"the log of the site is damaged: {error}") from error
    name = config.get("name")
    wanted = [event for event in events if event["name"] == name or (name is None and event["name"] != VISIT)]
    if config.get("last"):
        return wanted[-1] if wanted else None
    return wanted


def _checksum_input(node: Mapping[str, Any]) -> bytes:
    """What Chromium's checksum takes of one bookmark or folder."""
    kind = node["type"]
    title = str(node["name"]).encode("utf-16-le")
    parts = [str(node["id"]).encode("ascii"), title, b"url" if kind == "url" else b"folder"]
    return b"".join([*parts, str(node["url"]).encode("utf-8")] if kind == "url" else parts)


def _walk(node: Mapping[str, Any], depth: int = 0) -> Iterator[Mapping[str, Any]]:
    if depth > MAX_DEPTH:
        raise InvalidArtifact("bookmark folders are nested too deep")
    yield node
    for child in node.get("children", ()):
        yield from _walk(child, depth + 1)


async def chromium_bookmarks(context: GetterContext, config: GetterConfig) -> list[list[str]]:
    """{}: [title, address] of every bookmark that the browser saved, in its order.

    Raises InvalidArtifact for a file that it did not write: its checksum (MD5 over id, title, kind and address of every entry) does not
    fit, or its group is not that of the browser which the task started.
    """
    owner = await run_program(context.desktop, ["/usr/bin/stat", "-c", "%g", BOOKMARKS], timeout_s=10.0, user="root")
    if owner.stdout.strip() != str(PROTECTED_GID):
        raise InvalidArtifact("the bookmarks were not saved by the browser that the task started")
    file = await read_guest_file(context, BOOKMARKS)
    try:
        held = load_json(file.text)
        nodes = [node for root in BOOKMARK_ROOTS for node in _walk(held["roots"][root])]
        digest = hashlib.md5(b"".join(map(_checksum_input, nodes)), usedforsecurity=False).hexdigest()
        if held.get("checksum") != digest:
            raise InvalidArtifact("the bookmarks are not as the browser saved them")
        return [[str(node["name"]), str(node["url"])] for node in nodes if node["type"] == "url"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArtifact(f"the bookmarks cannot be read: {error}") from error


GETTERS: Mapping[str, Getter] = {"web_log": web_log, "chromium_bookmarks": chromium_bookmarks}
