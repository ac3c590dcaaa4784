"""The figures of an ablation: means over seeds with intervals, differences between arms, and desktop steps to a level.

Role: pure functions from the records of the runs to plain data and a table. Rule: seeds are the unit; an interval is Student's t over
seeds, and one seed gives none. Differences are paired by seed, because the arms of a seed begin with the same policy. Non-goals: running
(`session`), reading a run (`curves`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.ablation.arms import ARMS, CURATION_ARMS, PARTS
from benchmarks.ablation.curves import CurvePoint, RunCurve, steps_to_reach
from benchmarks.ablation.dialogs import TRAINED as FAMILIES
from dart_train.evaluation.results import HELD_OUT, TRAINED
from dart_train.evaluation.statistics import mean_over_seeds

Records = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Records of finished runs by arm and seed."""
MEASURES = {"validation": ("validation", TRAINED), "held_out": ("test", HELD_OUT)}
"""Where each measure stands in a record."""


def success_of(record: Mapping[str, Any], measure: str) -> float | None:
    """Look up a success rate.

    Args:
        record: Record of a run.
        measure: `validation` or `held_out`.

    Returns:
        The share of solved episodes, None where it was not measured.
    """
    split, row = MEASURES[measure]
    found = record.get(split, {}).get(row)
    return None if found is None else float(found["success"])


def curve_of(record: Mapping[str, Any]) -> RunCurve:
    """Read the curve of a record back.

    Args:
        record: Record of a run.

    Returns:
        The curve.
    """
    plain = dict(record["curve"])
    return RunCurve(**{**plain, "points": [CurvePoint(**point) for point in plain["points"]]})


def describe(values: Sequence[float]) -> dict[str, Any]:
    """Compute a mean over seeds.

    Args:
        values: One value per seed.

    Returns:
        `mean`, `lower` and `upper` (None for one seed), and `seeds`.
    """
    estimate = mean_over_seeds(values)
    rounded = {
        name: None if value is None else round(value, 4)
        for name, value in (("mean", estimate.value), ("lower", estimate.lower), ("upper", estimate.upper))
    }
    return {**rounded, "seeds": len(values)}


def paired(records: Records, arm: str, other: str, measure: str) -> dict[str, Any] | None:
    """Compare two arms over the seeds that both have.

    Args:
        records: The records.
        arm: An arm.
        other: The arm that is subtracted.
        measure: See `MEASURES`.

    Returns:
        The difference as `describe` gives it, None where no seed has both.
    """
    seeds = sorted({*records.get(arm, {})} & {*records.get(other, {})})
    found = [(success_of(records[arm][seed], measure), success_of(records[other][seed], measure)) for seed in seeds]
    differences = [one - two for one, two in found if one is not None and two is not None]
    return describe(differences) if differences else None


def steps_share(records: Records, arm: str, other: str) -> dict[str, Any] | None:
    """Compare after how many desktop steps an arm reaches what another one reaches in the end.

    The other arm reaches its own final success before its end, too, because a curve that is judged by its first crossing has many chances.
    So its own share is the control, and the ratio of both crossings is what the arm saves.

    Args:
        records: The records.
        arm: The arm.
        other: The arm whose final success on validation is the level, averaged over families as the curves are.

    Returns:
        `by_seed`: shares of the other arm's steps (None: never reached), `own_by_seed`: those after which the other arm itself is there,
        `crossings_by_seed`: the ratio of the two; `overall` and `crossings` over the seeds where all of them reached it; None where no seed
        has both.
    """
    shares: dict[str, float | None] = {}
    own: dict[str, float | None] = {}
    ratios: dict[str, float | None] = {}
    for seed in sorted({*records.get(arm, {})} & {*records.get(other, {})}):
        mine, theirs = records[arm][seed], records[other][seed]
        level, final = family_mean(theirs), family_mean(mine)
        total = theirs["curve"]["desktop_steps"]
        if level is None or final is None or not total:
            continue
        steps = steps_to_reach(curve_of(mine), level, final)
        control = steps_to_reach(curve_of(theirs), level, level)
        assert control is not None, "an arm reaches its own final success"
        shares[str(seed)] = None if steps is None else round(steps / total, 4)
        own[str(seed)] = round(control / total, 4)
        ratios[str(seed)] = None if steps is None else round(steps / control, 4)
    if not shares:
        return None
    found: dict[str, Any] = {"by_seed": shares, "own_by_seed": own, "crossings_by_seed": ratios}
    found["reached"] = sum(share is not None for share in shares.values())
    return found | {"overall": _over_all(shares), "crossings": _over_all(ratios)}


