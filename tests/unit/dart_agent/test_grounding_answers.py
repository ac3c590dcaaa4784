"""Log-probs of points, answers, verifier, second look, evaluation and the command."""

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
from dart_agent.grounding.forward import QuestionOutput, run_backbone, run_forward  # noqa: E402
from dart_agent.grounding.grounder import Grounder, GroundingAnswer, TargetAnswer, size_of_area  # noqa: E402
from dart_agent.grounding.head import ActionHead  # noqa: E402
from dart_agent.grounding.labels import PatchGrid  # noqa: E402
from dart_agent.grounding.packing import Question, pack, pointing_ids  # noqa: E402
from dart_agent.grounding.pointing import PointChoice, PointDistribution  # noqa: E402
from dart_agent.grounding.regions import RegionScore, find_regions, verifier_pool  # noqa: E402
from dart_agent.grounding.samples import GroundingSample, GroundingTarget, read_image, write_samples  # noqa: E402
from dart_agent.grounding.scoring import in_box  # noqa: E402
from dart_agent.grounding.verifier import (  # noqa: E402
    COLOUR,
    PUBLISHED_QUESTION,
    QUESTION,
    SETTINGS_KEY,
    Marking,
    Verifier,
    choose_point,
    crop_box,
    load_verifier,
    marked_crop,
    verifier_answer,
    verifier_question,
)
from dart_agent.grounding.zoom import zoom_box, zoom_in  # noqa: E402
from dart_envs.observations.transforms import resize_image  # noqa: E402
from tests.unit.dart_agent.grounding_models import screen, small_model  # noqa: E402

GRID = PatchGrid(4, 2, (128, 64))


def answer_at(cell: int, grid: PatchGrid = GRID, targets: int = 1, refusal: float = 0.0) -> GroundingAnswer:
    """An answer whose attention is on one cell, with a weaker second one."""
    attention = np.full(grid.cells, 0.01)
    attention[cell], attention[(cell + 2) % grid.cells] = 0.6, 0.25
    points = np.array([grid.centre(number) for number in range(grid.cells)])
    regions = tuple(find_regions(attention, grid))
    located = TargetAnswer(attention, points, regions, tuple(verifier_pool(attention, grid)))
    return GroundingAnswer(grid, (located,) * targets, refusal)


class FixedGrounder(Grounder):
    """Says the same of every question, and keeps what it was asked."""

    def __init__(self, cell: int = 1, refusal: float = 0.0) -> None:
        self.cell, self.refusal = cell, refusal
        self.asked: list[tuple[Any, list[str]]] = []

    def ask(self, image: Any, instructions: Any, targets: int = 1) -> list[GroundingAnswer]:
        self.asked.append((image, list(instructions)))
        grid = PatchGrid(4, 2, (image.shape[1], image.shape[0]))
        return [answer_at(self.cell, grid, targets, self.refusal) for _ in instructions]


class FixedVerifier(Verifier):
    """Prefers the candidate nearest to a point."""

    def __init__(self, wanted: tuple[float, float]) -> None:
        object.__setattr__(self, "wanted", wanted)

    def scores(self, image: Any, instruction: str, points: Any) -> list[float]:
        wanted = self.wanted  # type: ignore[attr-defined]
        return [0.7 / (1 + abs(x - wanted[0]) + abs(y - wanted[1])) for x, y in points]


def random_output(parts: int = 3) -> tuple[ActionHead, QuestionOutput]:
    torch.manual_seed(2)
    head = ActionHead(16, parts).double().eval()
    if head.offset is not None:
        torch.nn.init.normal_(head.offset.key.weight)
    context, pointers = torch.randn(8, 16).double(), torch.randn(2, 16).double()
    return head, QuestionOutput(GRID, head.attend(context, pointers) * 5, context, pointers)


def test_probabilities_of_all_points_sum_to_one_and_give_the_entropy() -> None:
    head, output = random_output()
    distribution = PointDistribution.of_head(head, output, target=1, temperature=0.7)
    logprobs = torch.stack([distribution.logprob(PointChoice(c, p)) for c in range(8) for p in range(9)]).detach()
    assert float(logprobs.exp().sum()) == pytest.approx(1)
    assert float(distribution.entropy().detach()) == pytest.approx(float(-(logprobs.exp() * logprobs).sum()))
    best = distribution.best()
    assert float(distribution.logprob(best).detach()) <= float(logprobs.max())


