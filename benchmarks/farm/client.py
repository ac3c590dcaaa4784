"""The generator of a load: many concurrent clients that claim, hold and release, in a process of its own.

`python -m benchmarks.farm.client` reads a `Plan` as JSON from its standard input and writes what it saw as JSON. Rule: it measures each
claim from the moment it is sent until its whole answer is read, counts every answer that is not what the protocol says, and tells its own
processor time. Non-goals: starting the farm, judging the figures.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.farm.http import Lane, LaneClosed, request

CLAIM_WAIT_S = 60.0
RUN_LIMIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Tenant:
    """Some clients with one key."""

    name: str
    key: str
    clients: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done. It ends after `leases` leases of all clients together, or after `seconds`, whatever comes first.

    `ramp_s`: over how long the clients begin, so that those who hold a lease for a time do not all come in the same moment.
    """

    uds: str
    tenants: list[Tenant]
    leases: int
    seconds: float = RUN_LIMIT_S
    hold_s: float = 0.0
    ramp_s: float = 0.0
    resolution: tuple[int, int] = (640, 400)
    run: str = "bench"


@dataclass(slots=True)
class Seen:
    """What the clients saw."""

    claim_s: list[float] = field(default_factory=list)
    release_s: list[float] = field(default_factory=list)
    by_tenant: dict[str, list[float]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    begun: int = 0


async def generate(plan: Plan) -> dict[str, Any]:
    """Run the plan; figures in milliseconds and seconds."""
    seen = Seen(by_tenant={tenant.name: [] for tenant in plan.tenants})
    clients = [(tenant, number) for tenant in plan.tenants for number in range(tenant.clients)]
    lanes = [await Lane.open(Path(plan.uds)) for _ in clients]
    began_cpu_s = _cpu_s()
    began_s = time.perf_counter()
    await asyncio.gather(
        *(
            _client(plan, tenant, f"{tenant.name}-{number}", lane, seen, began_s + plan.ramp_s * place / len(clients))
            for place, ((tenant, number), lane) in enumerate(zip(clients, lanes, strict=True))
        )
    )
    seconds = time.perf_counter() - began_s
    cpu_s = _cpu_s() - began_cpu_s
    for lane in lanes:
        lane.close()
    done = len(seen.release_s)
    return {
        "clients": len(clients),
        "leases": done,
        "seconds": round(seconds, 2),
        "leases_per_s": round(done / seconds, 1),
        "claim": spread_ms(seen.claim_s),
        "release": spread_ms(seen.release_s),
        "tenants": {name: {"leases": len(took), **spread_ms(took)} for name, took in seen.by_tenant.items()},
        "errors": dict(seen.errors),
        "client_cpu_share": round(cpu_s / seconds, 3),
    }


async def _client(plan: Plan, tenant: Tenant, name: str, lane: Lane, seen: Seen, begin_s: float) -> None:
    await asyncio.sleep(max(0.0, begin_s - time.perf_counter()))
    until_s = begin_s + plan.seconds
    while seen.begun < plan.leases and time.perf_counter() < until_s:
        seen.begun += 1
        body = {
            "client_request_id": f"{plan.run}-{name}-{seen.begun}",
            "shape": {"resolution": plan.resolution},
            "wait_s": CLAIM_WAIT_S,
            "ttl_s": max(30.0, plan.hold_s * 4),
        }
        try:
            asked_s = time.perf_counter()
            status, content = await lane.ask(request("POST", "/v1/leases", tenant.key, body))
            took_s = time.perf_counter() - asked_s
            if status != 200:
                seen.errors[f"claim {status} {content[:120].decode('utf-8', 'replace')}"] += 1
                continue
            seen.claim_s.append(took_s)
            seen.by_tenant[tenant.name].append(took_s)
            lease_id = json.loads(content)["lease_id"]
            if plan.hold_s:
                await asyncio.sleep(plan.hold_s)
            asked_s = time.perf_counter()
            status, content = await lane.ask(request("DELETE", f"/v1/leases/{lease_id}", tenant.key))
            seen.release_s.append(time.perf_counter() - asked_s)
            if status != 204:
                seen.errors[f"release {status} {content[:120].decode('utf-8', 'replace')}"] += 1
        except LaneClosed as error:
            seen.errors[f"connection: {error}"] += 1
            lane = await Lane.open(Path(plan.uds))


def spread_ms(values_s: Sequence[float]) -> dict[str, float]:
    """p50, p99 and maximum, in milliseconds; empty when nothing was measured."""
    if len(values_s) < 2:
        return {}
    cuts = statistics.quantiles(values_s, n=100, method="inclusive")
    return {
        "p50_ms": round(cuts[49] * 1000, 2),
        "p99_ms": round(cuts[98] * 1000, 2),
        "max_ms": round(max(values_s) * 1000, 2),
    }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run_apart(plan: Plan) -> dict[str, Any]:
    """Run the plan in a process of its own. Raises RuntimeError when that fails."""
    command = [sys.executable, "-m", "benchmarks.farm.client"]
    done = subprocess.run(command, input=json.dumps(asdict(plan)), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the load generator ended with {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def main() -> None:
    """The process's entry: a plan in, figures out."""
    given = json.load(sys.stdin)
    plan = Plan(**{**given, "tenants": [Tenant(**tenant) for tenant in given["tenants"]]})
    try:
        import uvloop
    except ImportError:
        figures = asyncio.run(generate(plan))
    else:
        figures = uvloop.run(generate(plan))
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
