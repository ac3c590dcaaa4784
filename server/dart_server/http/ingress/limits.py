"""How much one key may do at a time: requests under way, open WebSockets, requests per second, bytes of files in the farm's memory.

And how many WebSockets and bytes there are in all, and how many requests without a valid key an address may send.

Rule: what is over a limit is refused at once with `too_many_requests` and Retry-After, before any work is done; keys of scope `admin`
have no limit of their own. When a key ends, whatever runs under it ends (`cancel_key`). Non-goals: leases and claims (their quotas are
the key's).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import OrderedDict
from dataclasses import dataclass, field

from dart_server.errors import ApiError
from dart_server.wire import Clock, ErrorCode

BURST_S = 2.0
"""A key that was silent may send this many seconds' worth of requests at once."""


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """One request or WebSocket under way. `key_ended` when its key ended meanwhile."""

    key_id: str
    stream: bool
    task: asyncio.Task[object] | None
    key_ended: bool = False
    unlimited: bool = False
    nbytes: int = 0


@dataclass(slots=True)
class _KeyUsage:
    allowance: float
    counted_at_s: float
    active_requests: set[ActiveRequest] = field(default_factory=set)
    streams: int = 0
    nbytes: int = 0


AUTHENTICATED = "authenticated"
"""In the state of a request whose key or session was found valid."""
MAX_PEERS = 4096
"""Addresses remembered; those that called longest ago are forgotten first."""
PEER_BURST_S = 10.0
"""An address that was silent may send this many seconds' worth of requests without a key at once."""
ALL_PEERS = 8
"""All addresses together may send as much as so many."""
NO_ADDRESS = "socket"
"""Whoever comes over a Unix socket: through a proxy or a tunnel, or a user of this host."""


@dataclass(slots=True)
class _Bucket:
    allowance: float
    counted_at_s: float

    def refill(self, now_s: float, per_s: float, burst: float) -> None:
        self.allowance = min(burst, self.allowance + (now_s - self.counted_at_s) * per_s)
        self.counted_at_s = now_s


class PeerLimiter:
    """Requests without a valid key, by address and in all. One is paid for before it is looked at, and given back when its key is valid."""

    def __init__(self, clock: Clock, *, requests_per_s: float) -> None:
        self._clock = clock
        self._per_s = requests_per_s
        self._burst = requests_per_s * PEER_BURST_S
        self._all = _Bucket(self._burst * ALL_PEERS, clock.monotonic())
        self._peers: OrderedDict[str, _Bucket] = OrderedDict()

    def acquire(self, host: str | None) -> str:
        """Pay for one; returns who pays. Raises `too_many_requests`."""
        now_s, peer = self._clock.monotonic(), network_of(host)
        bucket = self._peers.pop(peer, None) or _Bucket(self._burst, now_s)
        self._peers[peer] = bucket
        while len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
        bucket.refill(now_s, self._per_s, self._burst)
        self._all.refill(now_s, self._per_s * ALL_PEERS, self._burst * ALL_PEERS)
        if min(bucket.allowance, self._all.allowance) < 1:
            raise ApiError(
                ErrorCode.TOO_MANY_REQUESTS,
                "too many requests without a valid key came from this address",
                hint="Wait as long as Retry-After tells, then send a valid key.",
            )
        bucket.allowance -= 1
        self._all.allowance -= 1
        return peer

    def give_back(self, peer: str) -> None:
        """The request brought a valid key."""
        bucket = self._peers.get(peer)
        if bucket is not None:
            bucket.allowance = min(self._burst, bucket.allowance + 1)
        self._all.allowance = min(self._burst * ALL_PEERS, self._all.allowance + 1)


def network_of(host: str | None) -> str:
    """Who counts as one: an IPv4 address, the /64 of an IPv6 one, everybody on a Unix socket."""
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return NO_ADDRESS
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), 64), strict=False))


