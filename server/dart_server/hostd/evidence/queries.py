"""What may be asked about a desktop, checked field by field.

Rule: a path is one inside the desktop, absolute and without NUL; it is never resolved outside the desktop's root (`files`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dart_server.hostd.errors import BadRequest

MAX_QUERIES = 64
MAX_PATH_LENGTH = 4096
MAX_FILE_NBYTES = 64 << 20
MAX_ENTRIES = 20_000
MAX_DEPTH = 64


@dataclass(frozen=True)
class HostdFileQuery:
    """The content of a regular file of at most `limit_nbytes`; links are followed inside the desktop."""

    path: str
    limit_nbytes: int


@dataclass(frozen=True)
class HostdStatQuery:
    """What a path is; `follow`: what a link leads to instead of the link itself."""

    path: str
    follow: bool


@dataclass(frozen=True)
class HostdTreeQuery:
    """Everything below a folder, `digests` with the sha256 of its files; links are named, not followed."""

    path: str
    max_entries: int
    max_depth: int
    digests: bool


@dataclass(frozen=True)
class HostdProcessesQuery:
    """Every process of the desktop; `code`: whether all program code that it has mapped is the image's, too."""

    code: bool


HostdQuery = HostdFileQuery | HostdStatQuery | HostdTreeQuery | HostdProcessesQuery

_FIELDS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "file": (HostdFileQuery, {"path": str, "limit_nbytes": MAX_FILE_NBYTES}),
    "stat": (HostdStatQuery, {"path": str, "follow": bool}),
    "tree": (HostdTreeQuery, {"path": str, "max_entries": MAX_ENTRIES, "max_depth": MAX_DEPTH, "digests": bool}),
    "processes": (HostdProcessesQuery, {"code": bool}),
}


def check(field: str, value: Any) -> tuple[HostdQuery, ...]:
    """The queries of one request. Raises BadRequest naming what is wrong."""
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_QUERIES:
        raise BadRequest(f"{field}: not a list of 1 to {MAX_QUERIES} queries")
    return tuple(_one(f"{field}[{index}]", item) for index, item in enumerate(value))


def _one(place: str, item: Any) -> HostdQuery:
    kind = item.get("kind") if isinstance(item, dict) else None
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise BadRequest(f"{place}: not one of the queries {', '.join(sorted(_FIELDS))}")
    make, fields = _FIELDS[kind]
    if set(item) != {"kind", *fields}:
        raise BadRequest(f"{place}: a {kind} query has exactly the fields {', '.join(sorted(fields))}")
    query: HostdQuery = make(
        **{name: _checked(f"{place}.{name}", item, name, wanted) for name, wanted in fields.items()}
    )
    return query


def _checked(place: str, item: Mapping[str, Any], name: str, wanted: Any) -> Any:
    value = item[name]
    if wanted is str:
        if not isinstance(value, str) or not value.startswith("/") or "\0" in value or len(value) > MAX_PATH_LENGTH:
            raise BadRequest(f"{place}: not an absolute path of at most {MAX_PATH_LENGTH} characters")
    elif wanted is bool:
        if not isinstance(value, bool):
            raise BadRequest(f"{place}: not true or false")
    elif not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= wanted:
        raise BadRequest(f"{place}: not an integer from 1 to {wanted}")
    return value
