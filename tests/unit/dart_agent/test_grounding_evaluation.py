"""Evaluation of grounding, its pictures, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from PIL import Image  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from dart_agent.cli import app  # noqa: E402
from dart_agent.errors import ConfigError  # noqa: E402
from dart_agent.grounding.commands import RegionScoreOption, WeightsDtype, make_answerer  # noqa: E402
from dart_agent.grounding.datasets.dataset import GroundingDataset  # noqa: E402
from dart_agent.grounding.datasets.report import size_class, summarize  # noqa: E402
from dart_agent.grounding.drawing import CAPTION_PX, RIGHT, SAID, draw_answer  # noqa: E402
from dart_agent.grounding.evaluation import Answerer, evaluate  # noqa: E402
from dart_agent.grounding.forward import run_forward  # noqa: E402
from dart_agent.grounding.grounder import Grounder  # noqa: E402
from dart_agent.grounding.packing import Question, pack, pointing_ids  # noqa: E402
from dart_agent.grounding.samples import GroundingSample, GroundingTarget, read_image, write_samples  # noqa: E402
from dart_agent.grounding.scoring import in_box  # noqa: E402
from tests.unit.dart_agent.grounding_answers import FixedGrounder, FixedVerifier, answer_at  # noqa: E402
from tests.unit.dart_agent.grounding_models import screen, small_model  # noqa: E402


def sample(name: str, box: tuple[float, float, float, float] | None, **fields: Any) -> GroundingSample:
    targets = () if box is None else (GroundingTarget(boxes=(box,)),)
    return GroundingSample(
        sample_id=name, image="a.png", image_wh=(128, 64), instruction=name, targets=targets, **fields
    )


def dataset(root: Path, *samples: GroundingSample) -> GroundingDataset:
    return GroundingDataset("samples", root, samples)


def test_evaluation_counts_first_and_k_by_class(tmp_path: Path) -> None:
    Image.fromarray(screen(128, 64)).save(tmp_path / "a.png")
    hit, second = (32, 0, 64, 32), (96, 0, 128, 32)
    samples = [
        sample("hit", hit, application="Mousepad", element_type="text"),
        sample("second", second, application="Mousepad", element_type="icon"),
        sample("miss", (0, 32, 10, 64), application="GIMP", element_type="icon"),
        sample("none", None),
    ]
    result = evaluate(Answerer(FixedGrounder()), dataset(tmp_path, *samples), k=2, pictures=tmp_path / "failures")
    summary = result.summary()
    assert (summary["hit@1"], summary["hit@2"]) == (0.25, 0.5)
    assert summary["by_application"]["Mousepad"] == {"hit@1": [1, 2], "hit@2": [2, 2]}
    assert summary["by_element_type"]["icon"] == {"hit@1": [0, 2], "hit@2": [1, 2]}
    assert summary["by_size"]["below 16 px"]["hit@1"] == [0, 1]
    assert sorted(path.stem for path in result.pictures) == ["miss", "none", "second"]
    assert read_image(tmp_path / "failures.png").shape == (308 + 8, 3 * 488, 3)  # (64 + 18) * 480 / 128
    drawn = read_image(tmp_path / "failures" / "miss.png")
    assert tuple(drawn[CAPTION_PX + 40, 10]) == RIGHT
    assert tuple(drawn[CAPTION_PX + 16, 48]) == SAID
    refusing = evaluate(Answerer(FixedGrounder(refusal=0.9), refuse=True), dataset(tmp_path, *samples)).summary()
    assert refusing["hit@1"] == 0.25  # only the one where nothing fits
    assert size_class(samples[3]) == "refusal"


def test_verifier_and_zoom_change_the_first_answer(tmp_path: Path) -> None:
    Image.fromarray(screen(128, 64)).save(tmp_path / "a.png")
    data = dataset(tmp_path, sample("second", (96, 0, 128, 32)))
    verified = Answerer(FixedGrounder(), verifier=FixedVerifier((112.0, 16.0)))
    assert evaluate(verified, data).summary()["hit@1"] == 1
    grounder = FixedGrounder()
    assert evaluate(Answerer(grounder, zoom=2.0), data).summary()["hit@1"] == 0
    assert len(grounder.asked) == 2


@pytest.mark.parametrize("correction", [{"verifier": FixedVerifier((112.0, 16.0))}, {"zoom": 2.0}])
def test_hit_at_k_judges_k_answers_with_the_corrected_one_first(tmp_path: Path, correction: dict[str, Any]) -> None:
    Image.fromarray(screen(128, 64)).save(tmp_path / "a.png")
    first, second = (32, 0, 64, 32), (96, 0, 128, 32)  # where the head points, and its next candidate
    answerer = Answerer(FixedGrounder(), **correction)
    (final,) = answerer.answer(screen(128, 64), ["x"])
    (x, y), *_ = final.points
    (head,), (other,) = final.answer.candidates(2)
    assert (x, y) != head
    samples = [
        sample("corrected", (x - 1, y - 1, x + 1, y + 1)),
        sample("first", (head[0] - 1, head[1] - 1, head[0] + 1, head[1] + 1)),
        sample("second", (other[0] - 1, other[1] - 1, other[0] + 1, other[1] + 1)),
    ]
    assert in_box(head, first)
    assert in_box(other, second)
    # The verifier takes the head's second candidate, which is no further one then.
    right = {"corrected", "second"} if (x, y) == other else {"corrected"}
    data = GroundingDataset("x", tmp_path, tuple(samples), average="macro", cells=lambda one: (one.sample_id,))
    for k, found in ((1, right), (2, right | {"first"}), (3, {"corrected", "first", "second"})):
        result = evaluate(answerer, data, k=k)
        summary = result.summary()
        assert {one.sample_id for one, hit in result.among if hit} == found
        assert summary[f"hit@{k}"] == pytest.approx(len(found) / 3)
        assert summary["hit@1"] == summary["published"]["micro"] == pytest.approx(len(right) / 3)
        assert summary["published"]["hit@1"] == pytest.approx(len(right) / 3)
        assert {name: rates["hit@1"] for name, rates in summary["published"]["cells"].items()} == {
            name: [int(name in right), 1] for name in ("corrected", "first", "second")
        }
        assert summary["by_kind"]["name"]["hit@1"] == [len(right), 3]


def test_hit_at_1_is_never_replaced(tmp_path: Path) -> None:
    samples = [sample("x", (0, 0, 1, 1)), sample("none", None)]
    wrong, right = ([(one, hit) for one in samples] for hit in (False, True))
    data = GroundingDataset("x", tmp_path, tuple(samples), cells=lambda one: (one.sample_id,))
    summary = summarize(data, wrong, right, 1)
    assert summary["hit@1"] == summary["without_refusals"]["hit@1"] == summary["published"]["hit@1"] == 0
    assert summary["published"]["cells"] == {"none": {"hit@1": [0, 1]}, "x": {"hit@1": [0, 1]}}
    assert summary["by_kind"] == {"name": {"hit@1": [0, 2]}}
    assert summarize(data, wrong, right, 2)["by_kind"] == {"name": {"hit@1": [0, 2], "hit@2": [2, 2]}}


def test_images_that_do_not_fit_their_samples_are_named(tmp_path: Path) -> None:
    Image.fromarray(screen(64, 64)).save(tmp_path / "a.png")
    with pytest.raises(ConfigError, match="has 64x64 pixels"):
        evaluate(Answerer(FixedGrounder()), dataset(tmp_path, sample("x", None)))
    with pytest.raises(ConfigError, match="cannot be read"):
        evaluate(Answerer(FixedGrounder()), dataset(tmp_path, sample("x", None).model_copy(update={"image": "b.png"})))


def test_what_cannot_be_asked_is_wrong_and_named(tmp_path: Path) -> None:
    Image.fromarray(screen(128, 64)).save(tmp_path / "a.png")
    Image.fromarray(screen(402, 2)).save(tmp_path / "long.png")
    hit = (32, 0, 64, 32)
    target = GroundingTarget(boxes=(hit,))
    samples = [
        sample("hit", hit),
        sample("pad", hit).model_copy(update={"instruction": "click <|image_pad|>"}),
        sample("three", hit).model_copy(update={"targets": (target,) * 3}),
        sample("long", hit).model_copy(update={"image": "long.png", "image_wh": (402, 2)}),
        sample("none", None).model_copy(update={"instruction": "<|pointer_pad|>"}),
    ]
    model = small_model("qwen3_vl", tmp_path)
    answerers = (Answerer(FixedGrounder(refusal=0.9)), Answerer(Grounder(model)))
    for answerer in answerers:
        result = evaluate(answerer, dataset(tmp_path, *samples), pictures=tmp_path / "failures")
        assert [one.sample_id for one, right in result.first if right] in ([], ["hit"])
        summary = result.summary()
        assert summary["samples"] == 5
        assert {name: reason.split(":")[0] for name, reason in summary["not_asked"].items()} == {
            "pad": "an instruction cannot contain <|image_pad|>",
            "three": "an answer has at most 2 targets, not 3",
            "long": "an image of 402x2 pixels cannot be asked about, because one side is more than 200 times the other",
            "none": "an instruction cannot contain <|pointer_pad|>",
        }
    assert {path.stem for path in result.pictures} >= {"pad", "three", "long", "none"}
    assert json.loads((tmp_path / "failures" / "three.json").read_text())["points"] is None
    assert "not_asked" not in evaluate(answerers[0], dataset(tmp_path, samples[0])).summary()


def test_questions_that_cannot_be_asked_are_errors_of_the_settings(tmp_path: Path) -> None:
    model = small_model("qwen2_5_vl", tmp_path)
    for instruction in ("click <|image_pad|>", "click <|pointer_pad|>"):
        with pytest.raises(ConfigError, match="cannot contain"):
            pack(model, [screen()], [[Question.point(instruction)]])
        with pytest.raises(ConfigError, match="cannot contain"):
            pointing_ids(model, instruction)
    with pytest.raises(ConfigError, match="more than 200 times"):
        pack(model, [screen(2, 401)], [[Question.point("Save")]])
    with pytest.raises(ConfigError, match="at most 2 targets"):
        Question.point("Save", targets=3)
    assert pack(model, [screen(2, 400)], [[Question.point("Save")]]).grids[0].image_wh == (2, 400)


@pytest.mark.parametrize("height", [1, 3])
def test_images_of_few_rows_are_read_as_pictures(height: int, tmp_path: Path) -> None:
    model = small_model("qwen2_vl", tmp_path)
    picture = screen(90, height)
    found = pack(model, [picture], [[Question.point("Save")]])
    wanted = model.processor.image_processor(images=[Image.fromarray(picture)], return_tensors="pt")
    assert torch.equal(found.pixel_values, wanted["pixel_values"])


def test_pictures_show_attention_point_and_target() -> None:
    image = np.full((64, 128, 3), 255, np.uint8)
    answer = answer_at(1)
    drawn = np.asarray(draw_answer(image, answer, answer.points, right=[GroundingTarget(boxes=((96, 32, 120, 60),))]))
    assert tuple(drawn[16, 48]) == SAID
    assert tuple(drawn[45, 96]) == RIGHT
    assert drawn[25, 60, 1] < 120 < drawn[50, 10, 1]  # attended cells are redder than others


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_models_in_bfloat16_say_about_the_same(family: str, tmp_path: Path) -> None:
    small_model(family, tmp_path, offset_parts=2).save(tmp_path / "model")
    settings: dict[str, Any] = {
        "verifier": str(tmp_path / "model"), "gamma": 0.8, "zoom": None, "score": RegionScoreOption.MEAN, "refuse": True,
        "device": "cpu",
    }  # fmt: skip
    whole, half = (
        make_answerer(str(tmp_path / "model"), dtype=dtype, **settings)
        for dtype in (WeightsDtype.AUTO, WeightsDtype.BFLOAT16)
    )
    for answerer, dtype in ((whole, torch.float32), (half, torch.bfloat16)):
        assert {one.dtype for one in answerer.grounder.model.backbone.parameters()} == {dtype}
        assert {one.dtype for one in answerer.grounder.model.head.parameters()} == {torch.float32}
        assert answerer.verifier is not None
        assert {one.dtype for one in answerer.verifier.backbone.parameters()} == {dtype}
    asked = [Question.point("click it")]
    with torch.inference_mode():
        one, other = (
            run_forward(each.grounder.model, pack(each.grounder.model, [screen(112, 112)], [asked])).questions[0][0]
            for each in (whole, half)
        )
    attention, rounded = (torch.softmax(found.logits_KM, dim=1) for found in (one, other))
    assert torch.allclose(attention, rounded, atol=0.02)
    assert not torch.equal(attention, rounded)
    assert half.answer(screen(112, 112), ["click it"], 1), "with verifier and refusal"


def test_command_draws_and_measures(tmp_path: Path) -> None:
    model = small_model("qwen3_vl", tmp_path, offset_parts=2)
    model.save(tmp_path / "model")
    Image.fromarray(screen(128, 64)).save(tmp_path / "a.png")
    write_samples(tmp_path / "data.jsonl", [sample("whole", (0, 0, 128, 64)), sample("none", None)])
    run = CliRunner().invoke
    options = ["--model", str(tmp_path / "model")]
    drawn = run(app, ["ground", str(tmp_path / "a.png"), "click it", *options, "--out", str(tmp_path / "o.png"),
                      "--verifier", str(tmp_path / "start"), "--zoom", "2"])  # fmt: skip
    assert drawn.exit_code == 0, drawn.output
    assert read_image(tmp_path / "o.png").shape == (64, 128, 3)
    assert "verifier: (" in drawn.output
    measured = run(app, ["ground", "eval", str(tmp_path / "data.jsonl"), *options, "--out", str(tmp_path / "e"),
                         "--resize-to-pixels", "32768"])  # fmt: skip
    assert measured.exit_code == 0, measured.output
    assert json.loads((tmp_path / "e" / "result.json").read_text())["hit@1"] == 0.5
    assert (tmp_path / "e" / "failures" / "none.png").is_file()


def test_command_says_what_is_wrong(tmp_path: Path) -> None:
    Image.fromarray(screen(32, 32)).save(tmp_path / "a.png")
    Image.fromarray(screen(2, 402)).save(tmp_path / "long.png")
    (tmp_path / "folder.png").mkdir()
    write_samples(tmp_path / "data.jsonl", [sample("x", (0, 0, 1, 1))])
    ask = ["ground", str(tmp_path / "a.png")]
    # There is no model m: what is wrong is said before one is looked for.
    for arguments, sentence in (
        (["ground", str(tmp_path / "no.png"), "x", "--model", "m"], "there is no file"),
        ([*ask, "x", "--model", str(tmp_path)], str(tmp_path)),
        (
            [*ask, "x", "--model", "m", "--out", "answer.xyz"],
            "--out answer.xyz is no name of a picture: let it end with",
        ),
        ([*ask, "x", "--model", "m", "--out", "answer"], "--out answer is no name of a picture"),
        ([*ask, "x", "--model", "m", "--out", "answer.gbr"], "--out answer.gbr is no name of a picture"),
        ([*ask, "x", "--model", "m", "--out", str(tmp_path / "folder.png")], "is a folder: give the name"),
        ([*ask, "a <|image_pad|>", "--model", "m"], "an instruction cannot contain <|image_pad|>: leave it out"),
        (["ground", str(tmp_path / "long.png"), "x", "--model", "m"], "2x402 pixels cannot be asked about"),
        ([*ask, "x", "--model", "m", "--gamma", "0.9"], "there is none: add --verifier, or leave --gamma out"),
        (
            ["ground", "eval", str(tmp_path / "data.jsonl"), "--model", "m", "--gamma", "0.8"],
            "there is none: add --verifier, or leave --gamma out",
        ),
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert sentence in result.output
