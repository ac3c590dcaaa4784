"""Decoupled against coupled rollouts in DART's setting, in virtual time, with each factor switched alone; scaling and failures.

Role: the figures of the acceptance lines. Rule: everything comes from `dart_train.simulation` with the decisions of production; shares
of every arm are in the record; figures are means over seeds. Non-goals: real engines (`real_modes`, with `--real`).
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from statistics import fmean
from typing import Any

from benchmarks.rollouts import dart_setting as setting
from benchmarks.rollouts import real_modes
from dart_train.scheduling.settings import SchedulingMode
from dart_train.simulation.models import FaultModel
from dart_train.simulation.outcome import SimulationOutcome, simulate
from dart_train.simulation.planning import bottleneck
from dart_train.simulation.scenario import Scenario

SCALES = ((80, 2), (1_000, 25), (3_000, 75), (10_000, 256))
"""40 desktops per inference worker, where inference is the bottleneck; then the size that was asked for."""
BEYOND = ((80, 2), (120, 2), (160, 2), (320, 2))
"""More desktops than two inference workers can serve: the throughput must not fall."""
BEYOND_WARM_UP_HOURS = 1.5
"""All desktops begin at the same moment, with more episodes than the key-value caches hold: these have to end first."""
FAULTS = FaultModel(
    desktops_per_hour=0.05,
    repair_s=3600.0,
    worker_lost_at_s=3600.0 + 1200.0,
    worker_repair_s=1e9,
    trainer_lost_at_s=3600.0 + 2400.0,
    trainer_repair_s=600.0,
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Sizes of the benchmark."""
    command.add_argument("--seeds", type=int, default=4, help="seeds per arm")
    command.add_argument("--hours", type=float, default=6.0, help="simulated hours per arm, after a warm-up of one")
    command.add_argument("--no-scaling", action="store_true", help="leave out the scaling to 10,000 desktops")
    command.add_argument("--only", choices=("faults", "scaling", "beyond"), help="one part, and nothing else")
    real_modes.add_arguments(command)


def decoupled(**changes: Any) -> dict[str, Any]:
    """The decoupled system: all factors, and each worker updates on its own."""
    full = {key: value for factor in setting.FACTORS.values() for key, value in factor.items()}
    return full | {"mode": SchedulingMode.ROLLOUT_PER_WORKER} | changes


def measure(args: argparse.Namespace) -> dict[str, Any]:
    if args.real:
        return real_modes.measure(args)
    if args.only == "faults":
        return {"faults": faults(args)}
    if args.only == "scaling":
        return {"scaling": scaling()}
    if args.only == "beyond":
        return {"beyond": beyond()}

    def run(**changes: Any) -> dict[str, Any]:
        outcomes = [simulate(setting.scenario(hours=args.hours, seed=seed, **changes)) for seed in range(args.seeds)]
        return figures(outcomes)

    # The baseline has few, long cycles: it gets the seeds and hours of the test that freezes it, which cost little.
    coupled = figures([simulate(setting.scenario(hours=6.0, seed=seed)) for seed in range(4)])
    full = run(**decoupled())
    own = {
        key: value
        for name in ("desktops", "update_in_place", "streams")
        for key, value in setting.FACTORS[name].items()
    }
    coupled_own = run(**own)
    fast_coupled = run(**own | {"desktop": setting.OWN_FAST_DESKTOP})
    fast = run(**decoupled(desktop=setting.OWN_FAST_DESKTOP))
    inference_bound = run(**decoupled(desktop=setting.OWN_FAST_DESKTOP, tokens_per_s=2 * setting.TRAINER_TOKENS_PER_S))
    return {
        "actions_per_min_ratio": _ratio(full, coupled, "actions_per_min"),
        "env_util": full["env_util"],
        "env_util_ratio": _ratio(full, coupled, "env_util"),
        "worker_util": inference_bound["worker_util"],
        "worker_util_ratio": _ratio(full, coupled, "worker_util"),
        "stale_withheld": full["stale_withheld"],
        "against_own_desktops": {
            "actions_per_min_ratio": _ratio(full, coupled_own, "actions_per_min"),
            "env_util_ratio": _ratio(full, coupled_own, "env_util"),
            "worker_util_ratio": _ratio(full, coupled_own, "worker_util"),
        },
        "against_own_fast_desktops": {
            "actions_per_min_ratio": _ratio(fast, fast_coupled, "actions_per_min"),
            "env_util_ratio": _ratio(fast, fast_coupled, "env_util"),
            "worker_util_ratio": _ratio(fast, fast_coupled, "worker_util"),
        },
        "published": setting.PUBLISHED,
        "calibrated": {
            "trainer_tokens_per_s": setting.TRAINER_TOKENS_PER_S,
            "length_sigma": setting.LENGTH_SIGMA,
            "to": "12.2 % environment utilisation and 29.6 % worker utilisation of `coupled`",
        },
        "arms": {
            "coupled": coupled,
            "coupled_own_desktops": coupled_own,
            "coupled_own_fast_desktops": fast_coupled,
            "decoupled": full,
            "decoupled_own_fast_desktops": fast,
            "decoupled_inference_bound": inference_bound,
        },
        "one_factor_on": {name: run(**change) for name, change in setting.FACTORS.items()}
        | {
            "scheduling_by_task": run(mode=SchedulingMode.TASK),
            "scheduling_and_per_worker": run(mode=SchedulingMode.ROLLOUT_PER_WORKER),
        },
        "one_factor_off": {
            "per_worker": run(**decoupled(mode=SchedulingMode.ROLLOUT_GLOBAL)),
            "scheduling_by_task": run(**decoupled(mode=SchedulingMode.TASK)),
            "scheduling": coupled_own,
            "desktops": run(**decoupled(desktop=setting.DART_DESKTOP)),
            "update_in_place": run(**decoupled(publish=setting.DART_PUBLISH)),
            "kept_cache": run(**decoupled(publish=setting.OWN_PUBLISH_RECOMPUTED)),
            "streams": run(**decoupled(streams=False)),
        },
        "faults": faults(args),
        "scaling": None if args.no_scaling else scaling(),
        "beyond": None if args.no_scaling else beyond(),
    }


