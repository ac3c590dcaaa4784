"""What dart-hostd accepts and refuses, field by field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dart_server.hostd import verbs
from dart_server.hostd.errors import BadRequest

CREATE = {
    "verb": "create",
    "desktop_id": "desk_01",
    "image": "basic",
    "resolution": [640, 400],
    "font_size": None,
    "memory_mib": 512,
    "pids": 100,
    "cpus": 1,
    "disk_mib": 64,
    "proxy_port": None,
}


def parse(message: Any) -> verbs.Request:
    return verbs.parse(json.dumps(message).encode() + b"\n")


def test_a_good_request_comes_back_with_its_types() -> None:
    request = parse(CREATE)
    assert request.verb == "create"
    assert request.arguments["resolution"] == (640, 400)
    assert request.arguments["cpus"] == 1.0
    assert parse({"verb": "dial", "desktop_id": "d", "port": "control"}).arguments["port"] is None
    assert parse({"verb": "dial", "desktop_id": "d", "port": 9222}).arguments["port"] == 9222
    assert parse({"verb": "reap", "keep": ["a", "b"]}).arguments["keep"] == {"a", "b"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("desktop_id", "../x"),
        ("desktop_id", "a/b"),
        ("desktop_id", ""),
        ("desktop_id", "a" * 65),
        ("desktop_id", "a\n"),
        ("desktop_id", "-rf"),
        ("desktop_id", 7),
        ("image", "../basic"),
        ("image", ".hidden"),
        ("image", "Basic"),
        ("resolution", [640]),
        ("resolution", [640, 400, 3]),
        ("resolution", [640, -1]),
        ("resolution", "640x400"),
        ("font_size", 0),
        ("memory_mib", 512.5),
        ("memory_mib", True),
        ("memory_mib", 1),
        ("pids", 10**9),
        ("cpus", 0),
        ("cpus", float("nan")),
        ("disk_mib", None),
    ],
)
def test_a_bad_field_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(BadRequest, match=field):
        parse({**CREATE, field: value})


@pytest.mark.parametrize("port", [0, 65536, "22", -1, 1.5, None, True])
def test_a_bad_port_is_refused(port: Any) -> None:
    with pytest.raises(BadRequest, match="port"):
        parse({"verb": "dial", "desktop_id": "d", "port": port})


@pytest.mark.parametrize(
    "message",
    [[], "create", {"verb": "exec"}, {"verb": ["create"]}, {}, {"verb": "ping", "extra": 1}, {"verb": "destroy"}],
)
def test_other_shapes_are_refused(message: Any) -> None:
    with pytest.raises(BadRequest):
        parse(message)


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(BadRequest):
        verbs.parse(b"\xff\n")
    with pytest.raises(BadRequest):
        verbs.parse(b"create d1\n")
