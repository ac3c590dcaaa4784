"""How often somebody may try a key on the page: by address, and in all.

Rule: a try is paid for before the key is looked at and given back when the key is right, so that only failures count, also those under way
at the same time. What is over is refused with `too_many_requests` and the seconds until the next try. An address that logged in before is
not held up by the failures of others. Non-goals: bearer keys of the API (`http.ingress.limits`), which are too long to be guessed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from dart_server.errors import ApiError
from dart_server.http.ingress.limits import network_of
from dart_server.wire import Clock, ErrorCode

ADDRESS_BURST, ADDRESS_INTERVAL_S = 5, 12.0
"""One address may fail so often at once, then once in so many seconds."""
ALL_BURST, ALL_INTERVAL_S = 50, 1.0
"""All addresses together that never logged in."""
MAX_ADDRESSES = 4096
"""Remembered; those that tried longest ago are forgotten first."""


@dataclass(slots=True)
class _Bucket:
    tries: float
    counted_at_s: float
    known: bool = False


class LoginRateLimiter:
    """Tries to log in to one farm's page."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._all = _Bucket(ALL_BURST, clock.monotonic())
        self._addresses: OrderedDict[str, _Bucket] = OrderedDict()

    def acquire(self, host: str | None) -> str:
        """Pay for a try; returns who pays. Raises `too_many_requests`."""
        client = network_of(host)
        bucket = self._addresses.pop(client, None) or _Bucket(ADDRESS_BURST, self._clock.monotonic())
        self._addresses[client] = bucket
        while len(self._addresses) > MAX_ADDRESSES:
            self._addresses.popitem(last=False)
        self._refill(bucket, ADDRESS_BURST, ADDRESS_INTERVAL_S)
        self._refill(self._all, ALL_BURST, ALL_INTERVAL_S)
        if bucket.tries < 1:
            raise _rate_limited_error("from this address", (1 - bucket.tries) * ADDRESS_INTERVAL_S)
        if self._all.tries < 1 and not bucket.known:
            raise _rate_limited_error("on this farm", (1 - self._all.tries) * ALL_INTERVAL_S)
        bucket.tries -= 1
        if not bucket.known:
            self._all.tries -= 1
        return client

    def succeeded(self, client: str) -> None:
        """The key was right: the try is given back."""
        bucket = self._addresses.get(client)
        if bucket is None:
            return
        bucket.tries = min(ADDRESS_BURST, bucket.tries + 1)
        if not bucket.known:
            self._all.tries = min(ALL_BURST, self._all.tries + 1)
        bucket.known = True

    def _refill(self, bucket: _Bucket, burst: int, every_s: float) -> None:
        now_s = self._clock.monotonic()
        bucket.tries = min(burst, bucket.tries + (now_s - bucket.counted_at_s) / every_s)
        bucket.counted_at_s = now_s


def _rate_limited_error(where: str, wait_s: float) -> ApiError:
    return ApiError(
        ErrorCode.TOO_MANY_REQUESTS,
        f"too many log-ins failed {where}",
        hint="Wait as long as Retry-After tells, then use the right key.",
        retry_after_s=wait_s,
    )
