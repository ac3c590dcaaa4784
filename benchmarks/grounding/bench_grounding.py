"""An action head against coordinates as text, data efficiency, verifier, second look, and adaptation to an application.

Role: trains a tiny Qwen3-VL (that of the demo, random weights) with the head and with coordinates as text for every seed, and compares what
both answer about held-out screens. Rule: all methods of a seed have the same screens, updates, order, optimiser and start weights; ratios
and differences are over the same questions, with an interval that draws seeds and screens. `--screens` says where they come from: drawn,
recorded first screens of the suite `basics`, or recorded states of the applications of the image `desktop`. The held-out application of the
adaptation is drawn, and its samples come from `dart_agent.explore`. `--work` keeps everything by seed and arm: the same command goes on
where it was stopped; `--records` takes over seeds of earlier records. Declared budget for three seeds on two quiet cores: 150 minutes, 240
with `--screens desktop`, without recording. Non-goals: how published models do on real screens.

    head_over_text                   hit rate of the head / that of text, on all held-out screens
    data_share_for_text_accuracy     smallest share of screens and updates with which the head is as good as text with all of them
    frozen                           a head on the frozen backbone of the text model, alone and with the verifier, against text
    verifier_gain, zoom_gain         against the head alone, each by itself
    adaptation                       the held-out application before, after exploration data, after as much generic data
"""

from __future__ import annotations

import argparse
import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.earlier_records import add_records_argument
from benchmarks.grounding.earlier import PACKED, pack_answers, take_over
from benchmarks.grounding.setting import REGION_SCORES, ScreenSource, Setting, tiny_preset
from benchmarks.intervals import Hits, hit_rate, paired
from benchmarks.work_folder import kept_or_temporary
from dart_envs.errors import UnsupportedCapabilityError

if TYPE_CHECKING:
    from benchmarks.grounding.arms import Answers, SeedRun
    from benchmarks.grounding.basics_source import BasicsSource
    from benchmarks.grounding.desktop_source import DesktopSource
    from benchmarks.grounding.drawn_source import DrawnSource

