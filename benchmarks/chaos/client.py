"""A client under chaos, in a process of its own: claims, marks, steps, checks the mark, resets, releases, or vanishes.

`python -m benchmarks.chaos.client SPEC` (JSON). It appends one JSON line per finding to its journal: `use` for every call that the
desktop answered, `refused` with the code of every refusal, `late` for an answer to a lease that nobody has renewed for too long (which
only a restart of the farm excuses), `breach` for what must never happen: another lease's mark, a fresh desktop with a mark. Rule: it may
be killed or stopped at any moment, so each line is written at once. It ends at SIGTERM, after it has released what it holds. Non-goals:
judging the journal (`chaos_history`).
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.farm.http import Lane, LaneClosed, request

MARK = "/home/user/chaos-mark"
MARK_QUERY = quote(MARK, safe="")
CALL_LIMIT_S = 30.0
CLAIM_WAIT_S = 20.0
RETRY_S = 0.2
LATE_SLACK_S = 2.0
"""A lease that nobody renews is over its time to live and this long after its client's last word."""
OVER = frozenset({"fenced", "lease_expired", "not_found", "forbidden"})


class Lost(Exception):
    """The lease is over."""


class Failed(Exception):
    """The desktop is dead; a reset makes a new one."""


@dataclass(slots=True)
class Held:
    """A lease as its client knows it."""

    lease_id: str
    token: str
    fencing_token: int
    desktop_id: str
    left_s: float = 0.0

    @property
    def mark(self) -> str:
        return f"{self.lease_id} {self.fencing_token}"


