"""The database's queue: writes in order, in batches, through every outage of the database.

Rule: the database is spoken to by one thread of its own, so that the event loop never waits for it and a batch costs one hand-over (an
async driver hands over for every statement: forty times per lease). Who needs to know that something is written awaits its receipt. A
read sees every write that was queued before it. While the database is away, writes wait in order and are tried again until it is back,
each made once; reads, and what must be written before it may happen, are refused with `DatabaseUnavailableError`. A write that the
database refuses is found by halving its batch. Non-goals: statements (`repository`), connections (`engine`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Executable, Row
from sqlalchemy.exc import SQLAlchemyError

from dart_server.clock import SystemClock
from dart_server.database.bulk_statements import Statement
from dart_server.database.engine import DatabaseInUse, is_outage
from dart_server.database.transactions import TransactionWriter
from dart_server.errors import DatabaseUnavailableError
from dart_server.wire import Clock

log = logging.getLogger(__name__)
BATCH_MAX = 500
"""Writes of one transaction at most: what is tried again after an outage stays small."""
QUEUE_MAX = 20_000
"""Writes that may wait for the database. Beyond it events without a change of state are left out, and their number is written later."""
STALL_TIMEOUT_S = 5.0
"""A call that takes longer counts as an outage until it returns."""
AVAILABILITY_TIMEOUT_S = 2.0
"""How long a caller waits for the database to come back before it is refused."""
RETRY_S, RETRY_MAX_S = 0.1, 2.0
CLOSE_TIMEOUT_S = 10.0
"""How long a stop waits for a database that is away."""

WriteReceipt = asyncio.Future[None]
"""Done when the write is committed; carries its error otherwise. It need not be awaited."""
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class QueuedWrite:
    """Statements that are committed together."""

    statements: Sequence[Statement]
    receipt: WriteReceipt
    key: str | None = None


class Database:
    """One database of the farm, used from one event loop. `exclusive`: this process is the farm, and the only one there."""

    def __init__(self, url: str, clock: Clock | None = None, *, exclusive: bool = False) -> None:
        """Raises `FarmConfigError` for a URL that cannot work."""
        self._clock = clock or SystemClock()
        self._transactions = TransactionWriter(url, self._clock, exclusive=exclusive)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dart-database")
        self._queue: deque[QueuedWrite] = deque()
        self._flying: Sequence[QueuedWrite] = ()
        self._keyed: dict[str, QueuedWrite] = {}
        self._wake = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._back = asyncio.Event()
        self._back.set()
        self._away_since_s = 0.0
        self._left_out = 0
        self.unavailable_reason: str | None = None
        """Why the database does not answer, None while it does."""
        self.on_recovered: Callable[[float, int], None] | None = None
        """Called after an outage with its length in seconds and the number of events that were left out."""

    @property
    def last_write_at(self) -> float | None:
        """When an earlier life of this farm wrote last."""
        return self._transactions.last_write_at

    @property
    def pending_writes(self) -> int:
        """Writes that are not committed yet."""
        return len(self._queue) + len(self._flying)

    async def start(self) -> None:
        """Bring the tables to this version of the package, and begin to write. Raises `FarmConfigError`."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._transactions.start)
        self._writer = loop.create_task(self._write_forever())

    def write(self, *statements: Statement, key: str | None = None, history: bool = False) -> WriteReceipt:
        """Queue statements that are committed together.

        One with the `key` of a write that still waits takes its place: for values of which only the latest counts. `history`: it may be
        left out when too many wait for a database that is away.
        """
        receipt: WriteReceipt = asyncio.get_running_loop().create_future()
        if history and self.unavailable_reason is not None and len(self._queue) >= QUEUE_MAX:
            self._left_out += 1
            receipt.set_result(None)
            return receipt
        if key is not None and key in self._keyed:
            self._keyed[key].statements = statements
            return self._keyed[key].receipt
        receipt.add_done_callback(_log_failure)
        write = QueuedWrite(statements, receipt, key)
        if key is not None:
            self._keyed[key] = write
        self._queue.append(write)
        self._wake.set()
        return receipt

    def cancel_write(self, receipt: WriteReceipt) -> bool:
        """Take a write back that nobody has begun to commit; True when it will never be made."""
        if receipt.done():
            return receipt.cancelled() or receipt.exception() is not None
        for write in self._queue:
            if write.receipt is receipt:
                self._queue.remove(write)
                self._forget_key(write)
                receipt.cancel()
                return True
        return False

    async def wait_committed(self, receipt: WriteReceipt) -> None:
        """Wait until a write is made. Raises its error; `DatabaseUnavailableError` when the database stays away (the write then still
        waits)."""
        await self._ended(receipt)
        receipt.result()

    async def wait_available(self) -> None:
        """Wait shortly for a database that is away. Raises `DatabaseUnavailableError` when it does not come back."""
        if self.unavailable_reason is not None:
            try:
                async with asyncio.timeout(AVAILABILITY_TIMEOUT_S):
                    await self._back.wait()
            except TimeoutError:
                raise self._refusal() from None

    async def flush(self) -> None:
        """Wait until what was queued so far is written or refused. Raises `DatabaseUnavailableError` when the database stays away."""
        last = self._queue[-1] if self._queue else self._flying[-1] if self._flying else None
        if last is not None:
            await self._ended(last.receipt)

    async def rows(self, statement: Executable) -> Sequence[Row[Any]]:
        """Everything a select gives. Raises `DatabaseUnavailableError`."""
        await self.wait_available()
        await self.flush()
        for attempt in (1, 2):
            try:
                return await self._in_thread(lambda: self._transactions.select(statement), patient=False)
            except (SQLAlchemyError, DatabaseInUse) as error:
                if not is_outage(error):
                    raise
                await self._in_thread(self._transactions.disconnect, patient=False)
                if attempt == 2:
                    self._mark_unavailable(error)
        # Somebody must find out when it is back.
        self.write()
        raise self._refusal()

    async def _ended(self, receipt: WriteReceipt) -> None:
        while not receipt.done():
            await asyncio.wait({receipt}, timeout=AVAILABILITY_TIMEOUT_S)
            if not receipt.done() and self.unavailable_reason is not None:
                raise self._refusal()

    async def _in_thread(self, call: Callable[[], T], *, patient: bool) -> T:
        """The call's result. One that takes too long is an outage: the `patient` wait for its end, others are refused."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, call)
        done, _ = await asyncio.wait({future}, timeout=STALL_TIMEOUT_S)
        if not done:
            self._mark_unavailable(f"it has not answered for {STALL_TIMEOUT_S:g} s")
            if not patient:
                future.add_done_callback(_log_late)
                self.write()
                raise self._refusal()
            await asyncio.wait({future})
        return future.result()

    async def _write_forever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
                for write in batch:
                    self._forget_key(write)
                await self._commit_batch(batch)

    async def _commit_batch(self, batch: Sequence[QueuedWrite]) -> None:
        """Commit writes together; when one of them is refused, the halves, so that only the faulty ones are told so."""
        parts = [batch]
        while parts:
            self._flying = [write for part in parts for write in part]
            part = parts.pop(0)
            failure = await self._commit_once(part)
            if failure is not None and len(part) > 1:
                half = len(part) // 2
                parts[:0] = [part[:half], part[half:]]
                continue
            for write in part:
                if not write.receipt.done():
                    if failure is None:
                        write.receipt.set_result(None)
                    else:
                        write.receipt.set_exception(failure)
        self._flying = ()

    async def _commit_once(self, part: Sequence[QueuedWrite]) -> Exception | None:
        """Commit, trying again through outages; the error when the statements are at fault."""
        number = self._transactions.next_transaction_number()
        statements = [statement for write in part for statement in write.statements]
        delay_s = RETRY_S
        is_retry = False
        while True:
            failure = await self._in_thread(lambda: self._try(number, statements, is_retry=is_retry), patient=True)  # noqa: B023 - awaited here
            if failure is None or not is_outage(failure):
                self._mark_available()
                return failure
            self._mark_unavailable(failure)
            is_retry = True
            await self._clock.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)

    def _try(self, number: int, statements: Sequence[Statement], *, is_retry: bool) -> Exception | None:
        try:
            self._transactions.commit(number, statements, is_retry=is_retry)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to this write's receipt, and the next ones go on
            if is_outage(error):
                self._transactions.disconnect()
            return error
        return None

    def _mark_unavailable(self, reason: object) -> None:
        text = str(getattr(reason, "orig", None) or reason).strip().splitlines()[0]
        if self.unavailable_reason is None:
            self._away_since_s = self._clock.monotonic()
            self._back.clear()
            log.error("the database is away: %s", text)
        self.unavailable_reason = text

    def _mark_available(self) -> None:
        if self.unavailable_reason is None:
            return
        lasted_s, dropped_events = self._clock.monotonic() - self._away_since_s, self._left_out
        self.unavailable_reason, self._left_out = None, 0
        self._back.set()
        log.warning("the database is back after %.1f s; %d writes waited", lasted_s, self.pending_writes)
        if self.on_recovered is not None:
            self.on_recovered(lasted_s, dropped_events)

    def _refusal(self) -> DatabaseUnavailableError:
        return DatabaseUnavailableError(f"the farm's database is away ({self.unavailable_reason or 'it is slow'})")

    def _forget_key(self, write: QueuedWrite) -> None:
        if write.key is not None:
            self._keyed.pop(write.key, None)

    async def aclose(self) -> None:
        """Write what is queued, waiting shortly for a database that is away, then close. Idempotent."""
        if self._writer is not None:
            last = self.write()
            await asyncio.wait({last}, timeout=CLOSE_TIMEOUT_S if self.unavailable_reason is not None else None)
            if not last.done():
                log.error(
                    "%d writes to the database are lost: its database is away (%s)",
                    self.pending_writes - 1,
                    self.unavailable_reason,
                )
            self._writer.cancel()
            await asyncio.wait({self._writer})
            self._writer = None
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._thread.shutdown(wait=True)
        try:
            self._transactions.leave()
        except SQLAlchemyError as error:
            log.warning("the database was not closed properly: %s", getattr(error, "orig", error))


def _log_failure(receipt: WriteReceipt) -> None:
    if not receipt.cancelled() and receipt.exception() is not None:
        log.error("a write to the database failed: %s", receipt.exception())


def _log_late(future: asyncio.Future[Any]) -> None:
    if not future.cancelled() and future.exception() is not None:
        log.warning("a late read of the database failed: %s", future.exception())