def family_mean(record: Mapping[str, Any]) -> float | None:
    """Look up the success on validation with the same weight for each trained family, as evaluations during training have it.

    Args:
        record: Record of a run.

    Returns:
        The mean of the families' shares of solved episodes, None where none was measured.
    """
    rows = record.get("validation", {})
    found = [float(rows[family]["success"]) for family in FAMILIES if family in rows]
    return fmean(found) if found else None


def _over_all(by_seed: Mapping[str, float | None]) -> dict[str, Any] | None:
    reached = [value for value in by_seed.values() if value is not None]
    return describe(reached) if len(reached) == len(by_seed) else None


def summarize(records: Records) -> dict[str, Any]:
    """Compute all figures.

    Args:
        records: The records.

    Returns:
        Arms with means and curves, what each part is worth, the value of the correction, and the hard families.
    """
    figures: dict[str, Any] = {"arms": {name: _arm(records[name]) for name in ARMS if records.get(name)}}
    share = steps_share(records, "full", "plain")
    if share is not None:
        figures["steps_share_to_plain"] = None if share["overall"] is None else share["overall"]["mean"]
        figures["steps_to_plain"] = share
        figures["full_minus_plain"] = {measure: paired(records, "full", "plain", measure) for measure in MEASURES}
    figures["worth_of_parts"] = {
        part: {measure: paired(records, "full", f"no_{part}", measure) for measure in MEASURES}
        for part in PARTS
        if records.get(f"no_{part}") and records.get("full")
    }
    figures["worth_of_correction_when_stale"] = {
        measure: paired(records, "stale", "stale_uncorrected", measure) for measure in MEASURES
    }
    figures["hard_tasks"] = _hard(records)
    return figures


def _arm(by_seed: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    curves = [curve_of(record) for record in by_seed.values()]
    found: dict[str, Any] = {}
    for measure in MEASURES:
        values = [value for record in by_seed.values() if (value := success_of(record, measure)) is not None]
        found[measure] = describe(values) if values else None
    return {
        **found,
        "desktop_steps": round(fmean(curve.desktop_steps for curve in curves)),
        "updates": round(fmean(curve.updates for curve in curves), 1),
        "masked": sum(curve.masked for curve in curves),
        "staleness_mean": [curve.staleness_mean for curve in curves],
        "evaluation_share": [curve.evaluation_share for curve in curves],
        "workers_down_share": [curve.workers_down_share for curve in curves],
        "seeds": {str(seed): dict(record) for seed, record in sorted(by_seed.items())},
    }


def _hard(records: Records) -> dict[str, Any]:
    """Success on the hard families together, by arm and over seeds, and what pool and imitation add."""
    by_arm: dict[str, dict[int, float]] = {}
    for name, arm in ARMS.items():
        for seed, record in records.get(name, {}).items():
            if arm.hard and record.get("hard"):
                by_arm.setdefault(name, {})[seed] = fmean(row["success"] for row in record["hard"].values())
    found: dict[str, Any] = {name: describe(list(values.values())) for name, values in by_arm.items()}
    base = by_arm.get("hard_no_pool", {})
    for name in ("hard_pool", "hard_pool_sft"):
        both = sorted({*by_arm.get(name, {})} & {*base})
        if both:
            found[f"{name}_minus_no_pool"] = describe([by_arm[name][seed] - base[seed] for seed in both])
    return found


def format_table(figures: Mapping[str, Any]) -> str:
    """Write the table that people read.

    Args:
        figures: Of `summarize`.

    Returns:
        Lines of text.
    """
    lines = [f"{'arm':24} {'validation %':>24} {'held-out %':>24} {'desktop steps':>14} {'updates':>8}"]
    for name, arm in figures["arms"].items():
        cells = [_percent(arm[measure]) for measure in MEASURES]
        lines.append(f"{name:24} {cells[0]:>24} {cells[1]:>24} {arm['desktop_steps']:>14} {arm['updates']:>8}")
    for part, worth in figures["worth_of_parts"].items():
        lines.append(
            f"worth of {part}: {_percent(worth['validation'])} points on validation, {_percent(worth['held_out'])} held out"
        )
    if "steps_to_plain" in figures:
        lines.append(
            f"desktop steps to plain GRPO's final success, share of all of its steps: {figures['steps_to_plain']['by_seed']}; "
            f"of plain GRPO itself: {figures['steps_to_plain']['own_by_seed']}"
        )
    missing = [name for name in CURATION_ARMS if name not in figures["arms"]]
    if missing:
        lines.append(f"not run yet: {', '.join(missing)}")
    return "\n".join(lines)


def _percent(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "-"
    if value["lower"] is None:
        return f"{100 * value['mean']:.1f}"
    return f"{100 * value['mean']:.1f} ({100 * value['lower']:.1f} to {100 * value['upper']:.1f})"
