"""Prepared states by key: one builder at a time, the others wait.

Rule: a build belongs to a lease; it ends by being published, by being abandoned, or with the lease, and then the next one may try.
Keys are the owner's own: two tenants never see each other's prepared states. Non-goals: what a setup does (clients run it).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from dart_server.clock import wait_for
from dart_server.database.repository import Repository
from dart_server.errors import ApiError
from dart_server.ids import hash_secret, new_secret, secrets_equal
from dart_server.records import LeaseRecord, SnapshotRecord
from dart_server.snapshots.service import Snapshots
from dart_server.wire import Clock, ErrorCode, SetupGrant


@dataclass(slots=True, eq=False)
class Build:
    """A build under way."""

    owner: str
    key: str
    lease_id: str
    grant_sha256: str
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Setups:
    """Who builds what now."""

    def __init__(self, snapshots: Snapshots, repository: Repository, clock: Clock) -> None:
        self._snapshots = snapshots
        self._repository = repository
        self._clock = clock
        self._builds: dict[tuple[str, str], Build] = {}
        self._published: dict[str, dict[str, str]] = {}
        """Lease id -> grant hash -> snapshot id, so that a repeated publish is answered like the first for as long as the lease lasts."""

    async def acquire(self, lease: LeaseRecord, key: str, wait_s: float) -> SetupGrant:
        """`ready` when the state exists, `build` when the caller is its builder now, `busy` when another still is after `wait_s`."""
        deadline = self._clock.monotonic() + wait_s
        while True:
            if self._snapshots.find_setup(lease.owner, key) is not None:
                return SetupGrant(state="ready")
            build = self._builds.get((lease.owner, key))
            if build is None:
                return await self._start(lease, key)
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return SetupGrant(state="busy")
            try:
                await wait_for(self._clock, left, build.ended.wait())
            except TimeoutError:
                return SetupGrant(state="busy")

    async def _start(self, lease: LeaseRecord, key: str) -> SetupGrant:
        grant = new_secret("grant")
        build = Build(lease.owner, key, lease.lease_id, hash_secret(grant))
        self._builds[(lease.owner, key)] = build
        try:
            await self._repository.wait_committed(
                self._repository.add_setup(build.owner, key, build.lease_id, build.grant_sha256)
            )
        except BaseException:  # cancelled, too, nobody may wait for this build; raised again
            self._end(build)
            raise
        return SetupGrant(state="build", grant=grant)

    def published(self, lease: LeaseRecord, grant: str | None) -> SnapshotRecord | None:
        """The snapshot that this lease has published with this grant already, if it is still there."""
        snapshot_id = self._published.get(lease.lease_id, {}).get(hash_secret(grant or ""))
        return self._snapshots.get(snapshot_id) if snapshot_id else None

    def require(self, lease: LeaseRecord, key: str, grant: str | None) -> Build:
        """The build that this lease may publish. Raises `ApiError`."""
        build = self._builds.get((lease.owner, key))
        if (
            build is None
            or build.lease_id != lease.lease_id
            or not secrets_equal(build.grant_sha256, hash_secret(grant or ""))
        ):
            hint = "Claim the key with POST /v1/setups/acquire, and publish with the grant it gives."
            raise ApiError(ErrorCode.FORBIDDEN, "this lease is not the builder of that key", hint=hint)
        return build

    async def publish(self, build: Build, record: SnapshotRecord) -> None:
        """The state exists now; the others are woken."""
        self._published.setdefault(build.lease_id, {})[build.grant_sha256] = record.snapshot_id
        self._end(build)
        self._repository.end_setup(build.grant_sha256, "ready", build.key, build.lease_id, None)

    async def abandon(self, owner: str, key: str, grant: str, reason: str) -> None:
        """The builder gives up. Idempotent: a grant that is over already is left alone."""
        build = self._builds.get((owner, key))
        if build is not None and secrets_equal(build.grant_sha256, hash_secret(grant)):
            await self._free(build, reason)

    async def lease_ended(self, lease_id: str) -> None:
        """Free whatever this lease was building, and forget what it has published."""
        self._published.pop(lease_id, None)
        for build in [build for build in self._builds.values() if build.lease_id == lease_id]:
            await self._free(build, "the builder's lease ended")

    async def _free(self, build: Build, reason: str) -> None:
        self._end(build)
        self._repository.end_setup(build.grant_sha256, "abandoned", build.key, build.lease_id, reason)

    def _end(self, build: Build) -> None:
        if self._builds.get((build.owner, build.key)) is build:
            del self._builds[(build.owner, build.key)]
        build.ended.set()


def build_ended_error() -> ApiError:
    """A build was given up, or its lease ended, before there was a snapshot to publish."""
    detail = "the build ended before its snapshot was made"
    return ApiError(ErrorCode.LEASE_EXPIRED, detail, hint="Claim the setup again.")