class RequestLimiter:
    """Counts what runs, by key."""

    def __init__(
        self,
        clock: Clock,
        *,
        requests_per_key: int,
        websockets_per_key: int,
        streams: int,
        requests_per_s: float,
        nbytes_per_key: int,
        nbytes: int,
    ) -> None:
        self._clock = clock
        self._requests_per_key = requests_per_key
        self._streams_per_key = websockets_per_key
        self._streams = streams
        self._requests_per_s = requests_per_s
        self._nbytes_per_key = nbytes_per_key
        self._nbytes = nbytes
        self.reserved_bytes = 0
        self._uses: dict[str, _KeyUsage] = {}
        self.streams_open = 0

    def acquire(self, key_id: str, *, stream: bool, unlimited: bool) -> ActiveRequest:
        """Count one in. Raises `too_many_requests`."""
        now_s = self._clock.monotonic()
        burst = self._requests_per_s * BURST_S
        use = self._uses.get(key_id)
        if use is None:
            use = self._uses[key_id] = _KeyUsage(burst, now_s)
        use.allowance = min(burst, use.allowance + (now_s - use.counted_at_s) * self._requests_per_s)
        use.counted_at_s = now_s
        if not unlimited:
            if use.allowance < 1:
                raise _refused(f"this key sends more than {self._requests_per_s:g} requests per second")
            if len(use.active_requests) - use.streams >= self._requests_per_key and not stream:
                raise _refused(f"this key has {self._requests_per_key} requests under way")
            if stream and use.streams >= self._streams_per_key:
                raise _refused(f"this key has {self._streams_per_key} WebSockets open")
            if stream and self.streams_open >= self._streams:
                raise _refused(f"the farm has {self._streams} WebSockets open")
            use.allowance -= 1
        active_request = ActiveRequest(key_id, stream, asyncio.current_task(), unlimited=unlimited)
        use.active_requests.add(active_request)
        use.streams += stream
        self.streams_open += stream
        return active_request

    def release(self, active_request: ActiveRequest) -> None:
        """Count one out."""
        use = self._uses[active_request.key_id]
        use.active_requests.discard(active_request)
        use.streams -= active_request.stream
        use.nbytes -= active_request.nbytes
        self.streams_open -= active_request.stream
        self.reserved_bytes -= active_request.nbytes

    def reserve_bytes(self, active_request: ActiveRequest, nbytes: int) -> None:
        """The request keeps so many bytes more in memory until its end.

        Raises `too_many_requests`; `invalid` where it alone is more than there is room for, ever.
        """
        use = self._uses[active_request.key_id]
        room = self._nbytes if active_request.unlimited else min(self._nbytes, self._nbytes_per_key)
        if active_request.nbytes + nbytes > room:
            detail = f"this request would hold {active_request.nbytes + nbytes} bytes, and there is room for {room}"
            hint = "Move the file in parts, or through a tunnel."
            raise ApiError(ErrorCode.INVALID, detail, hint=hint, status=413)
        if use.nbytes + nbytes > self._nbytes_per_key and not active_request.unlimited:
            raise _refused(f"this key has {use.nbytes} bytes of files under way, of {self._nbytes_per_key} at most")
        if self.reserved_bytes + nbytes > self._nbytes:
            raise _refused(f"the farm has {self.reserved_bytes} bytes of files under way, of {self._nbytes} at most")
        active_request.nbytes += nbytes
        use.nbytes += nbytes
        self.reserved_bytes += nbytes

    def cancel_key(self, key_id: str) -> int:
        """End what runs under a key; how many that were."""
        use = self._uses.get(key_id)
        active_requests = list(use.active_requests) if use else []
        for active_request in active_requests:
            active_request.key_ended = True
            if active_request.task is not None and active_request.task is not asyncio.current_task():
                active_request.task.cancel()
        return len(active_requests)

    def active_count(self, key_id: str) -> int:
        """Requests and WebSockets of a key."""
        use = self._uses.get(key_id)
        return len(use.active_requests) if use else 0


def _refused(detail: str) -> ApiError:
    return ApiError(ErrorCode.TOO_MANY_REQUESTS, detail, hint="Wait for some to end, then repeat; Retry-After tells.")
