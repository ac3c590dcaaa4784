"""Hostile answers: what a program in the place of the guest agent may send.

Role: `Answers` draws frames, JSON answers and the pieces they are sent in, from one seed. Rule: bytes only; an honest answer is mutated in
one or more ways, so that all layers of the decoder are reached. Non-goals: sending (`hostile_guest`), decoding.
"""

from __future__ import annotations

import io
import json
import random
import struct
from collections.abc import Mapping
from typing import Any

from PIL import Image

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**63,
    10**400,
    0.5,
    1e308,
    "",
    "\ud800",
    "raw",
    [],
    {},
    [[]],
    [0, 0],
    {"a": {}},
)
ERROR_SHARE, MALFORMED_SHARE = 0.1, 0.015
"""A malformed answer costs the desktop, so most answers are odd in what the protocol allows, and the next one comes soon."""
FORMATS = ("png", "jpeg", "webp", "bmp", "gif", "tiff")


def message(head: bytes, payload: bytes = b"") -> bytes:
    """A binary message of the stepping channel."""
    return struct.pack(">I", len(head)) + head + payload


class Answers:
    """Draws hostile answers for one screen, (width, height) in pixels, of which a share is malformed."""

    def __init__(self, rng: random.Random, screen: tuple[int, int], malformed_share: float = MALFORMED_SHARE) -> None:
        self._rng = rng
        self._malformed_share = malformed_share
        self._screen = screen
        picture = Image.effect_noise(screen, 80.0).convert("RGB")
        self._files = {}
        for form in FORMATS:
            target = io.BytesIO()
            picture.save(target, form)
            self._files[form] = target.getvalue()
        self._raw = picture.tobytes()

    def frame(self, request: Mapping[str, Any]) -> tuple[bytes, bool]:
        """The answer to a step, and whether it keeps to the protocol in form (an error, or the frame that was asked for)."""
        fate = self._rng.random()
        if fate >= 1 - self._malformed_share:
            return self._malformed_frame(request), False
        if fate < ERROR_SHARE:
            return self._error(request), True
        return self._odd_honest_frame(request), True

    def _error(self, request: Mapping[str, Any]) -> bytes:
        """An error of the agent's own with whatever in it: it costs the step and nothing else."""
        rng = self._rng
        told: dict[str, Any] = {
            "seq": request.get("seq"),
            "error": rng.choice(("internal", "host_fault", "x" * 200)),
            "nbytes": 0,
        }
        for name in ("detail", "status", "desktop", "fault_owner", "early"):
            if rng.random() < 0.5:
                told[name] = rng.choice(ODD)
        return message(json.dumps(told).encode())

    def _header(self, request: Mapping[str, Any], payload: bytes) -> dict[str, Any]:
        told = {"seq": request.get("seq"), "width": self._screen[0], "height": self._screen[1], "settled": True}
        encoding = request.get("frame", {}).get("encoding", "raw")
        return {
            **told,
            "encoding": encoding,
            "settle_ms": 0.0,
            "grab_ms": 0.0,
            "cursor": [1, 1],
            "nbytes": len(payload),
        }

    def _payload(self, request: Mapping[str, Any]) -> bytes:
        encoding = request.get("frame", {}).get("encoding", "raw")
        return self._raw if encoding == "raw" else b"" if encoding == "none" else self._files[encoding]

    def _odd_honest_frame(self, request: Mapping[str, Any]) -> bytes:
        payload = self._payload(request)
        head = {**self._header(request, payload), "more": self._rng.choice(ODD)}
        return message(json.dumps(head, indent=self._rng.choice((None, 2))).encode(), payload)

    def _malformed_frame(self, request: Mapping[str, Any]) -> bytes:
        rng = self._rng
        payload = self._payload(request)
        head = self._header(request, payload)
        match rng.randrange(8):
            case 0:
                head[rng.choice(tuple(head))] = rng.choice(ODD)
            case 1:
                payload = self._mutated(payload or b"x")
                head["nbytes"] = len(payload)
            case 2:
                payload = rng.choice((self._files[rng.choice(FORMATS)], b"%!PS-Adobe-3.0\nshowpage\n"))
                head |= {"nbytes": len(payload), "encoding": rng.choice(FORMATS)}
            case 3:
                return message(self.deep(rng.randrange(64_000)))
            case 4:
                return rng.randbytes(rng.randrange(200))
            case 5:
                return message(json.dumps({**head, "nbytes": 2**22}).encode(), bytes(rng.randrange(2**22)))
            case 6:
                return message(json.dumps({"draft": True, **head, "error": "host_fault"}).encode(), payload)
            case _:
                return self._mutated(message(json.dumps(head).encode(), payload))
        return message(json.dumps(head).encode(), payload)

    def _mutated(self, data: bytes) -> bytes:
        """Bytes flipped, cut off or put in."""
        changed = bytearray(data)
        for _ in range(self._rng.randrange(1, 8)):
            changed[self._rng.randrange(min(len(changed), 400))] = self._rng.randrange(256)
        cut = self._rng.randrange(len(changed)) if self._rng.random() < 0.5 else len(changed)
        return bytes(changed[:cut])

    def deep(self, depth: int) -> bytes:
        """Nesting without end."""
        return self._rng.choice((b"[", b'{"a":', b"[[1],")) * (depth + 1)

    def json_body(self, path: str) -> bytes:
        """The body of an HTTP answer."""
        rng = self._rng
        match rng.randrange(8):
            case 0:
                return self.deep(rng.randrange(300_000))
            case 1:
                return b'{"elements": [' + b"0," * rng.randrange(800_000) + b"0]}"
            case 2:
                return json.dumps(
                    {name: rng.choice(ODD) for name in ("elements", "returncode", "stdout", "stderr", "time_s", "AT")}
                ).encode()
            case 3:
                return rng.randbytes(rng.randrange(2_000))
            case 4:
                return json.dumps(
                    {"returncode": 0, "stdout": '[{,:\\"' * rng.randrange(200_000), "stderr": "", "timed_out": False}
                ).encode()
            case 5:
                box = {name: rng.choice(ODD) for name in ("x", "y", "w", "h")}
                return json.dumps(
                    {"elements": [{"role": "label", "name": "n", "text": "", "states": [], **box}] * 50}
                ).encode()
            case 6:
                return b'{"time_s": ' + rng.choice((b"1e400", b"NaN", b"9" * 5_000, b"1")) + b', "declared": true}'
            case _:
                return json.dumps({"error": rng.choice(ODD), "detail": rng.choice(ODD), "path": path}).encode()

    def http(self, path: str) -> bytes:
        """A whole HTTP answer, its head perhaps as hostile as its body."""
        rng, body = self._rng, self.json_body(path)
        status = rng.choice(
            (b"200 OK", b"200 OK", b"200 OK", b"404 No", b"503 No", b"410 Gone", b"999 Odd", b"100 Continue")
        )
        match rng.randrange(6):
            case 0:
                return (
                    b"HTTP/1.1 "
                    + status
                    + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
                    + b"1\r\nx\r\n" * rng.randrange(5_000)
                )
            case 1:
                return b"HTTP/1.1 100 Continue\r\n\r\n" * rng.randrange(1, 3_000)
            case 2:
                return b"HTTP/1.1 " + status + b"\r\n" + b"X-Field: x\r\n" * rng.randrange(20_000)
            case _:
                return b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body
