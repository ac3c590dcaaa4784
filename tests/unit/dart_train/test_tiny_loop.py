"""The plain-file loop: what it samples is what it scores, and a rewarded answer becomes likelier."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dart_train.model.init_model import init_model
from dart_train.model.policy_model import load_model, token_logprobs

torch = pytest.importorskip("torch")


class FakeDesktopEnv:
    """Stands for a desktop: blank screens, over after two actions, the second of which is rewarded."""

    def __init__(self) -> None:
        self.seen = {"screenshot": np.full((400, 640, 3), 200, np.uint8), "instruction": "Press the first button."}
        self.tasks: list[str] = []
        self.steps = 0

    def reset(self, *, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        self.tasks.append(options["task"])
        self.steps = 0
        return self.seen, {}

    def step(self, action: object) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.seen, float(self.steps == 2), False, self.steps == 2, {}


@pytest.fixture(scope="module")
def tiny_loop() -> Any:
    from dart_train.recipes import tiny_loop

    return tiny_loop


def test_a_rewarded_answer_becomes_likelier(tiny_loop: Any, tmp_path: Path) -> None:
    torch.manual_seed(1)
    policy = load_model(init_model("tiny", tmp_path / "model", seed=5))
    desk = FakeDesktopEnv()
    reward, samples = tiny_loop.rollout(desk, policy, "basics/press_nth/0001", 1.0)
    assert (reward, len(samples), desk.tasks) == (1.0, 2, ["basics/press_nth/0001"])
    assert all(1 <= len(sample.answer_ids) <= tiny_loop.MAX_TOKENS for sample in samples)

    def likelihood() -> list[float]:
        policy.model.eval()
        with torch.no_grad():
            logprobs_BT, _ = token_logprobs(policy.model, tiny_loop.batch_of(policy, samples), 1.0)
        return [float(row.sum()) for row in logprobs_BT]

    before = likelihood()
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.05)
    assert tiny_loop.learn(policy, optimizer, samples, [0.0, 0.0], 1.0) == 0.0
    assert likelihood() == before
    tiny_loop.learn(policy, optimizer, samples, [1.0, -1.0], 1.0)
    after = likelihood()
    assert after[0] - before[0] > after[1] - before[1]


def test_its_families_are_those_of_the_demo(tiny_loop: Any) -> None:
    from dart_train.config import load_recipe

    recipe = load_recipe(Path(tiny_loop.__file__).with_name("demo.toml"))
    assert recipe.tasks.families == tiny_loop.FAMILIES
    assert recipe.rollout.max_tokens == tiny_loop.MAX_TOKENS
