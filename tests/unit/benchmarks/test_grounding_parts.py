"""The benchmark of grounding: its screens, its explored application, its intervals, and the questions of the baseline."""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks.grounding import bench_grounding
from benchmarks.grounding.basics_source import BasicsSource
from benchmarks.grounding.drawn_application import DrawnApplication, explore_application, write_pages
from benchmarks.grounding.drawn_screens import COLOURS, LAYOUTS, write_screens
from benchmarks.grounding.drawn_source import FULL, HELD_OUT, NOVEL_APPLICATION, SYMBOLS, TRAINED, DrawnSource
from benchmarks.grounding.earlier import pack_answers, take_over
from benchmarks.grounding.setting import SMOKE, tiny_preset
from benchmarks.intervals import hit_rate, paired
from benchmarks.work_folder import write_json
from dart_agent.grounding.samples import read_image, read_samples
from dart_envs.errors import UnsupportedCapabilityError

BOTH = ("grounding", "adaptation")


def test_screens_are_those_of_their_seed_and_ask_about_one_symbol(tmp_path: Path) -> None:
    one = write_screens(tmp_path / "one", "train", 8, TRAINED, "1", symbols=SYMBOLS)
    again = write_screens(tmp_path / "again", "train", 8, TRAINED, "1", symbols=SYMBOLS)
    other = write_screens(tmp_path / "other", "train", 8, TRAINED, "2", symbols=SYMBOLS)
    assert one.read_bytes() == again.read_bytes() != other.read_bytes()
    samples = list(read_samples(one))
    asked = [(sample.screen_id, sample.instruction) for sample in samples]
    assert len(asked) == len({*asked})
    for sample in samples:
        picture = read_image(one.parent / sample.image, sample.image_wh)
        left, top, right, bottom = (int(edge) for edge in sample.targets[0].bounds())
        assert 0 <= left < right <= sample.image_wh[0]
        assert 0 <= top < bottom <= sample.image_wh[1]
        colour = COLOURS[sample.instruction.split('"')[1].split()[0]]
        assert (picture[top:bottom, left:right] == colour).all(axis=2).mean() > 0.15


@pytest.mark.parametrize("layout", LAYOUTS)
def test_symbols_of_every_layout_are_apart_and_on_the_screen(layout: str) -> None:
    for number in range(200):
        rng = random.Random(number)
        wh = rng.choice([*TRAINED.sizes_wh, *HELD_OUT["resolutions"].sizes_wh, *NOVEL_APPLICATION.sizes_wh])
        boxes = LAYOUTS[layout](rng, wh, rng.randint(*SYMBOLS), rng.randint(14, 24))
        assert boxes
        for box in boxes:
            assert 0 <= box[0] < box[2] <= wh[0]
            assert 0 <= box[1] < box[3] <= wh[1]
            assert all(
                box[2] <= other[0] or other[2] <= box[0] or box[3] <= other[1] or other[3] <= box[1]
                for other in boxes
                if other != box
            )


