"""What may be asked of dart-hostd: each verb's arguments, checked field by field before anything happens.

A request is one JSON object `{"verb": NAME, ...arguments}`. Ids and image names are matched against a pattern, numbers
against a range; unknown verbs and fields are refused. No argument is ever a path of the host, a command or an option; paths of `evidence`
are resolved inside the desktop only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dart_server.hostd.errors import BadRequest
from dart_server.hostd.evidence import queries

ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
IMAGE_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
CONTROL = "control"
MAX_REQUEST_BYTES = 1 << 20
MAX_KEEP = 100_000

HostCheck = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """A desktop's own limits."""

    memory_mib: int
    pids: int
    cpus: float
    disk_mib: int


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request: `arguments` holds exactly the fields of its verb."""

    verb: str
    arguments: Mapping[str, Any]


def _identifier(field: str, value: Any) -> str:
    if not isinstance(value, str) or not ID_PATTERN.fullmatch(value):
        raise BadRequest(f"{field}: {value!r} is not an id (letters, digits, - and _, at most 64)")
    return value


def _image(field: str, value: Any) -> str:
    if not isinstance(value, str) or not IMAGE_PATTERN.fullmatch(value):
        raise BadRequest(f"{field}: {value!r} is not an image name (a-z, 0-9, dot, - and _, at most 64)")
    return value


def _integer(low: int, high: int) -> HostCheck:
    def check(field: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise BadRequest(f"{field}: {value!r} is not an integer from {low} to {high}")
        return value

    return check


def _number(low: float, high: float) -> HostCheck:
    def check(field: str, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise BadRequest(f"{field}: {value!r} is not a number from {low} to {high}")
        return float(value)

    return check


def _optional(check: HostCheck) -> HostCheck:
    return lambda field, value: None if value is None else check(field, value)


def _resolution(field: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise BadRequest(f"{field}: {value!r} is not [width, height]")
    side = _integer(64, 8192)
    return side(field, value[0]), side(field, value[1])


def _port(field: str, value: Any) -> int | None:
    """A TCP port, or None for the guest agent's control socket."""
    return None if value == CONTROL else int(_integer(1, 65535)(field, value))


def _identifiers(field: str, value: Any) -> frozenset[str]:
    if not isinstance(value, list) or len(value) > MAX_KEEP:
        raise BadRequest(f"{field}: not a list of at most {MAX_KEEP} ids")
    return frozenset(_identifier(field, item) for item in value)


_DESKTOP: dict[str, HostCheck] = {"desktop_id": _identifier}
_BOTH: dict[str, HostCheck] = {"desktop_id": _identifier, "snapshot_id": _identifier}

VERBS: dict[str, dict[str, HostCheck]] = {
    "ping": {},
    "attach": {},
    "stop": {},
    "doctor": {},
    "inventory": {},
    "reap": {"keep": _identifiers},
    "create": {
        **_DESKTOP,
        "image": _image,
        "resolution": _resolution,
        "font_size": _optional(_integer(4, 96)),
        "memory_mib": _integer(64, 1 << 20),
        "pids": _integer(16, 1 << 16),
        "cpus": _number(0.05, 1024),
        "disk_mib": _integer(16, 1 << 20),
        "proxy_port": _optional(_integer(1, 65535)),
    },
    "checkpoint": _BOTH,
    "restore": _BOTH,
    "destroy": _DESKTOP,
    "health": _DESKTOP,
    "harden": _DESKTOP,
    "freeze": _DESKTOP,
    "thaw": _DESKTOP,
    "evidence": {**_DESKTOP, "queries": queries.check},
    "dial": {**_DESKTOP, "port": _port},
    "quarantine": {"snapshot_id": _identifier},
    "listen": {**_DESKTOP, "port": _integer(1, 65535)},
    "delete_snapshot": {"snapshot_id": _identifier},
}


def parse(line: bytes) -> Request:
    """Check one request line. Raises BadRequest naming the field."""
    try:
        message = json.loads(line)
    except ValueError as error:
        raise BadRequest("the request is not JSON") from error
    if not isinstance(message, dict):
        raise BadRequest("the request is not a JSON object")
    verb = message.pop("verb", None)
    if not isinstance(verb, str) or verb not in VERBS:
        raise BadRequest(f"unknown verb {verb!r}")
    fields = VERBS[verb]
    unknown, missing = sorted(set(message) - set(fields)), sorted(set(fields) - set(message))
    if unknown or missing:
        raise BadRequest(f"{verb}: unknown fields {unknown}, missing fields {missing}")
    return Request(verb, {name: check(name, message[name]) for name, check in fields.items()})
