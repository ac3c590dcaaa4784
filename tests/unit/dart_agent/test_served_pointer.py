"""The action head of inference workers, without vLLM: rows of batches, what crosses the socket, points that do not depend on the place."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dart_agent.grounding.acting.pointer import Pointer  # noqa: E402
from dart_agent.grounding.acting.served_pointer import ServedPointer  # noqa: E402
from dart_agent.grounding.acting.settings import PointerSettings, check_pointer  # noqa: E402
from dart_agent.grounding.answers import POINTER_PAD  # noqa: E402
from dart_agent.grounding.forward import run_forward  # noqa: E402
from dart_agent.grounding.head import ActionHead  # noqa: E402
from dart_agent.grounding.model import ARCHITECTURES, GroundingModel, has_head  # noqa: E402
from dart_agent.grounding.packing import Question, pack, pointing_ids  # noqa: E402
from dart_agent.grounding.serving.asked_head import ASKS, ATTACH, MAX_ANSWERS, TAKE, AskedHead  # noqa: E402
from dart_agent.grounding.serving.worker import AskedRows, PointerWorker  # noqa: E402
from dart_agent.inference.engine.vllm_plugin import POINTING_MODELS  # noqa: E402
from dart_agent.inference.engine.worker_engine import WorkerEngine  # noqa: E402
from dart_agent.inference.pointer_wire import (  # noqa: E402
    PointAnswer,
    PointRequest,
    ServedLogits,
    decode_point_answer,
    decode_point_request,
    encode_point_answer,
    encode_point_request,
)
from dart_agent.prompts.builder import preset  # noqa: E402
from dart_agent.types import PolicyRequest, SamplingParams  # noqa: E402
from tests.unit.dart_agent.grounding_models import screen, small_model  # noqa: E402
from tests.unit.dart_agent.test_worker_engine import FakeBackend, Publish, publish  # noqa: E402, F401

QUESTIONS = ("click Save", "click the Apple field")


class FakeWorkers:
    """Fake workers: the head in this process, and everything that crosses the socket."""

    def __init__(self, model: GroundingModel) -> None:
        self._model = model

    async def point(self, asked: PointRequest) -> PointAnswer:
        asked = decode_point_request(encode_point_request(asked))
        questions = [Question.point(instruction) for instruction in asked.instructions]
        head = AskedHead(self._model.head)
        with torch.inference_mode():
            found = run_forward(self._model, pack(self._model, [asked.image.copy()], [questions])).questions[0]
        targets = []
        for output in found:
            grid = (output.grid.columns, output.grid.rows)
            # The context is given as it is: `AskedHead` computes it from features, which this forward does not return.
            head._contexts["image"] = output.context_MD
            head.answer("name", "image", grid, lambda: torch.empty(0), output.pointers_KD[0])
            answer = head.take("name")
            assert answer is not None
            targets.append(ServedLogits.of_bytes(*answer))
        return decode_point_answer(encode_point_answer(PointAnswer(3, tuple(targets))))


@pytest.mark.parametrize("parts", [1, 2])
async def test_a_point_does_not_depend_on_where_the_head_runs(tmp_path: Path, parts: int) -> None:
    model = small_model("qwen3_vl", tmp_path, offset_parts=parts)
    messages = ({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Save"}]},)
    for seed, temperature in ((1, 1.0), (2, 0.5), (3, 0.0)):
        sampling = SamplingParams(temperature=temperature, seed=seed, max_tokens=4)
        request = PolicyRequest(messages, (screen(),), sampling, "roll.0")
        here = await Pointer(model, version=2).find(request, QUESTIONS)
        served = await ServedPointer(FakeWorkers(model)).find(request, QUESTIONS)
        places = [[(one.cell, one.part, one.point) for one in found.targets] for found in (served, here)]
        assert places[0] == places[1]
        logprobs = [one.logprob for one in here.targets]
        assert [one.logprob for one in served.targets] == pytest.approx(logprobs, abs=1e-6)
        assert (served.version, here.version) == (3, 2)


def test_a_question_has_the_ids_of_its_packed_row_up_to_the_pointer(tmp_path: Path) -> None:
    model = small_model("qwen3_vl", tmp_path, system="be brief")
    packed = pack(model, [screen()], [[Question.point(QUESTIONS[0])]])
    row = packed.input_ids_BT[0].tolist()
    image = model.backbone.config.image_token_id
    first = row.index(image)
    single = [*row[:first], image, *(token for token in row[first:] if token != image)]
    ids = pointing_ids(model, QUESTIONS[0])
    assert ids == single[: len(ids)]
    assert ids[-1] == model.tokenizer.convert_tokens_to_ids(POINTER_PAD)


class FakeRunner:
    """A fake of vLLM's model runner: requests in rows, each with prompt, computed and scheduled tokens."""

    def __init__(self, rows: list[tuple[str, int, int, int, dict[str, str] | None]], width: int) -> None:
        scheduled = [row[3] for row in rows]
        self.input_batch = SimpleNamespace(
            num_reqs=len(rows), req_ids=[row[0] for row in rows], num_computed_tokens_cpu=[row[2] for row in rows]
        )
        self.query_start_loc = SimpleNamespace(np=np.cumsum([0, *scheduled]))
        data = {"image_grid_thw": SimpleNamespace(data=torch.tensor([[1, 4, 6]]))}
        image = SimpleNamespace(identifier="sha", modality="image", data=data)
        self.requests = {
            name: SimpleNamespace(
                sampling_params=SimpleNamespace(extra_args=extra), num_prompt_tokens=prompt, mm_features=[image]
            )
            for name, prompt, _, _, extra in rows
        }
        # Qwen3-VL's encoder gives the features of other layers behind those of the last one.
        self.encoder_cache = {"sha": torch.randn(6, 3 * width, generator=torch.Generator().manual_seed(0))}