async def test_an_exploration_gives_samples_and_leaves_pages_for_the_test(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    application = DrawnApplication("1", NOVEL_APPLICATION, 16, SYMBOLS, reachable=8)
    counts, seen = await explore_application(application, tmp_path / "explored", 80, 1)
    assert len(seen) == counts["screens"] == 8
    explored = list(read_samples(tmp_path / "explored" / "samples" / "all.jsonl"))
    assert len(explored) == counts["samples"] > 12
    for sample in explored:
        read_image(tmp_path / "explored" / "samples" / sample.image, sample.image_wh)
    unseen = {sample.screen_id for sample in read_samples(write_pages(application, tmp_path, "unseen", seen))}
    assert len(unseen) == 8


def hits(*rights: int) -> dict[str, bool]:
    """Three screens of two questions each."""
    return {f"test/{index // 2}/{index % 2}": bool(right) for index, right in enumerate(rights)}


def test_intervals_are_paired() -> None:
    ours, theirs = hits(1, 1, 1, 1, 0, 1), hits(1, 0, 1, 0, 0, 1)
    compared = paired([ours, ours], [theirs, theirs])
    assert (compared["ours"], compared["theirs"], compared["samples"]) == (0.8333, 0.5, 12)
    assert compared["ratio"] == pytest.approx(1.667)
    low, high = compared["difference_interval"]
    assert 0 <= low < compared["difference"] < high
    # A method against itself differs nowhere, however its answers scatter: an unpaired interval would be wide.
    assert paired([ours], [ours])["ratio_interval"] == [1.0, 1.0]
    assert paired([ours], [hits(0, 0, 0, 0, 0, 0)])["ratio"] is None
    assert hit_rate([ours, theirs]) == pytest.approx(8 / 12)
    with pytest.raises(ValueError, match="different samples"):
        paired([ours], [{"test/0/0": True}])


def test_screens_that_all_seeds_share_are_drawn_once_for_all() -> None:
    """Ten seeds that answer the same about the same screens tell no more than one of them."""
    ours, theirs = hits(*(1, 1, 0, 0) * 5), hits(*(0, 1, 0, 0) * 5)
    alone = paired([ours], [theirs], shared=True)["difference_interval"]
    apart, together = (
        paired([ours] * 10, [theirs] * 10, shared=shared)["difference_interval"] for shared in (False, True)
    )
    assert together == pytest.approx(alone, abs=0.03)
    assert apart[1] - apart[0] < 0.6 * (together[1] - together[0])
    with pytest.raises(ValueError, match="share their screens"):
        paired([ours, hits(1, 0)], [theirs, hits(1, 1)], shared=True)


def test_the_baseline_reads_its_own_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that says what it was taught is right: the places of the numbers are those that are asked for."""
    torch = pytest.importorskip("torch")
    from benchmarks.grounding import text_arm
    from dart_agent.grounding.packing import NO_LABEL
    from dart_agent.grounding.scoring import is_hit
    from dart_train.model.init_model import init_model
    from dart_train.model.policy_model import load_model

    file = write_screens(tmp_path, "train", 2, TRAINED, "1", symbols=SYMBOLS)
    loaded = load_model(str(init_model(tiny_preset(DrawnSource.words), tmp_path / "start")), "cpu")
    sample = next(read_samples(file))
    taught = text_arm.text_answer(*text_arm.text_target(sample))
    image = read_image(tmp_path / sample.image)
    asked = text_arm.AskedText(loaded.model, loaded.processor)
    packed = text_arm.pack(asked, [image], [[text_arm.Question(sample.instruction, taught)]])
    labels = packed.labels_BT[0]
    wanted = torch.cat([labels[1:], torch.tensor([NO_LABEL])])

    class Echo:
        """A fake head of the language model that gives the taught tokens the greatest logits."""

        def __call__(self, hidden: object) -> object:
            return torch.nn.functional.one_hot(hidden, loaded.model.config.text_config.vocab_size).float()

    monkeypatch.setattr(text_arm, "run_backbone", lambda model, batch: wanted.clamp(min=0)[None])
    monkeypatch.setattr(loaded.model.lm_head, "forward", Echo())
    points = text_arm.text_points(loaded, image, [sample.instruction])
    assert points == [tuple(map(float, text_arm.text_target(sample)))]
    assert is_hit(sample, points)


def test_the_baseline_answers_with_points_of_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that prefers the greatest numbers: on an image that is higher than wide no x lies beside it."""
    torch = pytest.importorskip("torch")
    from benchmarks.grounding import text_arm
    from dart_train.model.init_model import init_model
    from dart_train.model.policy_model import load_model

    loaded = load_model(str(init_model(tiny_preset(DrawnSource.words), tmp_path / "start")), "cpu")
    numbers = torch.zeros(loaded.model.config.text_config.vocab_size)
    for number in range(0, 400, text_arm.STEP_PX):
        numbers[text_arm._encode(loaded, str(number))[0]] = number
    monkeypatch.setattr(loaded.model.lm_head, "forward", lambda hidden: numbers.expand(*hidden.shape[:-1], -1))
    for width, height in ((128, 160), (192, 128)):
        (point,) = text_arm.text_points(loaded, np.zeros((height, width, 3), np.uint8), ['click "Red disc"'])
        assert point == (width - text_arm.STEP_PX, height - text_arm.STEP_PX)


def test_a_share_that_does_as_well_as_text_is_enough() -> None:
    """A third of the answers is right in both: rounding the one and not the other made the share worse."""
    answers = hits(1, 0, 0, 1, 0, 0)

    class AnsweredRun:
        """A fake seed whose answers are given."""

        def share(self, share: float) -> dict[str, dict[str, bool]]:
            return {"head": answers}

    found = bench_grounding._enough(AnsweredRun(), SMOKE, {"text": answers}, {"head": answers})
    assert found == (SMOKE.shares[0], {"0.5": 0.3333})


def test_a_seed_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    arguments = argparse.ArgumentParser()
    bench_grounding.add_arguments(arguments)
    with pytest.raises(UnsupportedCapabilityError, match="--seeds names 2 twice"):
        bench_grounding.measure(
            arguments.parse_args(["--smoke", "--seeds", "2", "1", "2", "--work", str(tmp_path / "work")])
        )
    assert not (tmp_path / "work").exists()


def _finished_seed(folder: Path, seed: int) -> Path:
    """A seed whose arms have answers, and no model."""
    rng = random.Random(seed)
    methods = {
        "text": ("text",),
        "head": ("head", "verifier", "head_sum", "head_max", "zoom"),
        "frozen": ("head", "verifier"),
        "share_0.5": ("head",),
        "adaptation": tuple(
            f"{where}{name}" for where in ("", "elsewhere_") for name in ("before", "explored", "generic")
        ),
    }
    (folder / "adaptation").mkdir(parents=True)
    write_json(folder / "adaptation" / "found.json", {"screens": 8})
    for arm, names in methods.items():
        answers = {
            name: {f"{kind}/{index}/0": rng.random() < 0.5 for kind in HELD_OUT for index in range(20)}
            for name in names
        }
        write_json(folder / f"{arm}.json", {"answers": answers, "seconds": 1.5})
    return folder


def _arguments(**given: object) -> argparse.Namespace:
    return argparse.Namespace(
        **{"smoke": True, "threads": 1, "screens": "drawn", "only": None, "work": None, "records": [], **given}
    )


def test_seeds_of_earlier_records_are_taken_over_and_trained_no_more(tmp_path: Path) -> None:
    records = []
    for seed in (1, 2):
        work, record = tmp_path / f"work-{seed}", tmp_path / f"record-{seed}.json"
        _finished_seed(work / f"seed-{seed}", seed)
        write_json(
            work / "settings.json",
            {**dataclasses.asdict(SMOKE), "shares": list(SMOKE.shares), "screens_of": "drawn", "threads": 1},
        )
        write_json(
            record, {"benchmark": "grounding", "figures": bench_grounding.measure(_arguments(seeds=[seed], work=work))}
        )
        records.append(record)
    both = bench_grounding.measure(_arguments(seeds=[1, 2], records=records))
    each = [json.loads(record.read_text())["figures"] for record in records]
    assert both["by_seed"] == [figures["by_seed"][0] for figures in each]
    assert both["text_accuracy"] == pytest.approx(sum(figures["text_accuracy"] for figures in each) / 2)
    assert both["adaptation"]["explorations"] == [{"screens": 8}, {"screens": 8}]
    assert both["answers_by_seed"] == {**each[0]["answers_by_seed"], **each[1]["answers_by_seed"]}
    with pytest.raises(UnsupportedCapabilityError, match="another setting"):
        take_over(records, "drawn", FULL, BOTH, [1], tmp_path / "other")
    part = tmp_path / "part.json"
    write_json(
        part,
        {"benchmark": "grounding", "figures": {key: value for key, value in each[0].items() if key != "adaptation"}},
    )
    foreign = tmp_path / "foreign.json"
    write_json(foreign, {"benchmark": "demo", "figures": {}})
    with pytest.raises(UnsupportedCapabilityError, match="of the benchmark demo"):
        take_over([foreign], "drawn", SMOKE, BOTH, [1], tmp_path / "other")
    with pytest.raises(UnsupportedCapabilityError, match="with --screens drawn"):
        take_over([records[0]], "basics", SMOKE, ("grounding",), [1], tmp_path / "other")
    with pytest.raises(UnsupportedCapabilityError, match="with --only"):
        take_over([part], "drawn", SMOKE, BOTH, [1], tmp_path / "other")


@pytest.mark.parametrize(("digests", "same"), [(("a", "a"), True), (("a", "b"), False), (("a", None), False)])
def test_seeds_with_other_test_screens_are_refused_before_anything_is_trained(
    tmp_path: Path, digests: tuple[str | None, ...], same: bool
) -> None:
    for seed, digest in enumerate(digests, 1):
        folder = _finished_seed(tmp_path / f"seed-{seed}", seed)
        (folder / "data").mkdir()
        write_json(folder / "data" / "recorded.json", {} if digest is None else {"test_digest": digest})
        if not same:
            (folder / "share_0.5.json").unlink()  # a share that would be trained
    noted = {**dataclasses.asdict(BasicsSource.smoke), "screens_of": "basics", "threads": 1}
    write_json(tmp_path / "settings.json", json.loads(json.dumps(noted)))
    arguments = _arguments(seeds=[1, 2], work=tmp_path, screens="basics")
    if same:
        assert len(bench_grounding.measure(arguments)["by_seed"]) == 2
        return
    with pytest.raises(
        UnsupportedCapabilityError, match=r"different test screens \(seed 1: a, seed 2: (b|not known)\)"
    ):
        bench_grounding.measure(arguments)


def test_a_record_says_which_answers_were_right(tmp_path: Path) -> None:
    where = {"commit": "c0ffee", "cpu": "Z80"}
    write_json(tmp_path / "text.json", {"answers": {"text": {"a/0": True, "a/1": False}}, "seconds": 2.0, **where})
    assert pack_answers(tmp_path) == {
        "samples": ["a/0 a/1"],
        "arms": {"text": {"seconds": 2.0, "methods": {"text": [0, "10"]}, **where}},
        "found": None,
        "recorded": {},
    }
