"""The policy contract on every policy that needs no inference worker. The pool of vLLM workers: tests/integration/test_vllm_workers.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dart_agent.errors import PolicyUnavailableError
from dart_agent.prompts.builder import preset, preset_names
from dart_agent.rollouts.policies import BlankScreenshotPolicy, OraclePolicy, RandomPolicy
from dart_agent.types import Policy
from dart_envs.action_formats import ParsedAnswer
from dart_envs.observations.geometry import PointMap
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_envs.types import Action, ActionType
from tests.contract.policy_contract import check_policy, make_request
from tests.unit.dart_agent.fakes import ScriptedPolicy


class _TwoMoves:
    """A task whose solution is one click and one text."""

    async def resolve_script(self, desktop: object, *, step: int = 0) -> list[_Move]:
        return [_Move(Action(ActionType.CLICK, x=3, y=4)), _Move(Action(ActionType.TYPE, text="a"))][step:]


class _Move:
    def __init__(self, action: Action) -> None:
        self.action = action
        self.target = None


MAKERS: dict[str, tuple[bool, Callable[[], Policy]]] = {
    "scripted": (True, lambda: ScriptedPolicy(["Action: wait()"] * 11)),
    "blank": (True, lambda: BlankScreenshotPolicy(ScriptedPolicy(["Action: wait()"] * 11))),
    "random": (False, lambda: RandomPolicy(preset("tiny"))),
    "oracle": (False, lambda: OraclePolicy(_TwoMoves(), lambda: FakeDesktop((640, 400)), preset("tiny"))),
}


@pytest.mark.parametrize("name", list(MAKERS))
async def test_policy_contract(name: str) -> None:
    samples_tokens, make = MAKERS[name]
    await check_policy(make(), samples_tokens=samples_tokens, name=name)


async def test_the_oracle_plays_its_moves_in_order_and_then_says_that_it_is_done() -> None:
    oracle = OraclePolicy(_TwoMoves(), lambda: FakeDesktop((640, 400)), preset("tiny"))
    texts = [(await oracle.complete(make_request(f"r{index}", step=index))).text for index in range(3)]
    assert texts == ["Action: click(start_box='(1,1)')", "Action: type(content='a')", "Action: finished(content='')"]


@pytest.mark.parametrize("name", preset_names())
async def test_oracle_and_chance_answer_in_the_format_of_the_prompt(name: str) -> None:
    spec = preset(name)
    request = make_request("r0")
    height, width = request.images[-1].shape[:2]
    points = PointMap((width, height), (640, 400), spec.coordinates)
    oracle = OraclePolicy(_TwoMoves(), lambda: FakeDesktop((640, 400)), spec)
    for step, kind in enumerate((ActionType.CLICK, ActionType.TYPE, ActionType.DONE)):
        parsed = spec.parse((await oracle.complete(replace(request, step=step))).text, points, (0, 0))
        assert isinstance(parsed, ParsedAnswer), parsed
        assert isinstance(parsed.action, Action)
        assert parsed.action.type is kind
    chance = RandomPolicy(spec)
    for index in range(10):
        answer = (await chance.complete(make_request(f"r{index}"))).text
        assert isinstance(spec.parse(answer, points, (0, 0)), ParsedAnswer)


async def test_the_oracle_says_when_a_format_has_no_words_for_a_step() -> None:
    class _Hover:
        async def resolve_script(self, desktop: object, *, step: int = 0) -> list[_Move]:
            return [_Move(Action(ActionType.MOVE, x=3, y=4))]

    oracle = OraclePolicy(_Hover(), lambda: FakeDesktop((640, 400)), preset("dart-gui"))
    with pytest.raises(PolicyUnavailableError, match="the prompt dart-gui has no words for this step"):
        await oracle.complete(make_request("r0"))


async def test_the_blank_policy_shows_no_pixel_of_the_screen() -> None:
    inner = ScriptedPolicy(["Action: wait()"])
    await BlankScreenshotPolicy(inner).complete(make_request("r0", grey=7))
    assert {int(value) for image in inner.requests[0].images for value in image.ravel()} == {128}


async def test_chance_repeats_itself_for_the_same_request_only() -> None:
    policy = RandomPolicy(preset("tiny"), done_probability=0.0)
    first = [(await policy.complete(make_request(f"r{index}"))).text for index in range(20)]
    again = [(await policy.complete(make_request(f"r{index}"))).text for index in range(20)]
    assert first == again
    assert len(set(first)) > 10