def figures(outcomes: list[SimulationOutcome]) -> dict[str, Any]:
    """Means over seeds: the headline figures, and all shares."""

    def mean(values: list[float]) -> float:
        return round(fmean(values), 4)

    first = outcomes[0].as_dict()
    return {
        "actions_per_min": mean([each.actions_per_min for each in outcomes]),
        "trained_rows_per_min": mean([each.trained_rows_per_min for each in outcomes]),
        "env_util": mean([each.slots.utilisation for each in outcomes]),
        "worker_util": mean([each.workers.utilisation for each in outcomes]),
        "worker_load": mean([each.worker_load for each in outcomes]),
        "trainer_util": mean([each.trainer.utilisation for each in outcomes]),
        "stale_withheld": mean([each.withheld_fraction for each in outcomes]),
        "staleness_mean": mean([each.staleness.mean for each in outcomes]),
        "lag_p50_s": mean([each.lag_s.p50 for each in outcomes]),
        "shares": {
            kind: {
                name: mean([each.as_dict()[kind][name] for each in outcomes])
                for name in first[kind]
                if name != "utilisation"
            }
            for kind in ("slots", "workers", "trainer")
        },
        "prefix_hit_rate": mean([each.prefix_hit_rate for each in outcomes]),
        "mean_steps": mean([each.mean_steps_attempted for each in outcomes]),
        "env_util_by_seed": [round(each.slots.utilisation, 4) for each in outcomes],
        "bottleneck": bottleneck(outcomes[0]).name,
    }


def faults(args: argparse.Namespace) -> dict[str, Any]:
    """The decoupled system, with 5 % of the desktops lost per hour, one of four workers lost, and ten minutes without the trainer.

    The lost capacity is the share of time for which the failed resource is missing; several are combined as independent.
    """
    changes: dict[str, dict[str, Any]] = {
        "desktops": {"worker_lost_at_s": None, "trainer_lost_at_s": None},
        "worker": {"desktops_per_hour": 0.0, "trainer_lost_at_s": None},
        "trainer": {"desktops_per_hour": 0.0, "worker_lost_at_s": None},
        "all": {},
    }
    hours, rows = 2.0, {name: list[tuple[float, float, int, int, int]]() for name in changes}
    for seed in range(args.seeds):
        base = setting.scenario(hours=hours, seed=seed, **decoupled())
        whole = simulate(base)
        for name, change in changes.items():
            model = FAULTS.model_copy(update=change)
            part = simulate(replace(base, models=base.models.model_copy(update={"faults": model})))
            loss = 1 - part.trained_rows_per_min / whole.trained_rows_per_min
            capacity = _lost_capacity(model, base.workers, hours * 3600)
            rows[name].append((loss, capacity, part.lost, part.trained_twice + part.finished_twice, part.stuck))
    return {
        name: {
            "throughput_loss": round(fmean(row[0] for row in seeds), 4),
            "throughput_loss_by_seed": [round(row[0], 4) for row in seeds],
            "lost_capacity": round(fmean(row[1] for row in seeds), 4),
            "excess": round(fmean(row[0] - row[1] for row in seeds), 4),
            "excess_max": round(max(row[0] - row[1] for row in seeds), 4),
            "lost": sum(row[2] for row in seeds),
            "twice": sum(row[3] for row in seeds),
            "stuck": sum(row[4] for row in seeds),
        }
        for name, seeds in rows.items()
    }