class Client:
    """One client; `run` until `stopping` is set."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._name: str = spec["name"]
        self._uds = Path(spec["uds"])
        self._key: str = spec["key"]
        self._ttl_s: float = spec["ttl_s"]
        self._random = random.Random(spec["seed"])
        self._journal = Path(spec["journal"]).open("a", buffering=1)  # noqa: SIM115 - open for as long as the process lives
        self._lane: Lane | None = None
        self._left: list[Held] = []
        self._claims = 0
        self._pause_s: float = spec["pause_s"]
        """The longest pause between two steps."""
        self._most_steps: int = spec["most_steps"]
        self.stopping = asyncio.Event()

    def note(self, what: str, **data: Any) -> None:
        self._journal.write(json.dumps({"what": what, "client": self._name, **data}) + "\n")

    async def run(self) -> None:
        """Episodes, one after the other."""
        while not self.stopping.is_set():
            held = await self._claim()
            if held is None:
                continue
            try:
                await self._episode(held)
            except Lost:
                self.note("lost", lease_id=held.lease_id)
                self._leave(held)
            await self._knock_late()

    async def _episode(self, held: Held) -> None:
        fresh = True
        for _ in range(self._random.randint(2, self._most_steps)):
            if self.stopping.is_set():
                break
            try:
                if fresh:
                    await self._mark(held)
                    fresh = False
                await self._step(held)
                if self._random.random() < 0.15:
                    await self._reset(held)
                    fresh = True
            except Failed:
                await self._reset(held)
                fresh = True
            await self._ask("POST", f"/v1/leases/{held.lease_id}/heartbeat")
            await asyncio.sleep(self._random.uniform(0.0, self._pause_s))
        if self._random.random() < 0.15 and not self.stopping.is_set():
            self._leave(held)
            return
        await self._ask("DELETE", f"/v1/leases/{held.lease_id}", limit_s=60.0)
        self.note("released", lease_id=held.lease_id)

    async def _claim(self) -> Held | None:
        self._claims += 1
        body = {
            "client_request_id": f"{self._name}-{time.time_ns()}-{self._claims}",
            "shape": {"resolution": [640, 400]},
            "ttl_s": self._ttl_s,
            "wait_s": CLAIM_WAIT_S,
        }
        try:
            answer = await self._ask("POST", "/v1/leases", body, limit_s=3 * CLAIM_WAIT_S)
        except (Lost, Failed, TimeoutError):
            return None
        held = Held(answer["lease_id"], answer["token"], answer["fencing_token"], answer["desktop_id"])
        self.note("granted", lease_id=held.lease_id, desktop_id=held.desktop_id, fencing_token=held.fencing_token)
        return held

    async def _mark(self, held: Held) -> None:
        """A fresh desktop bears no mark; then it bears ours."""
        found = await self._read(held)
        if found is not None:
            self.note("breach", why=f"a fresh desktop of {held.lease_id} bears the mark {found!r}")
        await self._guest(held, "PUT", f"files?path={MARK_QUERY}", held.mark.encode())

    async def _step(self, held: Held) -> None:
        move = {"type": "move", "x": self._random.randrange(600), "y": self._random.randrange(380)}
        await self._guest(held, "POST", "step", {"events": [move], "frame": {"encoding": "none"}})
        found = await self._read(held)
        if found != held.mark:
            self.note(
                "breach", why=f"{held.lease_id} on {held.desktop_id} reads the mark {found!r}, wrote {held.mark!r}"
            )

    async def _read(self, held: Held) -> str | None:
        content = await self._guest(held, "GET", f"files?path={MARK_QUERY}")
        return None if content is None else content.decode("utf-8", "replace")

    async def _reset(self, held: Held) -> None:
        for _ in range(5):
            try:
                answer = await self._guest(held, "POST", "reset", {})
            except Failed:
                continue
            assert answer is not None
            reply = json.loads(answer)
            held.fencing_token, held.desktop_id = reply["fencing_token"], reply["desktop_id"]
            return
        raise Lost

    def _leave(self, held: Held) -> None:
        """Forget a lease without a word; later somebody knocks with it."""
        held.left_s = time.monotonic()
        self._left.append(held)

    async def _knock_late(self) -> None:
        """Whoever comes late, with a lease that must be over by now, is refused."""
        due = [held for held in self._left if time.monotonic() - held.left_s > self._ttl_s + LATE_SLACK_S]
        for held in due:
            self._left.remove(held)
            with suppress(Lost, Failed, TimeoutError):
                await self._guest(held, "POST", "step", {"frame": {"encoding": "none"}}, late=True)

    async def _guest(
        self, held: Held, method: str, path: str, body: dict[str, Any] | bytes | None = None, *, late: bool = False
    ) -> bytes | None:
        """The answer's body, None for a file that is not there. Raises `Lost`, `Failed`."""
        target = f"/v1/leases/{held.lease_id}/{path}"
        headers = {"x_dart_lease_token": held.token, "x_dart_fencing_token": str(held.fencing_token)}
        deadline_s = time.monotonic() + 60.0
        while time.monotonic() < deadline_s:
            sent_s = time.monotonic()
            status, content = await self._send(request(method, target, self._key, body, **headers))
            received_s = time.monotonic()
            if status < 400:
                if late:
                    self.note("late", lease_id=held.lease_id, left_s=held.left_s, answered_s=received_s)
                if path != "reset":
                    times = {"sent_s": sent_s, "received_s": received_s}
                    self.note("use", lease_id=held.lease_id, desktop_id=held.desktop_id, **times)
                return content
            code = _code(content)
            if status == 404 and code == "guest_error":
                return None
            self.note("refused", status=status, code=code)
            if code in OVER:
                if code == "fenced" and path == "reset":
                    await self._learn(held)
                    headers["x_dart_fencing_token"] = str(held.fencing_token)
                    continue
                raise Lost
            if code == "desktop_failed":
                raise Failed
            await asyncio.sleep(RETRY_S)
        raise Lost

    async def _learn(self, held: Held) -> None:
        """A reset whose answer was lost has moved the fencing token: the farm tells its owner the fencing token of now."""
        view = await self._ask("GET", f"/v1/leases/{held.lease_id}")
        if view["state"] != "active" or view["fencing_token"] == held.fencing_token:
            raise Lost
        held.fencing_token, held.desktop_id = view["fencing_token"], view["desktop_id"]

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, limit_s: float = CALL_LIMIT_S
    ) -> Any:
        """The answer of one of the farm's own routes, asked again through every outage. Raises `Lost`, TimeoutError."""
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            status, content = await self._send(request(method, path, self._key, body), limit_s)
            if status < 400:
                return json.loads(content) if content else None
            code = _code(content)
            self.note("refused", status=status, code=code)
            if code in OVER:
                raise Lost
            await asyncio.sleep(RETRY_S)
        raise TimeoutError

    async def _send(self, content: bytes, limit_s: float = CALL_LIMIT_S) -> tuple[int, bytes]:
        """One attempt; a farm that does not answer is status 599."""
        try:
            async with asyncio.timeout(limit_s):
                if self._lane is None:
                    self._lane = await Lane.open(self._uds)
                return await self._lane.ask(content)
        except (OSError, LaneClosed, TimeoutError):
            if self._lane is not None:
                self._lane.close()
            self._lane = None
            return 599, b""


def _code(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return "none"


async def main() -> None:
    """The process's entry: `together` clients in one process."""
    spec = json.loads(sys.argv[1])
    clients = [
        Client({**spec, "name": f"{spec['name']}.{number}", "seed": spec["seed"] * 1000 + number})
        for number in range(spec["together"])
    ]

    def stop() -> None:
        for client in clients:
            client.stopping.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    await asyncio.gather(*(client.run() for client in clients))


if __name__ == "__main__":
    asyncio.run(main())