def test_only_questions_whose_prompt_ends_in_the_batch_are_answered_each_from_its_row() -> None:
    torch.manual_seed(0)
    head = ActionHead(16, 2).eval()
    rows: list[tuple[str, int, int, int, dict[str, str] | None]] = [
        ("plan", 8, 0, 8, None),
        ("chunk", 40, 0, 24, {ASKS: "chunk@0"}),
        ("cached", 40, 32, 8, {ASKS: "cached@0"}),
        ("whole", 10, 0, 10, {ASKS: "whole@0"}),
        ("ended", 10, 10, 1, {ASKS: "ended@0"}),
    ]
    config = SimpleNamespace(
        vision_config=SimpleNamespace(spatial_merge_size=2), get_text_config=lambda: SimpleNamespace(hidden_size=16)
    )
    asked = AskedRows(FakeRunner(rows, 16), SimpleNamespace(config=config), AskedHead(head))
    states_RD = torch.randn(5, 16)
    asked.answer(states_RD[:4])  # no batch of these requests: vLLM tries out shapes
    assert asked.head.take("whole@0") is None
    asked.answer(states_RD)
    assert [asked.head.take(f"{name}@0") is not None for name in ("chunk", "cached", "whole", "ended")] == [
        False,
        True,
        True,
        False,
    ]
    asked.answer(states_RD)
    for row in (2, 3):
        found = asked.head.take(str((rows[row][4] or {})[ASKS]))
        assert found is not None
        logits = ServedLogits.of_bytes(*found)
        with torch.no_grad():
            wanted_1M = head(asked._runner.encoder_cache["sha"][:, :16], states_RD[row : row + 1])
        assert (logits.columns, logits.rows) == (3, 2)
        np.testing.assert_allclose(logits.cells_M, wanted_1M[0].numpy(), atol=1e-6)
        assert logits.parts_MP is not None
        assert logits.parts_MP.shape == (6, 4)


def test_answers_that_nobody_fetches_are_bounded_and_new_weights_forget_images() -> None:
    head = AskedHead(ActionHead(16).eval())
    computed: list[int] = []

    def features() -> Any:
        computed.append(1)
        return torch.ones(4, 16)

    for number in range(MAX_ANSWERS + 1):
        head.answer(str(number), "image", (2, 2), features, torch.ones(16))
    assert len(computed) == 1
    assert head.take("0") is None
    assert head.take(str(MAX_ANSWERS)) is not None
    head.forget_images()
    head.answer("again", "image", (2, 2), features, torch.ones(16))
    assert len(computed) == 2


async def test_an_answer_is_asked_for_again_when_new_weights_came_in_between(publish: Publish) -> None:  # noqa: F811
    class PointingBackend(FakeBackend):
        """A fake engine whose answer says the version of its weights; the first question waits."""

        def __init__(self) -> None:
            super().__init__()
            self.asked = 0
            self.begun, self.go = asyncio.Event(), asyncio.Event()

        async def point(self, asked: PointRequest, *, prefix_salt: str) -> tuple[ServedLogits, ...]:
            self.asked += 1
            cells = np.full(1, self.version, "f4")
            self.begun.set()
            await self.go.wait()
            return (ServedLogits(1, 1, 1, cells, None),)

    backend = PointingBackend()
    engine = WorkerEngine(backend)
    asking = asyncio.create_task(engine.point(PointRequest(screen(), ("click Save",), "r.0")))
    await backend.begun.wait()
    published = publish(1)
    await engine.stage(published)
    await engine.swap(published.identity)
    backend.go.set()
    answer = await asking
    assert (answer.version, answer.targets[0].cells_M.tolist(), backend.asked) == (1, [1.0], 2)


def test_a_head_of_workers_needs_workers(tmp_path: Path) -> None:
    check_pointer("vllm", PointerSettings(model="workers"), preset("tiny"))
    with pytest.raises(ValueError, match="policy endpoint has not: name a model"):
        check_pointer("endpoint", PointerSettings(model="workers"), preset("tiny"))
    model = small_model("qwen3_vl", tmp_path)
    model.save(tmp_path / "pointer")
    assert has_head(tmp_path / "pointer")
    assert not has_head(tmp_path / "start")


def test_names_that_processes_agree_on_exist() -> None:
    assert set(POINTING_MODELS) == set(ARCHITECTURES.values())
    assert all(callable(getattr(PointerWorker, name)) for name in (ATTACH, TAKE))


@pytest.mark.parametrize("cut", [2, 30, -1])
def test_a_cut_request_is_refused(cut: int) -> None:
    body = encode_point_request(PointRequest(screen(), QUESTIONS, "r.0"))
    with pytest.raises(ValueError, match="body"):
        decode_point_request(body[:cut])