def _lost_capacity(model: FaultModel, workers: int, window_s: float) -> float:
    """Share of the capacity that is missing in the window; the three kinds are independent."""
    begin_s = 3600.0
    desktops = model.desktops_per_hour * model.repair_s / 3600
    worker = 0.0
    if model.worker_lost_at_s is not None:
        worker = (begin_s + window_s - model.worker_lost_at_s) / window_s / workers
    trainer = 0.0 if model.trainer_lost_at_s is None else model.trainer_repair_s / window_s
    return 1 - (1 - desktops) * (1 - worker) * (1 - trainer)


def scaling() -> dict[str, Any]:
    """Desktops, inference workers and trainer that grow together: one simulated hour each."""
    rows = _scaled_rows(SCALES)
    per_worker = [row["per_worker"] for row in rows]
    return {
        "rows": rows,
        "largest_deviation_from_linear": round(max(abs(each / per_worker[0] - 1) for each in per_worker), 4),
    }


def beyond() -> dict[str, Any]:
    """More and more desktops on the same inference workers."""
    rows = _scaled_rows(BEYOND, BEYOND_WARM_UP_HOURS)
    rates = [row["actions_per_min"] for row in rows]
    return {"rows": rows, "least_over_first": round(min(rates) / rates[0], 4)}


def _scaled_rows(sizes: tuple[tuple[int, int], ...], warm_up_hours: float = 0.5) -> list[dict[str, Any]]:
    rows = []
    for desktops, workers in sizes:
        case = replace(scaled(desktops, workers), warm_up_hours=warm_up_hours)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        outcome = simulate(case)
        rows.append(
            {
                "desktops": desktops,
                "workers": workers,
                "actions_per_min": round(outcome.actions_per_min, 1),
                "per_worker": round(outcome.actions_per_min / workers, 3),
                "env_util": round(outcome.slots.utilisation, 4),
                "worker_util": round(outcome.workers.utilisation, 4),
                "worker_load": round(outcome.worker_load, 4),
                "trainer_util": round(outcome.trainer.utilisation, 4),
                "stale_withheld": round(outcome.withheld_fraction, 4),
                "prefix_hit_rate": round(outcome.prefix_hit_rate, 4),
                "lost": outcome.lost,
                "stuck": outcome.stuck,
                "twice": outcome.trained_twice + outcome.finished_twice,
                "bottleneck": bottleneck(outcome).name,
                "events": outcome.events,
                "cpu_s": round(time.process_time() - began_cpu_s, 1),
                "wall_s": round(time.perf_counter() - began_s, 1),
            }
        )
    return rows


def scaled(desktops: int, workers: int) -> Scenario:
    """The decoupled system with fast desktops at another size; batch, tasks and trainer grow in proportion to the desktops."""
    base = setting.scenario(**decoupled(desktop=setting.OWN_FAST_DESKTOP), hours=1.0)
    factor = desktops / setting.DESKTOPS
    groups = round(setting.GROUPS_PER_BATCH * factor)
    batch = base.scheduler.batch.model_copy(
        update={"min_groups": groups, "max_groups": groups, "max_ready_groups": 4 * groups}
    )
    trainer = base.models.trainer.model_copy(
        update={"tokens_per_s": setting.TRAINER_TOKENS_PER_S * factor, "update_s": base.models.trainer.update_s}
    )
    return replace(
        base,
        desktops=desktops,
        workers=workers,
        rollout_workers=max(1, desktops // 250),
        tasks=round(203 * factor),
        max_updating=max(1, workers // 16),
        warm_up_hours=0.5,
        scheduler=base.scheduler.model_copy(update={"batch": batch}),
        models=base.models.model_copy(update={"trainer": trainer}),
    )


def _ratio(above: dict[str, Any], below: dict[str, Any], key: str) -> float:
    return round(float(above[key]) / float(below[key]), 3)
