"""Verifier and second look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from dart_agent.errors import ConfigError  # noqa: E402
from dart_agent.grounding.forward import run_backbone  # noqa: E402
from dart_agent.grounding.grounder import Grounder, size_of_area  # noqa: E402
from dart_agent.grounding.packing import Question, pack  # noqa: E402
from dart_agent.grounding.pointing import PointDistribution  # noqa: E402
from dart_agent.grounding.regions import RegionScore  # noqa: E402
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
from tests.unit.dart_agent.grounding_answers import GRID, FixedGrounder  # noqa: E402
from tests.unit.dart_agent.grounding_models import screen, small_model  # noqa: E402


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
        self._attention_M = attention

    def attention(self) -> Any:
        return self._attention_M.double().numpy()

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
