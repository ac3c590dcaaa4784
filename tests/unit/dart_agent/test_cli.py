"""The command line's mistakes, fixed lists of work, and annotated screens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from dart_agent.cli import _pointer_device, app
from dart_agent.rollouts.annotated_screens import AnnotatedScreenWriter
from dart_agent.rollouts.episode import ObservedStep
from dart_agent.rollouts.local import RolloutPlan
from dart_agent.rollouts.work_sources import MAX_ATTEMPTS, InMemoryWorkSource
from dart_envs.hashing import image_sha256
from dart_envs.observations.annotated_screens import annotations_of, image_of
from dart_envs.types import Action, ActionType, Observation
from dart_server.wire import A11yElement
from tests.unit.dart_agent.fakes import item

ENDPOINT = [
    "rollout",
    "basics/press_button/0001",
    "--policy",
    "endpoint",
    "--base-url",
    "http://h/v1",
    "--model-name",
    "m",
]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rollout", "nosuch/task"], "There is no suite 'nosuch'"),
        (["rollout", "basics/press_button/0001", "--policy", "vllm"], "needs either --model or --addresses"),
        (["rollout", "basics/press_button/0001", "--policy", "endpoint"], "needs --base-url and --model-name"),
        (["rollout", "basics/press_button/0001", "--model", "m"], "give --policy vllm"),
        (["rollout", "basics/press_button/0001", "--addresses", "workers.json"], "give --policy vllm"),
        (["rollout", "basics/press_button/0001", "--base-url", "http://h/v1"], "are for --policy endpoint"),
        (["rollout", "basics/press_button/0001", "--api", "messages"], "are for --policy endpoint"),
        (
            [*ENDPOINT, "--api", "responses", "--computer-tool", "computer_20251124"],
            "there are computer, computer_use_preview",
        ),
        ([*ENDPOINT, "--api", "responses", "--computer-tool", "computer"], "choose the prompt openai-computer"),
        (
            [
                "rollout",
                "basics/press_button/0001",
                "--policy",
                "endpoint",
                "--base-url",
                "http://h/v1",
                "--model-name",
                "m",
                "--api-key-variable",
                "NO_SUCH_VARIABLE",
            ],
            "NO_SUCH_VARIABLE is not set",
        ),
        (
            ["rollout", "basics/press_button/0001", "--policy", "vllm", "--model", "/nosuch"],
            "there is no folder /nosuch",
        ),
        (["rollout", "basics/press_button/0001", "--resolution", "640"], "WIDTHxHEIGHT"),
        (["rollout", "basics/press_button/0001", "--pointer-device", "cpu"], "are for --pointer MODEL"),
        ([*ENDPOINT, "--pointer", "workers", "--pointer-threads", "2"], "are for --pointer MODEL"),
        ([*ENDPOINT, "--pointer", "m", "--pointer-device", "nosuch"], "--pointer-device nosuch cannot be used"),
        (["rollout", "basics/press_button/0001", "--pointer", "m"], "policy oracle describes no targets"),
        (["rollout", "basics/press_button/0001", "--resolution", "16x9"], "64×64"),
        (["serve", "/nosuch"], "there is no folder /nosuch"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_a_family_is_expanded_and_played_on_its_own_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[RolloutPlan] = []

    async def record(plan: RolloutPlan, _places: object, _ended: object) -> dict[str, str]:
        plans.append(plan)
        return {}

    monkeypatch.setattr("dart_agent.rollouts.local.run_rollouts", record)
    result = CliRunner().invoke(app, ["rollout", "office/calc_enter"])
    assert result.exit_code == 0, result.output
    assert len(plans[0].tasks) > 1
    assert {task.rpartition("/")[0] for task in plans[0].tasks} == {"office/calc_enter"}
    assert (plans[0].image, plans[0].resolution, plans[0].font_size) == ("desktop", (1920, 1080), None)


@pytest.mark.parametrize(
    ("options", "gpu", "wanted"),
    [
        ([], False, ("cpu", 1)),
        ([], True, ("cuda", 1)),
        (["--pointer-device", "auto", "--pointer-threads", "3"], True, ("cuda", 3)),
        (["--pointer-device", "cpu"], True, ("cpu", 1)),
    ],
)
def test_device_and_threads_of_the_pointer_are_chosen(
    options: list[str], gpu: bool, wanted: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    plans: list[RolloutPlan] = []

    async def record(plan: RolloutPlan, _places: object, _ended: object) -> dict[str, str]:
        plans.append(plan)
        return {}

    monkeypatch.setattr("dart_agent.rollouts.local.run_rollouts", record)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    result = CliRunner().invoke(app, [*ENDPOINT, "--pointer", "models/pointer", *options])
    assert result.exit_code == 0, result.output
    (plan,) = plans
    assert plan.pointer is not None
    assert (plan.pointer.model, plan.pointer.device, plan.pointer.threads) == ("models/pointer", *wanted)


def test_the_pointer_leaves_the_gpu_to_a_worker_that_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert _pointer_device("auto", beside_worker=True) == "cpu"
    assert _pointer_device("auto", beside_worker=False) == "cuda"


async def test_a_rollout_that_never_begins_is_given_up_after_a_few_tries() -> None:
    source = InMemoryWorkSource([item("roll_0")])
    for _ in range(MAX_ATTEMPTS):
        assert not source.finished.is_set()
        claimed = await source.acquire("w")
        assert claimed is not None
        await source.abandon(claimed, "no desktop")
    assert source.finished.is_set()
    assert source.failed == {"roll_0": "no desktop"}


def test_annotated_screens_carry_the_screen_the_elements_and_the_action(tmp_path: Path) -> None:
    screen = np.random.default_rng(0).integers(0, 255, (40, 64, 3), dtype=np.uint8)
    elements = (A11yElement(role="push button", name="OK", text="", x=1, y=2, w=3, h=4),)
    seen = ObservedStep(1, Observation(screen, "Click OK", elements), Action(ActionType.CLICK, x=2, y=3))
    asyncio.run(AnnotatedScreenWriter(tmp_path).write("toy/click/0000", seen))
    sha256 = image_sha256(screen)
    image = tmp_path / f"{sha256}.png"
    (annotation,) = annotations_of(image)
    assert set(tmp_path.iterdir()) == {image, annotation}
    assert image_of(annotation) == image
    with Image.open(tmp_path / f"{sha256}.png") as picture:
        assert np.array_equal(np.asarray(picture), screen)
    record = json.loads(annotation.read_text())
    assert record["resolution"] == [64, 40]
    assert record["step"] == 1
    assert record["elements"][0]["name"] == "OK"
    assert record["action"] == {"type": "click", "x": 2, "y": 3}


def test_steps_that_look_alike_are_all_kept(tmp_path: Path) -> None:
    """A click into an entry that has the focus changes nothing: both steps of it have the same image."""
    screen = np.zeros((40, 64, 3), np.uint8)
    for step, action in enumerate((Action(ActionType.CLICK, x=2, y=3), Action(ActionType.TYPE, text="Apple"))):
        seen = ObservedStep(step, Observation(screen, "Write Apple", ()), action)
        asyncio.run(AnnotatedScreenWriter(tmp_path).write("basics/fill_form/0000", seen))
    records = [json.loads(path.read_text()) for path in annotations_of(tmp_path / f"{image_sha256(screen)}.png")]
    assert {record["step"]: record["action"]["type"] for record in records} == {0: "click", 1: "type"}


async def test_a_screen_without_its_elements_is_a_defect(tmp_path: Path) -> None:
    seen = ObservedStep(0, Observation(np.zeros((4, 4, 3), np.uint8), "Click OK"), None)
    with pytest.raises(ValueError, match="accessibility tree"):
        await AnnotatedScreenWriter(tmp_path).write("toy/click/0000", seen)
