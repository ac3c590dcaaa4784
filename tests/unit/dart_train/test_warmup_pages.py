"""Pages of texts that are cut out of screens, and a vision tower that learns to read them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from dart_agent.prompts.builder import PromptBuilder, preset
from dart_envs import tasks
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.types import RgbImage
from dart_server.wire import A11yElement
from dart_train.model.device import ComputeDevice
from dart_train.model.init_model import init_model
from dart_train.model.policy_model import LoadedModel, load_model, pixel_inputs
from dart_train.trainer.ranks import Ranks
from dart_train.warmup import WarmupConfig, warm_start
from dart_train.warmup.fit import _WarmStartTrainer
from dart_train.warmup.optimisation import SLOW_RATE, set_rate
from dart_train.warmup.pages import MIN_CUTTINGS, PageWriter, PlacedText, find_texts
from dart_train.warmup.pointing import HeadLearner, load_with_head
from dart_train.warmup.queries import QueryBuilder
from dart_train.warmup.reading import AROUND_TEXT_PX, ReadImage, ReadImages, Reading
from dart_train.warmup.screens import AnnotatedScreen, ScreenError
from dart_train.warmup.stage import UnfinishedWarmStart
from dart_train.warmup.text_scores import NO_TEXT_LOGIT, TextScores

torch = pytest.importorskip("torch")

WORDS = ("Moon", "Tiger", "Chair")
TASKS = tasks.load_suite("basics").tasks("train", ["choose_nth"])


def element(role: str, name: str, x: int, y: int, w: int, h: int) -> A11yElement:
    return A11yElement(role=role, name=name, x=x, y=y, w=w, h=h)


def dialog(x: int, y: int) -> list[A11yElement]:
    """A window with three rows."""
    rows = [element("table cell", word, x + 10, y + 40 + 32 * i, 220, 30) for i, word in enumerate(WORDS)]
    return [element("dialog", "List", x, y, 250, 200), *rows]


def draw(elements: list[A11yElement], *, words: bool = True) -> RgbImage:
    """A screen; what an element is called stands in it, in white on blue where it is the first row."""
    picture = Image.new("RGB", (640, 400), (220, 228, 235))
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(18)
    for one in elements:
        chosen = one.name == WORDS[0]
        fill = (50, 130, 230) if chosen else (255, 255, 255)
        pen.rectangle((one.x, one.y, one.x + one.w - 1, one.y + one.h - 1), fill=fill)
        if words and one.role != "dialog":
            pen.text((one.x + 8, one.y + 5), one.name, fill=(255, 255, 255) if chosen else (0, 0, 0), font=font)
    return np.asarray(picture)


def screen(elements: list[A11yElement], task_id: str = TASKS[0]) -> AnnotatedScreen:
    return AnnotatedScreen(Path("none.png"), task_id, "Choose the first row.", 0, tuple(elements), None)


def screens(count: int) -> list[tuple[RgbImage, list[PlacedText]]]:
    """Screenshots with their texts."""
    return [(pixels, find_texts(pixels, one)) for pixels, one in screenshots(count)]


@pytest.fixture(scope="module")
def start_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return init_model("tiny", tmp_path_factory.mktemp("pages") / "start", seed=1)


@pytest.fixture
def loaded(start_model: Path) -> LoadedModel:
    return load_model(start_model)


def config(root: Path, start: Path, **changes: Any) -> WarmupConfig:
    values: dict[str, Any] = {
        "start_model": str(start), "screens": root / "screens", "out_dir": root / "warm", "metrics": root / "metrics.jsonl",
        "threads": 1, "pages": 24, "report_every_pages": 12, "images": 8, "batch_size": 4, "held_out_fraction": 0.3,
        "lr_warmup_updates": 1,
    }  # fmt: skip
    return WarmupConfig(**(values | changes))


def reading(loaded: LoadedModel, chosen: WarmupConfig) -> Reading:
    """A tower that has seen nothing."""
    measured = [(draw(elements), screen(elements)) for elements in (dialog(40, 100), dialog(200, 50))]
    return Reading(
        loaded, ComputeDevice.resolve("cpu", "float32"), ReadImages(screenshots(), shrink), measured, chosen, Ranks()
    )


def screenshots(count: int = MIN_CUTTINGS) -> list[tuple[RgbImage, AnnotatedScreen]]:
    random = Random(0)
    dialogs = [dialog(random.randint(0, 390), random.randint(0, 200)) for _ in range(count)]
    return [(draw(elements), screen(elements)) for elements in dialogs]


def shrink(pixels: RgbImage) -> RgbImage:
    return np.array(Image.fromarray(pixels).resize((256, 160)))


def test_the_texts_of_a_screen_are_those_of_its_smallest_elements_with_the_box_of_their_ink() -> None:
    elements = dialog(100, 60)
    found = find_texts(draw(elements), screen(elements))
    assert [text.text for text in found] == list(WORDS)
    for text, row in zip(found, elements[1:], strict=True):
        x0, y0, x1, y1 = text.box
        assert row.x + 5 <= x0 <= row.x + 12
        assert row.y + 5 <= y0 < y1 <= row.y + row.h - 5
        assert x1 - x0 < 60


@pytest.mark.parametrize(
    "odd",
    [
        element("label", "A text of more than sixteen letters", 300, 300, 300, 30),
        element("label", "Half", 620, 300, 60, 30),
        element("dialog", "Title", 300, 300, 60, 30),
        element("panel", "Outer", 290, 10, 260, 160),
        element("label", "Thin", 300, 300, 60, 8),
    ],
    ids=["long", "off the screen", "window", "holds another", "no room"],
)
def test_what_cannot_be_read_as_one_text_is_left_out(odd: A11yElement) -> None:
    elements = [odd, *dialog(295, 10)]
    assert {text.text for text in find_texts(draw(elements), screen(elements))} == set(WORDS)


def test_an_element_that_shows_nothing_has_no_text() -> None:
    elements = dialog(100, 60)
    assert find_texts(draw(elements, words=False), screen(elements)) == []


def test_a_page_shows_known_texts_and_none_covers_another() -> None:
    writer = PageWriter(screens(MIN_CUTTINGS))
    assert writer.texts == tuple(sorted(WORDS))
    page, placed = writer.write(Random(3))
    again, placed_again = writer.write(Random(3))
    assert np.array_equal(page, again)
    assert placed == placed_again
    assert page.shape == (400, 640, 3)
    assert sorted(text.text for text in placed) == sorted(WORDS)
    covered = np.zeros(page.shape[:2], int)
    for text in placed:
        x0, y0, x1, y1 = text.box
        covered[y0:y1, x0:x1] += 1
        ink = page[y0:y1, x0:x1].astype(int)
        assert np.ptp(ink.sum(axis=2)) > 150, f"{text} has no ink"
    assert covered.max() == 1


def test_pages_show_mostly_the_texts_that_instructions_mention() -> None:
    names = [f"Text{number}" for number in range(60)]
    cutting, one = np.full((20, 40, 3), 255, np.uint8), PlacedText("", (10, 8, 20, 12))
    writer = PageWriter([(cutting, [replace(one, text=name) for name in names])] * MIN_CUTTINGS, names[:30])
    drawn = [name for seed in range(200) for name in writer._draw_texts(Random(seed))]
    assert set(drawn) == set(names)
    assert 0.15 < sum(name not in names[:30] for name in drawn) / len(drawn) < 0.25


@pytest.mark.parametrize("mentioned", [(), WORDS[:1], WORDS])
def test_a_page_shows_all_texts_where_there_are_few(mentioned: tuple[str, ...]) -> None:
    _, placed = PageWriter(screens(MIN_CUTTINGS), mentioned).write(Random(3))
    assert sorted(text.text for text in placed) == sorted(WORDS)


def test_rare_texts_are_not_on_pages() -> None:
    rare = [(pixels, texts if number else texts[1:]) for number, (pixels, texts) in enumerate(screens(MIN_CUTTINGS))]
    assert PageWriter(rare).texts == ("Chair", "Tiger")
    assert PageWriter(screens(MIN_CUTTINGS - 1)).texts == ()


def test_a_text_belongs_to_the_part_of_the_token_that_its_middle_lies_on(loaded: LoadedModel, tmp_path: Path) -> None:
    """The rows of the patches that the processor makes are the parts of the tokens in order."""
    reader = reading(loaded, config(tmp_path, tmp_path))
    blank = np.full((160, 256, 3), 200, np.uint8)
    for x, y in ((100, 50), (3, 3), (250, 150), (47, 64)):
        marked = blank.copy()
        marked[y // 16 * 16 : y // 16 * 16 + 16, x // 16 * 16 : x // 16 * 16 + 16] = 0
        before, after = (pixel_inputs(loaded.processor, [image])[0] for image in (blank, marked))
        (row,) = torch.nonzero((before != after).any(dim=1)).flatten().tolist()
        middle = (round(x * 2.5), round(y * 2.5))
        text = PlacedText("Moon", (middle[0] - 5, middle[1] - 4, middle[0] + 5, middle[1] + 4))
        read, named = reader._parts(7, ReadImage(marked, [text], (640, 400), is_page=True))
        assert (read.image, read.token * 4 + read.part, read.text) == (7, row, 1)
        assert named == read._replace(part=read.part + 4), "a text names itself where no element is beside it"


def test_with_an_action_head_places_are_as_fine_as_its_offsets(start_model: Path, tmp_path: Path) -> None:
    chosen = config(tmp_path, start_model, pointer=True, offset_parts=4)
    pointing = load_with_head(chosen)
    compute = ComputeDevice.resolve("cpu", "float32")
    reader = Reading(
        pointing, compute, ReadImages(screenshots(), shrink), [], chosen, Ranks(), HeadLearner(pointing, compute)
    )
    # The text's middle is (80, 40) in the input of 256 x 160: token (2, 1), part (2, 1). That of its box is (50, 44): token (1, 1).
    text = PlacedText("Moon", (190, 95, 210, 105), (100, 100, 150, 120))
    image = ReadImage(np.zeros((160, 256, 3), np.uint8), [text], (640, 400), is_page=True)
    assert reader._parts(0, image) == [(0, 10, 4 * 1 + 2, 1), (0, 9, 16 + 4 * 1 + 2, 1)]
    assert image.input_box(text) == (40, 40, 60, 48)


def test_the_language_model_learns_the_states_for_which_the_head_finds_texts(start_model: Path, tmp_path: Path) -> None:
    chosen = config(tmp_path, start_model, pointer=True)
    pointing = load_with_head(chosen)
    compute = ComputeDevice.resolve("cpu", "float32")
    learner = HeadLearner(pointing, compute)
    reader = Reading(pointing, compute, ReadImages(screenshots(), shrink), [], chosen, Ranks(), learner)
    states = reader.text_states()
    assert sorted(states) == sorted(WORDS)
    assert not any(state.requires_grad for state in states.values())
    ((pixels, annotated), *_) = screenshots()
    image = shrink(pixels)
    points = PromptBuilder(preset("tiny")).points(pixels, image)
    builder = QueryBuilder(points, 8, described=True, by_text=True)
    by_place = [question for question in builder.head_questions(annotated) if question.text is None]
    (by_text,) = [question for question in builder.head_questions(annotated) if question.text == "Tiger"]
    questions = [[*by_place[:2], by_text]]
    untaught = {text: state for text, state in states.items() if text != "Tiger"}
    with torch.no_grad():
        (outputs,) = learner._ask([image], questions)
        distance = (outputs[2].pointers_KD[0] - states["Tiger"]).square().mean() / states["Tiger"].square().mean()
        alone = float(learner.loss([image], questions).mean)
        assert float(learner.loss([image], questions, states).mean) == pytest.approx(alone + float(distance), rel=1e-5)
        assert float(learner.loss([image], questions, untaught).mean) == pytest.approx(alone, rel=1e-6)
        of_places = float(learner.loss([image], [by_place[:2]]).mean)
        assert float(learner.loss([image], [by_place[:2]], states).mean) == pytest.approx(of_places, rel=1e-6)


def ticked(x: int, y: int) -> list[A11yElement]:
    """A dialog whose rows are a box and a text."""
    rows = [
        [
            element("table cell", "", x, y + 40 + 32 * i, 60, 30),
            element("table cell", word, x + 60, y + 40 + 32 * i, 150, 30),
        ]
        for i, word in enumerate(WORDS)
    ]
    return [element("dialog", "List", x, y, 250, 200), *(cell for row in rows for cell in row)]


def test_a_text_that_names_the_box_beside_it_is_cut_out_with_the_box() -> None:
    elements = ticked(100, 60)
    found = find_texts(draw(elements), screen(elements))
    assert [text.click_box for text in found] == [(100, 100 + 32 * i, 160, 130 + 32 * i) for i in range(len(WORDS))]
    dialogs = [ticked(40 + 20 * number, 10 * number) for number in range(MIN_CUTTINGS)]
    writer = PageWriter((draw(one), find_texts(draw(one), screen(one))) for one in dialogs)
    page, texts = writer.write(Random(3))
    for text in texts:
        assert text.click_box is not None
        x0, y0, x1, y1 = text.click_box
        assert (x1 - x0, y1 - y0) == (60, 30)
        assert x1 < text.box[0] < x1 + 12
        assert y0 < text.box[1] < text.box[3] < y1
        assert len(np.unique(page[y0:y1, x0:x1].reshape(-1, 3), axis=0)) == 1, "the box is empty and whole"
    image = ReadImage(page, texts, (640, 400), is_page=True)
    (part, *_) = image.named_elements({texts[0].text: ["Tick it."]}, Random(0))
    assert (part.element.x, part.element.y, part.element.w, part.element.h) == (*texts[0].click_box[:2], 60, 30)


def test_a_text_of_two_boxes_names_none_of_them() -> None:
    once, twice = ticked(20, 10), [*ticked(20, 10), *ticked(320, 10)]
    assert all(text.click_box for text in find_texts(draw(once), screen(once)))
    assert not any(text.click_box for text in find_texts(draw(twice), screen(twice)))


def test_the_tower_changes_slowly_once_it_reads(
    tmp_path: Path, start_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path / "screens", 14)
    chosen = config(tmp_path, start_model)
    trainer = _WarmStartTrainer(chosen, load_model(str(start_model)), lambda line: None)
    assert {group["rate_share"] for group in trainer.optimizer.param_groups} == {1.0}
    trainer._learn_to_read()
    tower = {id(parameter) for parameter in trainer.model.model.visual.parameters()}
    for group in trainer.optimizer.param_groups:
        assert {id(one) in tower for one in group["params"]} == {group["rate_share"] == SLOW_RATE}
    set_rate(trainer.optimizer, 0.5, 0, 0.0, chosen)
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {0.5, 0.5 * SLOW_RATE}


def test_some_images_are_screens_whose_windows_and_texts_are_moved_together() -> None:
    images = ReadImages(screenshots(), lambda pixels: pixels)
    random = Random(5)
    drawn = [images.draw(random) for _ in range(60)]
    of_screens = [one for one in drawn if not one.is_page]
    assert all([text.text for text in one.texts] == list(WORDS) for one in of_screens)
    assert 8 <= len(of_screens) <= 24
    assert len({one.texts[0].box for one in of_screens}) > 5
    for one in of_screens:
        x0, y0, x1, y1 = one.texts[1].box
        assert one.image[y0:y1, x0:x1].min() < 100, "the black ink is not where the text is said to be"


def test_reading_trains_the_vision_tower_and_the_words_of_texts_alone(loaded: LoadedModel, tmp_path: Path) -> None:
    chosen = config(tmp_path, tmp_path, pages=240, report_every_pages=80, batch_size=8, pages_learning_rate=3e-3)
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    lines: list[Any] = []
    reading(loaded, chosen).learn(SYSTEM_CLOCK, lines.append, UnfinishedWarmStart(chosen))
    assert [(line["kind"], line["pages"]) for line in lines] == [("reading", n) for n in (80, 160, 240)]
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.4
    assert all(0 <= line["reading_accuracy"] <= 1 for line in lines)
    after = loaded.model.state_dict()
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert "model.visual.patch_embed.proj.weight" in changed
    embedding = "model.language_model.embed_tokens.weight"
    assert {name for name in changed if not name.startswith("model.visual.")} == {embedding}
    alike_V = torch.nn.functional.cosine_similarity(after[embedding], before[embedding])
    turned = {
        loaded.processor.tokenizer.decode([token]).strip()
        for token in torch.nonzero((alike_V < 0.9999) & before[embedding].any(dim=1)).flatten()
    }
    assert turned == set(WORDS), "words that no page shows keep their directions"


def test_texts_are_scored_by_the_embeddings_of_their_tokens() -> None:
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(5, 8)
    scores = TextScores(embedding, [[2], [1, 4]], places=3)
    features_BND = torch.randn(2, 6, 8)
    logits_BNPW = scores.score(features_BND)
    assert logits_BNPW.shape == (2, 6, 3, 2)
    maps, scale, bias_PW = scores.parameters()
    assert torch.equal(bias_PW, torch.full((3, 2), NO_TEXT_LOGIT))
    text = (embedding.weight[1] + embedding.weight[4]) / 2
    mapped = maps[2 * 8 : 3 * 8] @ features_BND[1, 5]
    wanted = scale * (mapped @ text) / text.norm() * 8**0.5 + NO_TEXT_LOGIT
    assert logits_BNPW[1, 5, 2, 1].item() == pytest.approx(wanted.item(), abs=1e-5)
    logits_BNPW[..., 1].sum().backward()
    assert embedding.weight.grad is not None
    assert torch.nonzero(embedding.weight.grad.abs().sum(dim=1)).flatten().tolist() == [1, 4]


def test_a_page_is_asked_for_the_texts_on_it_that_instructions_name() -> None:
    texts = [
        PlacedText("Tiger", (300, 200, 360, 220)),
        PlacedText("Chair", (600, 2, 638, 20)),
        PlacedText("Which one?", (10, 300, 100, 320)),
    ]
    sentences = {"Moon": ["Press Moon."], "Tiger": ["Choose Tiger.", "Press Tiger."], "Chair": ["Press Chair."]}
    blank = np.zeros((160, 256, 3), np.uint8)
    assert ReadImage(blank, texts, (640, 400), is_page=False).named_elements(sentences, Random(0)) == []
    page = ReadImage(blank, texts, (640, 400), is_page=True)
    asked = [page.named_elements(sentences, Random(seed)) for seed in range(8)]
    assert {parts[0].sentence for parts in asked} == {"Choose Tiger.", "Press Tiger."}
    tiger, chair = asked[0]
    assert (tiger.name, tiger.by_text) == ("Tiger", True)
    near = AROUND_TEXT_PX
    found = tiger.element
    assert (found.x, found.y, found.w, found.h) == (300 - near, 200 - near, 60 + 2 * near, 20 + 2 * near)
    assert (chair.element.y, chair.element.x + chair.element.w) == (0, 640)


@pytest.mark.parametrize("pointer", [False, True])
@pytest.mark.parametrize(
    ("instruction", "lessons"), [("Choose Moon, then press OK.", 2), ("Choose the first row, then press OK.", 1)]
)
def test_a_tower_goes_on_reading_and_the_policy_is_asked_for_what_has_to_be_read(
    pointer: bool,
    instruction: str,
    lessons: int,
    tmp_path: Path,
    start_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store(tmp_path / "screens", 14, instruction=instruction)
    given: list[tuple[int, bool]] = []
    page_losses = _WarmStartTrainer._page_losses

    def noted(self: _WarmStartTrainer, reading: Reading) -> Any:
        found = page_losses(self, reading)
        given.append((len(found), all(loss.requires_grad and torch.isfinite(loss) for loss in found)))
        return found

    monkeypatch.setattr(_WarmStartTrainer, "_page_losses", noted)
    warm_start(config(tmp_path, start_model, pointer=pointer, images=16, batch_size=8))
    assert given == [(lessons + pointer, True)] * 2


def store(
    directory: Path, count: int, *, words: bool = True, instruction: str = "Choose the first row, then press OK."
) -> None:
    """Annotated screens."""
    directory.mkdir()
    random = Random(0)
    for number in range(count):
        elements = dialog(random.randint(0, 390), random.randint(0, 200))
        name = f"{number:064d}"
        Image.fromarray(draw(elements, words=words)).save(directory / f"{name}.png")
        record = {
            "task_id": TASKS[number], "instruction": instruction, "step": 0, "resolution": [640, 400],
            "elements": [one.model_dump() for one in elements],
            "action": {"type": "click", "x": elements[1].x + 5, "y": elements[1].y + 5},
        }  # fmt: skip
        (directory / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")


def test_a_warm_start_reads_pages_before_its_images(tmp_path: Path, start_model: Path) -> None:
    store(tmp_path / "screens", 14)
    warm_start(config(tmp_path, start_model))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(line["kind"], line.get("pages", line.get("images"))) for line in lines] == [
        ("reading", 12),
        ("reading", 24),
        ("warmup", 8),
    ]
    assert (tmp_path / "warm" / "config.json").exists()


def test_reading_ends_when_its_minutes_are_used_up(tmp_path: Path, start_model: Path) -> None:
    store(tmp_path / "screens", 14)
    warm_start(config(tmp_path, start_model, pages=100_000, pages_max_minutes=1e-4))
    first = json.loads((tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert (first["kind"], first["pages"]) == ("reading", 4)


def test_screens_without_texts_are_refused(tmp_path: Path, start_model: Path) -> None:
    store(tmp_path / "screens", 14, words=False)
    with pytest.raises(ScreenError, match=r"warmup\.pages: no text is on enough screens"):
        warm_start(config(tmp_path, start_model))
