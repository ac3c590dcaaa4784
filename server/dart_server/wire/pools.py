"""Pools: how many desktops of what are to be ready before anybody asks, and how the farm keeps up with it. Non-goals: who gets them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from dart_server.wire.base import DesktopShape, Labels, SetupKey, WireModel

PoolName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
DEFAULT_POOL = "default"
"""The pool that every farm has: ready copies of the shape asked for last, as many as `DART_WARM_DESKTOPS`. It cannot be written."""
_COUNT = Field(default=0, ge=0, le=4096)


class PoolSpec(WireModel):
    """What is to be ready: copies of `snapshot_id`, else of the prepared state `setup_key` (of the booted base until it is built), else of
    the booted base of `shape`.

    `warm` of them run, `standby` are frozen and only thawed when they are asked for (a claim, a reset). `min` counts leased ones, too: so
    many desktops of this kind there are at least. `max` bounds them all, leased and waiting, where the pool makes them.
    `refill_per_minute` bounds how fast copies are made ahead of need (null: as fast as the farm can). `labels` are what a claim's
    `match_labels` are compared with."""

    shape: DesktopShape = DesktopShape()
    setup_key: SetupKey | None = None
    snapshot_id: str | None = Field(default=None, max_length=128, description="id or name")
    labels: Labels = Field(default_factory=dict)
    warm: int = _COUNT
    standby: int = _COUNT
    min: int = _COUNT
    max: int | None = Field(default=None, ge=1, le=4096)
    refill_per_minute: float | None = Field(default=None, gt=0, le=60_000, allow_inf_nan=False)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.setup_key is not None and self.snapshot_id is not None:
            raise ValueError("a pool is of a setup_key or of a snapshot_id, not of both")
        if self.max is not None and max(self.warm + self.standby, self.min) > self.max:
            raise ValueError(f"warm + standby and min must fit into max ({self.max})")
        return self


class PoolView(WireModel):
    """A pool as it is now. `ready` and `standby` wait, `creating` are on their way, `leased` are in use.

    `hits` of all claims and resets that asked for its kind found a copy ready, `misses` did not. `in_backoff`: why no copies are being made
    now, null while they are.
    """

    name: PoolName
    spec: PoolSpec
    owner: str
    ready: int
    standby: int
    creating: int
    leased: int
    hits: int
    misses: int
    in_backoff: str | None
    created_at: datetime
    updated_at: datetime