PARTS_BY_SCREENS = {"drawn": ("grounding", "adaptation"), "basics": ("grounding",), "desktop": ("grounding",)}
"""The parts of the benchmark by the source of screens."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the benchmark.

    Args:
        parser: Its parser.
    """
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="weights, screens and order for each")
    parser.add_argument(
        "--work", type=Path, help="folder that keeps each seed and arm, to go on from; default: temporary"
    )
    add_records_argument(parser, "seeds")
    parser.add_argument(
        "--screens",
        choices=tuple(PARTS_BY_SCREENS),
        default="drawn",
        help="basics and desktop are recorded on desktops of a farm first",
    )
    parser.add_argument(
        "--only", choices=PARTS_BY_SCREENS["drawn"], help="one part; the adaptation trains the head first"
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of torch")
    parser.add_argument("--smoke", action="store_true", help="a few updates, which learn nothing: whether it works")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Train and ask.

    Args:
        args: Seeds, folder, part, threads.

    Returns:
        Ratios, differences and hit rates with their intervals.

    Raises:
        UnsupportedCapabilityError: A seed is named twice, these screens have no such part, or the work folder is another process's or of
            other settings.
    """
    from benchmarks.grounding.arms import SeedRun

    parts = PARTS_BY_SCREENS[args.screens]
    if args.only is not None and args.only not in parts:
        raise UnsupportedCapabilityError(
            f"the part --only {args.only} needs drawn screens: leave --screens {args.screens} out"
        )
    make_source = _source(args.screens)
    setting = make_source.smoke if args.smoke else make_source.full
    for seed in args.seeds:
        if args.seeds.count(seed) > 1:
            raise UnsupportedCapabilityError(f"--seeds names {seed} twice, which proves nothing more: name each once")
    noted = dataclasses.asdict(setting) | {"screens_of": args.screens, "threads": args.threads}
    with kept_or_temporary(args.work, noted, "dart-grounding-") as folder:
        take_over(args.records, args.screens, setting, parts, args.seeds, folder)
        source: ScreenSource = make_source(folder / "recorded", setting)
        runs = [SeedRun(folder / f"seed-{seed}", source, setting, seed, args.threads) for seed in args.seeds]
        for run in runs:
            run.make_screens()
        if source.shares_test_screens:
            _check_tests(runs)
        figures: dict[str, Any] = {
            "screens": source.name,
            "model": tiny_preset(()).name,
            "smoke": bool(args.smoke),
            "seeds": list(args.seeds),
            "threads": args.threads,
            "setting": dataclasses.asdict(setting),
        }
        if "grounding" in parts and args.only != "adaptation":
            figures = _grounding(runs, source) | figures
        if "adaptation" in parts and args.only != "grounding":
            figures["adaptation"] = _adaptation(runs)
        figures["seconds_by_arm"] = {str(run.seed): run.seconds() for run in runs}
        figures[PACKED] = {str(run.seed): pack_answers(run.folder) for run in runs}
    return figures


def _check_tests(runs: list[SeedRun]) -> None:
    """Refuse seeds that were asked about other test screens, before anything is trained."""
    digests = {run.seed: run.test_digest() for run in runs}
    if len({*digests.values()}) > 1 or (len(digests) > 1 and None in digests.values()):
        told = ", ".join(f"seed {seed}: {digest or 'not known'}" for seed, digest in digests.items())
        raise UnsupportedCapabilityError(
            f"the seeds have different test screens ({told}): measure all of them with the folder `recorded` of one --work"
        )


def _source(screens: str) -> type[DrawnSource] | type[BasicsSource] | type[DesktopSource]:
    """The source of a name; only its own modules are imported."""
    if screens == "basics":
        from benchmarks.grounding.basics_source import BasicsSource

        return BasicsSource
    if screens == "desktop":
        from benchmarks.grounding.desktop_source import DesktopSource

        return DesktopSource
    from benchmarks.grounding.drawn_source import DrawnSource

    return DrawnSource


def _grounding(runs: list[SeedRun], source: ScreenSource) -> dict[str, Any]:
    compare = partial(paired, shared=source.shares_test_screens)
    found: dict[str, list[Hits]] = {}
    shares: list[float | None] = []
    tried: dict[str, dict[str, float]] = {}
    for run in runs:
        text, head, frozen = run.text(), run.head(), run.frozen()
        for name, hits in {**text, **head, **{f"frozen_{name}": hits for name, hits in frozen.items()}}.items():
            found.setdefault(name, []).append(hits)
        share, rates = _enough(run, run.setting, text, head)
        shares.append(share)
        tried[str(run.seed)] = rates
    against_text = compare(found["head"], found["text"])
    return {
        "head_over_text": against_text["ratio"],
        "head_over_text_interval": against_text["ratio_interval"],
        "text_accuracy": against_text["theirs"],
        "head_accuracy": against_text["ours"],
        "data_share_for_text_accuracy": None if None in shares else max(share for share in shares if share is not None),
        "data_share_by_seed": shares,
        "accuracy_by_share": tried,
        "by_held_out": {
            kind: compare(_of_kind(found["head"], kind), _of_kind(found["text"], kind)) for kind in source.held_out
        },
        "by_seed": [compare([head], [text]) for head, text in zip(found["head"], found["text"], strict=True)],
        "region_score": {"mean": against_text["ours"]}
        | {score: round(hit_rate(found[f"head_{score}"]), 4) for score in REGION_SCORES},
        "verifier_gain": compare(found["verifier"], found["head"]),
        "zoom_gain": compare(found["zoom"], found["head"]),
        "frozen": {
            "head_over_text": compare(found["frozen_head"], found["text"]),
            "head_with_verifier_over_text": compare(found["frozen_verifier"], found["text"]),
            "verifier_gain": compare(found["frozen_verifier"], found["frozen_head"]),
        },
    }


def _enough(run: SeedRun, setting: Setting, text: Answers, head: Answers) -> tuple[float | None, dict[str, float]]:
    """The smallest share with which the head is as good as text, and what was tried."""
    wanted, rates = hit_rate([text["text"]]), {}
    for share in (*setting.shares, 1.0):
        rate = hit_rate([(head if share == 1.0 else run.share(share))["head"]])
        rates[str(share)] = round(rate, 4)
        if rate >= wanted:
            return share, rates
    return None, rates


def _of_kind(hits_S: list[Hits], kind: str) -> list[Hits]:
    return [{name: hit for name, hit in hits.items() if name.startswith(f"{kind}/")} for hits in hits_S]


def _adaptation(runs: list[SeedRun]) -> dict[str, Any]:
    from benchmarks.grounding.adaptation import adapt

    answers, explorations = zip(*(adapt(run) for run in runs), strict=True)

    def compare(ours: str, theirs: str) -> dict[str, Any]:
        return paired([found[ours] for found in answers], [found[theirs] for found in answers])

    return {
        "before": round(hit_rate([found["before"] for found in answers]), 4),
        "after_exploration": compare("explored", "before"),
        "after_generic": compare("generic", "before"),
        "exploration_over_generic": compare("explored", "generic"),
        "elsewhere_after_exploration": compare("elsewhere_explored", "elsewhere_before"),
        "explorations": list(explorations),
        "application": "drawn",
    }
