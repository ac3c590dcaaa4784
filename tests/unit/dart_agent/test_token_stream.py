"""Token streams: each token is held once, and the full prompts come back exactly."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dart_agent.data_client.payloads import (
    StreamStepPayload,
    TrajectoryPayload,
    steps_digest,
    stream_payloads,
    unpack_ids,
)
from dart_agent.data_client.token_stream import StepSlice, StreamReader, slice_steps
from dart_agent.types import (
    FinishReason,
    Purpose,
    SamplingParams,
    StepRecord,
    StopReason,
    Trajectory,
    VersionSpan,
)


def step(index: int, prompt: tuple[int, ...], answer: tuple[int, ...], images: tuple[str, ...]) -> StepRecord:
    return StepRecord(
        index=index,
        prompt_ids_P=prompt,
        token_ids_T=answer,
        logprobs_T=tuple(-0.5 for _ in answer),
        version_spans=(VersionSpan(0, 0, len(answer)),),
        image_sha256=images,
        image_hw=tuple((28, 56) for _ in images),
        text="hm",
        action=None,
        parse_error=None,
        sampling=SamplingParams(),
        finish_reason=FinishReason.STOP,
        model_s=0.0,
        env_s=0.0,
    )


def episode(turns: int, *, keep: int | None = None, new: int = 40, said: int = 12) -> list[StepRecord]:
    """An episode whose prompts repeat all turns (`keep`: the last ones only), `new` tokens and one image per turn."""
    draw = random.Random(turns)
    pieces: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    steps: list[StepRecord] = []
    for index in range(turns):
        first = 0 if keep is None else max(0, index - keep + 1)
        asked = tuple(draw.randrange(100) for _ in range(new))
        answer = tuple(draw.randrange(100) for _ in range(said))
        prompt = tuple(token for part in pieces[first:] for piece in part for token in piece) + asked
        images = tuple(f"{number:064x}" for number in range(first, index + 1))
        steps.append(step(index, prompt, answer, images))
        pieces.append((asked, answer))
    return steps


def trajectory(steps: list[StepRecord]) -> Trajectory:
    return Trajectory(
        "roll", "grp", "s/f/1", Purpose.TRAIN, "train", tuple(steps), 1.0, StopReason.DONE, None, 0.0, 1.0, {}
    )  # fmt: skip


@pytest.mark.parametrize("keep", [None, 1, 3])
@pytest.mark.parametrize("turns", [1, 2, 10])
def test_full_prompts_come_back_exactly(turns: int, keep: int | None) -> None:
    steps = episode(turns, keep=keep)
    reader = StreamReader()
    for original, cut in zip(steps, slice_steps(steps), strict=True):
        prompt, hashes, sizes = reader.read(original.index, cut, original.token_ids_T)
        assert (prompt, hashes, sizes) == (original.prompt_ids_P, original.image_sha256, original.image_hw)
    assert TrajectoryPayload.from_value(trajectory(steps)).to_value() == trajectory(steps)


def test_ten_turns_hold_each_token_and_each_image_once() -> None:
    for turns in (10, 20):
        rows = stream_payloads(episode(turns))
        assert {row.segment for row in rows} == {0}
        assert sum(len(unpack_ids(row.prompt_new)) + len(unpack_ids(row.token_ids)) for row in rows) == turns * 52
        assert sum(len(row.image_sha256_new) for row in rows) == turns


def test_what_is_dropped_from_a_prompt_begins_a_segment() -> None:
    slices = slice_steps(episode(6, keep=3))
    assert [cut.segment for cut in slices] == [0, 0, 0, 3, 4, 5]
    assert slices[2] == StepSlice(0, 2 * 52 + 40, 3 * 52, slices[2].prompt_new, (f"{2:064x}",), ((28, 56),))


def test_an_answer_that_was_tokenised_again_begins_a_segment() -> None:
    first, second = episode(2)
    changed = replace(
        second, prompt_ids_P=(*first.prompt_ids_P, *first.token_ids_T[:-1], 999, *second.prompt_ids_P[52:])
    )
    assert [cut.segment for cut in slice_steps([first, changed])] == [0, 1]
    other_image = replace(second, image_sha256=(f"{9:064x}", second.image_sha256[1]))
    assert [cut.segment for cut in slice_steps([first, other_image])] == [0, 1]


def test_a_slice_that_does_not_follow_is_refused() -> None:
    slices, steps = slice_steps(episode(3)), episode(3)
    reader = StreamReader()
    with pytest.raises(ValueError, match="continues segment 0"):
        reader.read(1, slices[1], steps[1].token_ids_T)
    reader.read(0, slices[0], steps[0].token_ids_T)
    with pytest.raises(ValueError, match="its tokens are at"):
        reader.read(1, slices[1], steps[1].token_ids_T[:-1])


def test_a_report_leaves_out_what_is_stored_and_says_what_that_is() -> None:
    steps = episode(3)
    rest = TrajectoryPayload.from_value(trajectory(steps), 2)
    assert ([row.index for row in rest.steps], rest.n_steps) == ([2], 3)
    ids = [b"".join(token.to_bytes(4, "little") for token in one.token_ids_T) for one in steps]
    assert rest.stored_digest == steps_digest(ids[:2])
    assert steps_digest(ids[:2]) != steps_digest([ids[0] + ids[1]])
    assert StreamStepPayload.model_validate_json(rest.steps[0].model_dump_json()) == rest.steps[0]
