"""Chaos: a farm whose clients, desktops, database and server are killed at random, and what must hold nevertheless.

`python -m benchmarks.chaos [--minutes 15] [--seed N] [--postgres] [--json FILE]`, also `make chaos`. Role: starts a farm with a few live
desktops and more clients than desktops, strikes until the time is over, lets everything end, then judges: at most one owner per desktop
at a time by the event history, no answer of a wrong desktop by the marks that clients leave, late clients refused, every lease ended,
nothing left on the host. Exit code 0 when all of that holds, 1 when not, with each breach on a line of its own. Rule: the faults follow
from the seed alone, their effects from the host as well. Non-goals: figures of speed (`bench_farm`).
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chaos.client import LATE_SLACK_S
from benchmarks.chaos.clients import Clients
from benchmarks.chaos.database import OwnDatabase, own_database
from benchmarks.chaos.faults import WEIGHTS, Faults
from benchmarks.chaos.history import Use, conflicts, overdue, violations
from benchmarks.chaos.rest import leftovers, own_disk, prefix_of
from benchmarks.farm.http import ask_json
from benchmarks.farm.load import say
from benchmarks.farm.process import FarmProcess, own_farm, weigh
from benchmarks.machine import commit, machine

END_LIMIT_S = 60.0
DESKTOPS_WITHOUT_FARM_S = 15.0
LINGER_SLACK_S = 10.0
MORE_S = 120.0
DESCRIPTOR_SLACK = 24
PAGE = 1000


@dataclass(slots=True)
class Outcome:
    """What a run did and what was wrong with it."""

    breaches: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def main(argv: Sequence[str] | None = None) -> int:
    """Run; 0 when everything held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=None, help="of the faults; default: by the time, and told")
    parser.add_argument("--provider", choices=("runc", "sim"), default="runc")
    parser.add_argument("--desktops", type=int, default=3)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument(
        "--postgres", action="store_true", help="the database is in a PostgreSQL server of its own, which is struck too"
    )
    parser.add_argument("--json", type=Path, default=None, help="write the record to this file")
    args = parser.parse_args(argv)
    seed = int(time.time()) if args.seed is None else args.seed
    say(
        f"chaos: {args.minutes:g} minutes, seed {seed}, {args.desktops} desktops of {args.provider}, {args.clients} clients"
    )
    dialect = "postgresql" if args.postgres else "sqlite"
    started, measured = dt.datetime.now(dt.UTC), commit()
    with own_database() if args.postgres else nullcontext() as database:
        plan = Plan(args.minutes * 60, seed, args.provider, args.desktops, args.clients, database=database)
        outcome = run(plan)
    record = {
        "benchmark": "chaos",
        "date": started.isoformat(timespec="seconds"),
        "seconds": round((dt.datetime.now(dt.UTC) - started).total_seconds(), 1),
        "commit": measured,
        "machine": machine(),
        "figures": {
            "seed": seed,
            "provider": args.provider,
            "database": dialect,
            **outcome.figures,
            "breaches": outcome.breaches,
        },
    }
    text = json.dumps(record, indent=2)
    print(text)
    if args.json is not None:
        args.json.write_text(text + "\n", encoding="utf-8")
    for breach in outcome.breaches:
        say(f"breach: {breach}")
    return 1 if outcome.breaches else 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done, and for how long: `clients` processes of `together` clients each, which pause up to `pause_s` between steps.

    It goes on until the clients had `least_leases`, at most `MORE_S` longer.

    `program`: what is run instead of `dart-farm`. `database`: where the database is, instead of SQLite.
    """

    seconds: float
    seed: int
    provider: str = "runc"
    desktops: int = 3
    clients: int = 5
    together: int = 1
    pause_s: float = 0.4
    most_steps: int = 12
    ttl_s: float = 6.0
    database: OwnDatabase | None = None
    kinds: Sequence[str] = tuple(WEIGHTS)
    least_leases: int = 1
    program: Sequence[str] | None = None


def run(plan: Plan) -> Outcome:
    """One run on a farm of its own. Everything is ended and removed, also after Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="dart-chaos-", dir="/tmp") as made, own_disk(Path(made)) as disk:
        place = Path(made)
        settings = {
            "DART_PROVIDER": plan.provider,
            "DART_MAX_DESKTOPS": str(plan.desktops),
            "DART_WARM_DESKTOPS": "1",
            "DART_LOG_LEVEL": "warning",
            "DART_PROBE_INTERVAL_S": "2",
            "DART_DESKTOPS_WITHOUT_FARM_S": str(DESKTOPS_WITHOUT_FARM_S),
            "DART_SNAPSHOT_QUOTA_BYTES": str(1 << 30),
        }
        if disk is not None:
            settings |= {"DART_SNAPSHOT_DIR": str(disk / "snapshots"), "DART_STATE_DIR": str(disk / "state")}
        if plan.database is not None:
            settings["DART_DB_URL"] = plan.database.url
        with own_farm(settings, place=place, program=plan.program) as farm:
            outcome = _struck(farm, plan, disk)
            farm.stop()
            outcome.breaches += [f"left over: {line}" for line in _left(place, disk)]
        return outcome