def test_samples_follow_the_log_probs() -> None:
    head, output = random_output(parts=2)
    distribution = PointDistribution.of_head(head, output)
    generator = torch.Generator().manual_seed(0)
    draws = [distribution.sample(generator) for _ in range(4000)]
    for choice in {*draws[:20]}:
        share = draws.count(choice) / len(draws)
        assert share == pytest.approx(float(distribution.logprob(choice).exp().detach()), abs=0.03)


def test_points_are_the_middles_of_parts() -> None:
    head, output = random_output(parts=2)
    distribution = PointDistribution.of_head(head, output)
    assert distribution.point(PointChoice(5, 0)) == (32 + 8, 32 + 8)
    assert distribution.point(PointChoice(5, 3)) == (32 + 24, 32 + 24)
    shares = distribution.log_parts(torch.tensor([5]))[0].exp().tolist()
    mean_x = sum(share * distribution.point(PointChoice(5, part))[0] for part, share in enumerate(shares))
    assert distribution.expected_points()[5, 0] == pytest.approx(mean_x)


def test_without_offsets_a_point_is_the_middle_of_its_cell() -> None:
    head, output = random_output(parts=1)
    distribution = PointDistribution.of_head(head, output)
    assert distribution.point(PointChoice(6, 0)) == GRID.centre(6)
    assert float(distribution.logprob(PointChoice(6, 0)).detach()) == float(distribution.log_attention_M[6].detach())
    with pytest.raises(ValueError, match="above 0"):
        PointDistribution.of_head(head, output, temperature=0)


def test_log_probs_are_recomputed_exactly_with_gradients(tmp_path: Path) -> None:
    """What a policy samples without gradients alone, a trainer finds again in a batch of others, with gradients."""
    model = small_model("qwen3_vl", tmp_path, offset_parts=2)
    question, picture = Question.point("click the button Apple"), screen(128, 64)
    with torch.inference_mode():
        sampled = PointDistribution.of_head(
            model.head, run_forward(model, pack(model, [picture], [[question]])).questions[0][0]
        )
        choice = sampled.sample(torch.Generator().manual_seed(0))
        behaviour = float(sampled.logprob(choice))
    packed = pack(model, [screen(64, 96), picture], [[question], [Question.point("the field"), question]])
    again = PointDistribution.of_head(model.head, run_forward(model, packed).questions[1][1]).logprob(choice)
    assert float(again.detach()) == pytest.approx(behaviour, abs=1e-5)
    again.backward()
    assert model.head.offset is not None
    for weight in (
        model.head.offset.key.weight,
        model.head.projection_enc[0].weight,
        model.backbone.get_input_embeddings().weight,
    ):
        assert weight.grad is not None
        assert float(weight.grad.abs().sum()) > 0


def test_grounder_answers_many_questions_in_one_pass(tmp_path: Path) -> None:
    model = small_model("qwen3_vl", tmp_path, offset_parts=2)
    grounder = Grounder(model)
    both = grounder.ask(screen(128, 64), ["click the button Apple", "the field"])
    (alone,) = grounder.ask(screen(128, 64), ["the field"])
    assert np.allclose(both[1].targets[0].attention_M, alone.targets[0].attention_M, atol=1e-6)
    assert both[1].targets[0].attention_M.sum() == pytest.approx(1)
    assert 0 < both[0].refusal < 1
    (drag,) = grounder.ask(screen(128, 64), ["drag the button"], targets=2)
    assert len(drag.points) == 2


