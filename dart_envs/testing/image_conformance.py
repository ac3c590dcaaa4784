"""Does an image's desktop keep its requirements? `python -m dart_envs.testing.image_conformance IMAGE` asks a farm for one and tells,
line by line.

Role: what `dart-farm images verify` runs beside its look at the applications: the suite of `dart_envs.testing.conformance`, and what
OSWorld's own client asks of a desktop before and during every task. Rule: leases one desktop and releases it; one line per requirement.
Exit code 0: all kept,
1: some broken, 2: there is no such desktop to ask. Non-goals: applications, pixels, speed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from dart_envs.errors import DartEnvError
from dart_envs.farm.base import LeaseLike
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.testing.conformance import run_checks
from dart_server.wire import DesktopShape

WAIT_S = 300.0
TTL_S = 300.0
PNG = b"\x89PNG\r\n\x1a\n"

ReplyPredicate = Callable[[bytes, tuple[int, int]], bool]
"""Whether an answer is what the desktop of this screen (width, height) should say."""


def _json(fits: Callable[[Any, tuple[int, int]], bool]) -> ReplyPredicate:
    def check(content: bytes, size: tuple[int, int]) -> bool:
        try:
            return bool(fits(json.loads(content), size))
        except (ValueError, LookupError, TypeError, AttributeError):
            return False

    return check


OSWORLD_ENDPOINTS: tuple[tuple[str, str, dict[str, Any] | None, ReplyPredicate], ...] = (
    ("GET", "/platform", None, lambda content, _: content == b"Linux"),
    ("GET", "/screenshot", None, lambda content, _: content.startswith(PNG)),
    ("GET", "/accessibility", None, _json(lambda said, _: said["AT"].startswith("<desktop-frame"))),
    ("GET", "/terminal", None, _json(lambda said, _: "output" in said)),
    ("GET", "/cursor_position", None, _json(lambda said, size: 0 <= said[0] < size[0] and 0 <= said[1] < size[1])),
    ("POST", "/screen_size", None, _json(lambda said, size: (said["width"], said["height"]) == size)),
    ("POST", "/desktop_path", None, _json(lambda said, _: said["desktop_path"].startswith("/home/"))),
    (
        "POST",
        "/list_directory",
        {"path": "/home/user"},
        _json(lambda said, _: said["directory_tree"]["type"] == "directory"),
    ),
    ("POST", "/execute", {"command": ["echo", "here"]}, _json(lambda said, _: said["output"] == "here\n")),
    ("POST", "/run_python", {"code": "print(6 * 7)"}, _json(lambda said, _: said["output"].strip() == "42")),
    ("POST", "/run_bash_script", {"script": "echo $((6 * 7))"}, _json(lambda said, _: said["output"].strip() == "42")),
)
"""(method, path, body, what fits) of the paths of OSWorld's server that change nothing and need no program."""


async def image_checks(lease: LeaseLike) -> AsyncIterator[tuple[str, str]]:
    """Every requirement and how it was broken; empty where it was kept."""
    async for requirement, how in run_checks(lease):
        yield requirement.replace("_", " "), how
    for method, path, body, fits in OSWORLD_ENDPOINTS:
        reply = await lease.guest(method, path, json=body)
        kept = reply.status == 200 and fits(reply.content, lease.resolution)
        yield f"OSWorld's {path}", "" if kept else f"answered {reply.status} {reply.content[:200]!r}"


async def check_image(image: str, url: str | None) -> int:
    """How many requirements a fresh desktop of an image breaks; tells each on the standard output. Raises `DartEnvError`."""
    shape, broken = DesktopShape(image=image), 0
    async with await AsyncFarmClient.connect(url) as farm, await farm.lease(shape, ttl_s=TTL_S, wait_s=WAIT_S) as lease:
        async for requirement, how in image_checks(lease):
            print(f"FAILED {requirement}: {how}" if how else f"ok     {requirement}", flush=True)
            broken += bool(how)
    return broken


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, check, report."""
    parser = argparse.ArgumentParser(
        prog="python -m dart_envs.testing.image_conformance", description="Checks a desktop of an image."
    )
    parser.add_argument("image")
    parser.add_argument("--farm", help="address of a running farm; default: DART_FARM_URL, else this user's own")
    options = parser.parse_args(arguments)
    try:
        return 1 if asyncio.run(check_image(options.image, options.farm)) else 0
    except DartEnvError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
