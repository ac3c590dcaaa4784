"""Keys as people manage them: who may call, what, how much, until when. Rule: a secret is shown once and never stored."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import AwareDatetime, Field, StringConstraints

from dart_server.wire.base import Int, NoText, Number, WireModel

KeyName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,64}$")]

Quota = Annotated[int, Field(ge=0, le=100_000), NoText]


class KeyScope(StrEnum):
    """What a key may do; each includes those before it. `read`: look. `lease`: have leases, and snapshots of its own. `admin`: all."""

    READ = "read"
    LEASE = "lease"
    ADMIN = "admin"


class KeyRequest(WireModel):
    """Make a key. A quota of None is the farm's own for keys, if it has one."""

    name: KeyName = Field(description="whom it is for")
    scope: KeyScope = KeyScope.LEASE
    expires_at: AwareDatetime | None = Field(default=None, description="refused from then on; None: good until revoked")
    max_leases: Quota | None = Field(
        default=None, description="leases that it may hold at a time; none: the farm's DART_MAX_LEASES_PER_KEY"
    )
    max_waiting: Quota | None = Field(default=None, description="claims that may wait at a time")
    weight: Number = Field(default=1.0, ge=0.01, le=100, description="its share against other keys when claims wait")
    max_priority: Int = Field(
        default=0, ge=-100, le=100, description="the highest priority that its claims may have; of scope `admin`: any"
    )


class KeyView(WireModel):
    """A key without its secret. `last_used_at` is right within a minute."""

    key_id: str
    name: str
    scope: KeyScope
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    max_leases: int | None = None
    max_waiting: int | None = None
    weight: float = 1.0
    max_priority: int = 0


class NewKey(KeyView):
    """A key that was just made. `secret` is what goes into `Authorization: Bearer …`; nobody can be told it again."""

    secret: str