def test_marked_crops_show_a_hollow_circle_around_the_point() -> None:
    image = np.zeros((400, 600, 3), np.uint8)
    crop = marked_crop(image, (300, 200), Marking(50))
    assert crop.shape == (100, 100, 3)
    red = np.argwhere((crop == COLOUR).all(axis=2))
    assert red.mean(axis=0) == pytest.approx([49.5, 49.5])
    distance = np.hypot(*(red + 0.5 - 50).T)
    assert 5.4 < distance.min() < 6.2
    assert 7.8 < distance.max() <= 8.5
    assert image.sum() == 0
    small = marked_crop(image, (300, 200), Marking(16, radius=3, line=1))
    assert small.shape == (32, 32, 3)
    distance = np.hypot(*(np.argwhere((small == COLOUR).all(axis=2)) + 0.5 - 16).T)
    assert 2.4 < distance.min() <= distance.max() <= 3.5
    with pytest.raises(ValueError, match="above 0"):
        Marking(radius=0)
    assert crop_box((600, 400), (0, 399), 50) == (0, 349, 50, 400)
    assert marked_crop(image, (599.5, 0.0), Marking(50)).shape == (50, 50, 3)


def test_the_first_good_candidate_is_taken_else_the_best() -> None:
    assert choose_point([0.3, 0.85, 0.99], 0.8) == 1
    assert choose_point([0.3, 0.5, 0.5], 0.8) == 1
    assert choose_point([0.3, 0.2], 0.8) == 0


def test_verifier_judges_all_candidates_in_one_batch_as_alone(tmp_path: Path) -> None:
    model = small_model("qwen2_5_vl", tmp_path)
    verifier = Verifier(model.backbone, model.processor, marking=Marking(40))
    points = [(20.0, 20.0), (100.0, 60.0), (150.0, 10.0)]
    picture = screen(168, 84)
    together = verifier.scores(picture, "click the button", points)
    alone = [verifier.scores(picture, "click the button", [point])[0] for point in points]
    assert together == pytest.approx(alone, abs=1e-5)
    assert len({*together}) == 3
    packed = pack(
        verifier,
        [marked_crop(picture, points[0], Marking(40))],
        [[Question(verifier_question("x"), verifier_answer(False))]],
    )
    learnt = model.tokenizer.decode(packed.labels_BT[packed.labels_BT >= 0])
    assert learnt == "\nFalse<|im_end|>"


@pytest.mark.parametrize(
    ("settings", "question"),
    [
        (None, PUBLISHED_QUESTION),  # a published model keeps nothing
        ({"reach": 32, "radius": 5, "line": 2, "system": ""}, QUESTION),
        ({"question": "Is {instruction} here?"}, "Is {instruction} here?"),
    ],
)
def test_a_verifier_is_asked_what_it_was_trained_with(tmp_path: Path, settings: Any, question: str) -> None:
    model = small_model("qwen3_vl", tmp_path)
    if settings is not None:
        setattr(model.backbone.config, SETTINGS_KEY, settings)
    model.save(tmp_path / "verifier")
    verifier = load_verifier(str(tmp_path / "verifier"))
    assert verifier.question == question
    assert verifier.marking == (Marking(32, 5, 2) if settings and "reach" in settings else Marking())
    points = [(20.0, 20.0), (60.0, 30.0)]
    crops = [marked_crop(screen(96, 64), point, verifier.marking) for point in points]
    asked = Question(question.replace("{instruction}", "click {x}"), verifier_answer(True))
    packed = pack(verifier, crops, [[asked]] * 2)
    with torch.inference_mode():
        hidden = run_backbone(verifier.backbone, packed)[[0, 1], [at for (at,) in packed.decisions]]
        words = [
            verifier.processor.tokenizer(word, add_special_tokens=False).input_ids[0] for word in ("True", "False")
        ]
        wanted = torch.softmax(verifier.backbone.lm_head(hidden)[:, words].float(), dim=1)[:, 0].tolist()
    assert verifier.scores(screen(96, 64), "click {x}", points) == pytest.approx(wanted, abs=1e-6)


def test_questions_of_verifiers_name_the_instruction(tmp_path: Path) -> None:
    assert verifier_question("click Save") == (
        'Is the red circle on the right place for "click Save"? Answer True or False.'
    )
    assert verifier_question("click Save", PUBLISHED_QUESTION) == (
        "Please observe the screenshot and exame whether the hollow red circle accurately placed on the intended position in the image: "
        "'click Save'. Answer True or False."
    )
    model = small_model("qwen3_vl", tmp_path)
    setattr(model.backbone.config, SETTINGS_KEY, {"question": "Is it here?"})
    model.save(tmp_path / "verifier")
    with pytest.raises(ConfigError, match=r"cannot load a verifier .* needs \{instruction\}"):
        load_verifier(str(tmp_path / "verifier"))