def _left(place: Path, disk: Path | None) -> list[str]:
    """What is still there when whoever ends by itself has had the time for it: a root helper that an earlier server started lingers."""
    deadline_s = time.monotonic() + DESKTOPS_WITHOUT_FARM_S + LINGER_SLACK_S
    while (found := leftovers(place, disk)) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    return found


def _struck(farm: FarmProcess, plan: Plan, disk: Path | None) -> Outcome:
    outcome = Outcome()
    before = weigh(farm.pid)
    clients = Clients(
        plan.clients,
        place=farm.directory,
        uds=farm.uds,
        key=farm.key,
        ttl_s=plan.ttl_s,
        seed=plan.seed,
        together=plan.together,
        pause_s=plan.pause_s,
        most_steps=plan.most_steps,
    )
    prefix = prefix_of(farm.directory) if plan.provider == "runc" else None
    faults = Faults(farm, clients, plan.seed, plan.kinds, prefix=prefix, disk=disk, database=plan.database)
    try:
        end_s = time.monotonic() + plan.seconds
        while (now_s := time.monotonic()) < end_s or (now_s < end_s + MORE_S and clients.granted() < plan.least_leases):
            time.sleep(faults.pause_s())
            clients.wake()
            say(f"  {faults.strike()}")
            outcome.breaches += clients.died()
            if not farm.alive:
                outcome.breaches.append(f"the farm ended by itself: {farm.tail()[-600:]}")
                farm.start()
                faults.outages.append((now_s, time.monotonic()))
        clients.end()
    finally:
        clients.end(patience_s=1.0)
    outcome.breaches += asyncio.run(_came_to_rest(farm))
    events = asyncio.run(_history(farm))
    after = weigh(farm.pid)
    if after.descriptors > before.descriptors + DESCRIPTOR_SLACK:
        outcome.breaches.append(f"descriptors of the farm: {before.descriptors}, then {after.descriptors}")
    journal = list(clients.journal())
    _judge(outcome, events, journal)
    outcome.breaches += _late(journal, plan.ttl_s, faults.outages)
    outcome.figures |= {
        "faults": {name: faults.done[name] for name in faults.able},
        "descriptors": [before.descriptors, after.descriptors],
        "rss_mib": [round(before.rss_mib), round(after.rss_mib)],
    }
    return outcome


async def _came_to_rest(farm: FarmProcess) -> list[str]:
    """Wait until no lease is active and no desktop is held."""
    deadline_s = time.monotonic() + END_LIMIT_S
    while True:
        view = await ask_json(farm.uds, farm.key, "GET", "/v1/farm")
        held = view["leases_active"] or view["desktops"].get("leased", 0)
        if not held:
            return []
        if time.monotonic() > deadline_s:
            return [f"{END_LIMIT_S:.0f} s after the last client the farm still has {view}"]
        await asyncio.sleep(0.2)


async def _history(farm: FarmProcess) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    while page := await ask_json(
        farm.uds, farm.key, "GET", f"/v1/events?limit={PAGE}&after={events[-1]['id'] if events else 0}"
    ):
        events += page
    return events


def _judge(outcome: Outcome, events: list[dict[str, Any]], journal: list[dict[str, Any]]) -> None:
    uses = [
        Use(line["lease_id"], line["desktop_id"], line["sent_s"], line["received_s"])
        for line in journal
        if line["what"] == "use"
    ]
    granted = sum(event["kind"] == "lease_granted" for event in events)
    outcome.breaches += violations(events)
    outcome.breaches += conflicts(uses)
    outcome.breaches += [line["why"] for line in journal if line["what"] == "breach"]
    if not granted or not uses:
        outcome.breaches.append(f"nothing was proved: {granted} leases, {len(uses)} answered calls")
    outcome.figures |= {
        "leases": granted,
        "answered_calls": len(uses),
        "resets": sum(event["kind"] == "desktop_reset" for event in events),
        "events": len(events),
        "refused": dict(
            Counter(f"{line['status']} {line['code']}" for line in journal if line["what"] == "refused").most_common()
        ),
    }


def _late(journal: list[dict[str, Any]], ttl_s: float, outages: list[tuple[float, float]]) -> list[str]:
    told = [line for line in journal if line["what"] == "late"]
    judged = (
        overdue(line["lease_id"], line["left_s"], line["answered_s"], ttl_s, LATE_SLACK_S, outages) for line in told
    )
    return [found for found in judged if found is not None]
