"""The database's statements about builds of prepared states. Rule: at most one build of an owner and key is `building`."""

from __future__ import annotations

from sqlalchemy import insert, update

from dart_server.database.models import SetupRow
from dart_server.database.repository.base import NewEvent, Statements
from dart_server.database.write_queue import WriteReceipt


class SetupStatements(Statements):
    """Builds of prepared states."""

    def add_setup(self, owner: str, key: str, lease_id: str, grant_sha256: str) -> WriteReceipt:
        row = insert(SetupRow).values(
            owner=owner,
            key=key,
            lease_id=lease_id,
            grant_sha256=grant_sha256,
            state="building",
            reason=None,
            started_at=self._clock.time(),
            ended_at=None,
        )
        return self._write(row, NewEvent("setup_started", lease_id=lease_id, data={"key": key}))

    def end_setup(self, grant_sha256: str, state: str, key: str, lease_id: str, reason: str | None) -> WriteReceipt:
        values = {"state": state, "reason": reason, "ended_at": self._clock.time()}
        note = NewEvent(f"setup_{state}", lease_id=lease_id, data={"key": key, "reason": reason})
        return self._write(update(SetupRow).where(SetupRow.grant_sha256 == grant_sha256).values(values), note)

    def abandon_all_setups(self, reason: str) -> WriteReceipt:
        """Free every builder of a former life of this farm."""
        values = {"state": "abandoned", "reason": reason, "ended_at": self._clock.time()}
        return self._write(update(SetupRow).where(SetupRow.state == "building").values(values))
