"""Leases under load on pretended desktops: a real farm process, a real client process, the database compared at the end.

Role: the parts `load` (clients as fast as they can), `held` (each lease held for a second) and `fair` (a greedy tenant beside a modest
one). Rule: after each part the farm must be back where it was: every lease ended in the database, no desktop held, descriptors and threads
as before; what is not, is counted as a leak and named. Non-goals: real desktops (`farm_standby`), stepping (`farm_steps`).
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from typing import Any

from benchmarks.farm.client import Plan, Tenant, run_apart
from benchmarks.farm.http import ask_json
from benchmarks.farm.process import FarmProcess, Weight, own_farm, weigh

CLIENTS = 200
ROOM = 64
"""Desktops beyond the clients' number that are kept warm, so that a claim finds one."""
WARM_UP_LEASES = 400
REST_LIMIT_S = 30.0
DESCRIPTOR_SLACK = 4
"""Files of the database and sockets of the last answer that may be open a moment longer."""
SETTINGS = {
    "DART_PROVIDER": "sim",
    "DART_MAX_DESKTOPS": str(CLIENTS + ROOM),
    "DART_WARM_DESKTOPS": str(ROOM),
    "DART_LOG_LEVEL": "warning",
}


def measure_load(leases: int, *, hold_s: float, seconds: float) -> dict[str, Any]:
    """Figures of `leases` leases by `CLIENTS` clients, or of as many as `seconds` allow."""
    with own_farm(SETTINGS) as farm:
        admin = [Tenant("admin", farm.key, CLIENTS)]
        run_apart(Plan(str(farm.uds), admin, WARM_UP_LEASES, run="warm-up"))
        before = at_rest(farm)
        plan = Plan(str(farm.uds), admin, leases, seconds=seconds, hold_s=hold_s, ramp_s=hold_s)
        figures = run_apart(plan)
        busy = weigh(farm.pid)
        after = at_rest(farm)
        leaks = leaked(farm, before, after)
    seconds = figures["seconds"]
    say(f"{'held' if hold_s else 'load'}: {figures}, leaks {leaks}")
    return {
        **figures,
        "server_cpu_share": round((busy.cpu_s - before.cpu_s) / seconds, 3),
        "server_cpu_ms_per_lease": round((busy.cpu_s - before.cpu_s) * 1000 / max(1, figures["leases"]), 2),
        "server_rss_growth_mib": round(after.rss_mib - before.rss_mib, 1),
        "leaks": leaks,
    }


def measure_fair(seconds: float) -> dict[str, Any]:
    """Two tenants on few desktops: the greedy one with ten times the clients. Shares of the leases, and their waits."""
    few = {**SETTINGS, "DART_MAX_DESKTOPS": "16", "DART_WARM_DESKTOPS": "4"}
    with own_farm(few) as farm:
        keys = [make_key(farm, name) for name in ("greedy", "modest")]
        tenants = [Tenant("greedy", keys[0], 100), Tenant("modest", keys[1], 10)]
        before = at_rest(farm)
        figures = run_apart(
            Plan(str(farm.uds), tenants, leases=10**9, seconds=seconds, hold_s=0.1, ramp_s=0.1, run="fair")
        )
        leaks = leaked(farm, before, at_rest(farm))
    say(f"fair: {figures}, leaks {leaks}")
    share = figures["tenants"]["modest"]["leases"] / max(1, figures["leases"])
    return {**figures, "modest_share": round(share, 3), "leaks": leaks}


def make_key(farm: FarmProcess, name: str) -> str:
    """A key with the scope `lease`."""
    made = asyncio.run(ask_json(farm.uds, farm.key, "POST", "/v1/keys", {"name": name, "scope": "lease"}))
    return str(made["secret"])


def at_rest(farm: FarmProcess) -> Weight:
    """The farm's weight once no lease is active and no desktop is on its way. Raises RuntimeError when that does not come."""
    deadline_s = time.monotonic() + REST_LIMIT_S
    while True:
        view = asyncio.run(ask_json(farm.uds, farm.key, "GET", "/v1/farm"))
        if not view["leases_active"] and not set(view["desktops"]) - {"ready"}:
            return weigh(farm.pid)
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the farm did not come to rest within {REST_LIMIT_S:.0f} s: {view}")
        time.sleep(0.1)


def leaked(farm: FarmProcess, before: Weight, after: Weight) -> list[str]:
    """What is not as it was; the database's word for leases and desktops, the kernel's for the process."""
    found = ledger_leaks(farm)
    if after.descriptors > before.descriptors + DESCRIPTOR_SLACK:
        found.append(f"descriptors {before.descriptors} -> {after.descriptors}")
    if after.threads > before.threads:
        found.append(f"threads {before.threads} -> {after.threads}")
    return found


def ledger_leaks(farm: FarmProcess) -> list[str]:
    """Leases that did not end, and desktops that are held by one."""
    found = []
    with sqlite3.connect(f"file:{farm.state_dir / 'farm.db'}?mode=ro", uri=True) as database:
        for what, question in {
            "leases that never ended": "select count(*) from leases where state = 'active'",
            "desktops held by no active lease": "select count(*) from desktops where state != 'gone' and lease_id is not null",
            "leases that ended twice": "select count(*) from (select 1 from events where kind in ('lease_released', 'lease_expired') "
            "group by lease_id having count(*) > 1)",
        }.items():
            (count,) = database.execute(question).fetchone()
            if count:
                found.append(f"{what}: {count}")
    return found


def say(line: str) -> None:
    """Progress, beside the record."""
    print(line, file=sys.stderr, flush=True)
