"""Chaos on pretended desktops: an honest farm passes, and a farm with a planted fault is caught."""

from __future__ import annotations

import sys

import pytest

from benchmarks.chaos import run as chaos_run

SECONDS = 10.0
TTL_S = 2.0
LEASES = 25
CALM = ("client_killed", "client_stopped")
SEED = 11

BROKEN = {
    "fences and ends are not looked at": (
        "from dart_server.leases import service\nservice.Leases.check = lambda self, access: None\n"
        "async def require(self, lease_id, principal):\n"
        "    kept = self.__dict__.setdefault('kept', {})\n"
        "    lease = self._active.get(lease_id) or kept.get(lease_id) or await self.find(lease_id, principal)\n"
        "    if lease.slot is not None:\n"
        "        kept[lease_id] = lease\n"
        "    return lease\n"
        "service.Leases.require = require\n"
        "end = service.Leases.end\n"
        "async def keep(self, lease, state):\n"
        "    slot = lease.slot\n"
        "    await end(self, lease, state)\n"
        "    lease.slot = slot\n"
        "service.Leases.end = keep\n",
        "last word",
    ),
    "used desktops are handed on as they are": (
        "from dart_server.pool.slot_lifecycle import SlotLifecycle\n"
        "prepare = SlotLifecycle.prepare\n"
        "async def lazy(self, slot, target, **options):\n"
        "    if slot.exists and slot.guest is not None:\n"
        "        slot.unused = True\n"
        "        return\n"
        "    await prepare(self, slot, target, **options)\n"
        "SlotLifecycle.prepare = lazy\n"
        "from dart_server.pool.prepare import DesktopPreparer\n"
        "async def keep_connections(self, slot):\n"
        "    pass\n"
        "DesktopPreparer.close_connections = keep_connections\n",
        "bears the mark",
    ),
    "ends are not written down": (
        "from dart_server.database.repository.leases import LeaseStatements\n"
        "end = LeaseStatements.end_lease\n"
        "def forgetful(self, lease):\n"
        "    return end(self, lease) if lease.lease_id[-1] in '02468ACEGJMPRTWY' else self._db.write()\n"
        "LeaseStatements.end_lease = forgetful\n",
        "never ended",
    ),
}


def test_an_honest_farm_holds() -> None:
    outcome = chaos_run.run(chaos_run.Plan(SECONDS, SEED, "sim", ttl_s=TTL_S, least_leases=LEASES))
    assert outcome.breaches == []
    assert outcome.figures["leases"] >= LEASES


@pytest.mark.slow
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_farm_is_caught(fault: str) -> None:
    patch, said = BROKEN[fault]
    program = [sys.executable, "-c", patch + "from dart_server.cli import main\nmain()"]
    plan = chaos_run.Plan(SECONDS, SEED, "sim", ttl_s=TTL_S, least_leases=LEASES, kinds=CALM, program=program)
    outcome = chaos_run.run(plan)
    assert any(said in breach for breach in outcome.breaches), outcome