@pytest.mark.parametrize(
    ("image_wh", "size"),
    [
        ((3840, 2160), (3200, 1800)),
        ((1600, 900), (3200, 1800)),
        ((2160, 3840), (1800, 3200)),
        ((2880, 1800), (3035, 1897)),  # GUI-Actor rounds down
    ],
)
def test_an_area_of_gui_actors_size_keeps_the_shape(image_wh: tuple[int, int], size: tuple[int, int]) -> None:
    assert size_of_area(image_wh, 5_760_000) == size
    assert size_of_area((1000, 1), 4) == (63, 1)


def test_resized_images_are_answered_in_their_own_pixels(tmp_path: Path) -> None:
    model = small_model("qwen3_vl", tmp_path, offset_parts=2)
    for image, pixels, size in ((screen(128, 64), 4 * 128 * 64, (256, 128)), (screen(256, 128), 128 * 64, (128, 64))):
        width, height = image.shape[1], image.shape[0]
        (answer,) = Grounder(model, resize_to_pixels=pixels).ask(image, ["click the button Apple"])
        (seen,) = Grounder(model).ask(resize_image(image, size), ["click the button Apple"])
        assert (answer.grid.columns, answer.grid.rows) == (seen.grid.columns, seen.grid.rows)
        assert answer.grid.image_wh == (width, height)
        scale = width / size[0]
        found, other = answer.targets[0], seen.targets[0]
        assert np.allclose(found.attention_M, other.attention_M, atol=1e-6)
        assert np.allclose(found.points_M2, scale * other.points_M2, atol=1e-4)
        assert answer.points[0] == pytest.approx([scale * at for at in seen.points[0]], abs=1e-4)
        assert found.pool[0] == pytest.approx([scale * at for at in other.pool[0]], abs=1e-4)


def test_the_score_of_regions_orders_the_pool_of_a_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = torch.full((8,), 0.01)
    attention[[0, 1, 6]] = torch.tensor([0.3, 0.22, 0.28])  # a region of two cells, and a single one
    monkeypatch.setattr(
        PointDistribution, "of_head", classmethod(lambda cls, head, found, index: FixedDistribution(attention))
    )
    model = small_model("qwen3_vl", tmp_path)
    wide, single = (GRID.centre(0)[0], GRID.centre(1)[0]), GRID.centre(6)
    expected: tuple[tuple[RegionScore, bool], ...] = (("mean", True), ("sum", False), ("max", False))
    for score, of_single in expected:
        (answer,) = Grounder(model, score).ask(screen(128, 64), ["click"])
        x, y = answer.targets[0].pool[0]
        assert ((x, y) == single) is of_single
        assert of_single or wide[0] < x < wide[1]


class FixedDistribution:
    """Attends as it is told, to the middles of cells."""

    def __init__(self, attention: Any) -> None:
        self.log_attention_M = attention.log()

    def expected_points(self) -> Any:
        return np.array([GRID.centre(cell) for cell in range(GRID.cells)])


def test_zoom_keeps_the_shape_and_stays_inside() -> None:
    assert zoom_box((600, 400), (300, 200)) == (150, 100, 450, 300)
    assert zoom_box((600, 400), (10, 390)) == (0, 200, 300, 400)
    assert zoom_box((600, 400), (599, 0), zoom=4) == (450, 0, 600, 100)


def test_zoom_maps_the_second_answer_back() -> None:
    grounder = FixedGrounder(cell=0)
    image = screen(128, 64)
    found = zoom_in(grounder, image, "it", (120.0, 60.0))
    (seen, _), (left, top, right, bottom) = grounder.asked[0], zoom_box((128, 64), (120.0, 60.0))
    assert seen.shape == image.shape
    assert (left, top, right, bottom) == (64, 32, 128, 64)
    assert found == pytest.approx((64 + 8, 32 + 8))  # the middle of the first of 4 x 2 cells of the crop


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
