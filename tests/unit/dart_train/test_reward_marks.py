"""Where rewards came from is told, sources are never mixed, and success is one rule."""

from __future__ import annotations

from typing import Any

import pytest

from dart_agent.data_client.wire import EpisodeResult
from dart_agent.types import RewardKind
from dart_envs.types import EndReason
from dart_train.config import Recipe, RecipeError
from dart_train.curation.group_filter import uninformative_reason
from dart_train.curation.rollout_budget import RolloutBudgetSettings, rollout_budget
from dart_train.evaluation.comparison import compare_seeds
from dart_train.evaluation.during_training import describe_evaluation
from dart_train.evaluation.export import evaluation_lines
from dart_train.evaluation.results import TRAINED, result_rows
from dart_train.evaluation.reward_marks import MixedRewardsError, describe_rewards, reward_notes, single_source
from dart_train.report.pass_at_k import mean_pass_at_k
from dart_train.scheduling.outcomes import Outcomes

JUDGE = {"reward_source": "judge", "reward_by": "judge-1", "success_at": 1.0}


def episode(number: int, reward: float, source: RewardKind = RewardKind.EVALUATOR) -> EpisodeResult:
    return EpisodeResult(
        task_id=f"s/a/{number:04d}", family="a", repeat=0, rollout_id=f"r{number}", reward=reward, end=EndReason.DONE,
        steps=1, duration_s=1.0, version_min=1, version_max=1, reward_source=source,
    )  # fmt: skip


def result_of(source: str, **conditions: Any) -> dict[str, Any]:
    success = {"value": 0.5, "lower": 0.4, "upper": 0.6, "count": 9}
    rows = [{"name": TRAINED, "episodes": 9, "success": success}]
    return {"source": source, "version": 1, "split": "test", "conditions": {"max_steps": 3} | conditions, "rows": rows}


def test_judged_and_evaluated_episodes_are_never_one_figure() -> None:
    mixed = [episode(1, 1.0), episode(2, 1.0, RewardKind.JUDGE)]
    assert single_source(mixed[:1], "x") is RewardKind.EVALUATOR
    with pytest.raises(MixedRewardsError, match="judged by evaluator and by judge"):
        single_source(mixed, "the evaluation")
    with pytest.raises(MixedRewardsError):
        describe_evaluation(mixed)
    found = describe_evaluation(mixed[1:])
    assert found is not None
    assert found["reward_source"] == "judge"


def test_seeds_are_compared_under_one_source_and_older_results_are_evaluators() -> None:
    assert compare_seeds([result_of("a"), result_of("b", reward_source="evaluator", reward_by=None, success_at=1.0)])
    with pytest.raises(RecipeError, match="reward_source judge and evaluator"):
        compare_seeds([result_of("a"), result_of("b", **JUDGE)])
    with pytest.raises(RecipeError, match="reward_by judge-2 and judge-1"):
        compare_seeds([result_of("a", **JUDGE), result_of("b", **JUDGE | {"reward_by": "judge-2"})])


def test_the_model_card_tells_what_judged() -> None:
    judged, plain = evaluation_lines([result_of("a", **JUDGE), result_of("b")])
    assert judged.endswith("| judged by the judge model judge-1, not by evaluators |")
    assert plain.endswith("|  |")
    assert describe_rewards({"reward_source": "checkpoints", "success_at": 0.5}) == (
        "judged by partial credit of checkpoints; success from a reward of 0.5"
    )


def test_a_report_says_where_rewards_of_training_and_evaluation_come_from() -> None:
    given = {
        "run": {"name": "r"}, "tasks": {"families": ["press_nth"]}, "model": {"preset": "tiny"},
        "reward": {"source": "judge", "judge": {"base_url": "http://127.0.0.1:1/v1", "model": "judge-1"}},
    }  # fmt: skip
    recipe = Recipe.model_validate(given)
    assert reward_notes(recipe.reward) == ["Training: judged by the judge model judge-1, not by evaluators."]
    assert reward_notes(Recipe.model_validate({**given, "reward": {}}).reward) == []


@pytest.mark.parametrize(("success_at", "successes"), [(1.0, 1), (0.5, 2)])
def test_success_is_one_rule_in_curation_and_evaluation(success_at: float, successes: int) -> None:
    rewards = [1.0, 0.5, 0.25, 0.0]
    outcomes = Outcomes(8, success_at)
    for number, reward in enumerate(rewards):
        outcomes.add("s/a/0001", reward, number + 1)
    assert outcomes.families["a"].success_rate(8) == successes / 4
    assert list(outcomes.families["a"].success_lengths) == [1, 2][:successes]
    assert mean_pass_at_k([rewards], 1, success_at) == successes / 4
    episodes = [episode(number, reward) for number, reward in enumerate(rewards)]
    row, *_ = result_rows(episodes, trained_families=["a"], infeasible=[], success_at=success_at)
    assert (row.success.value, row.mean_reward) == (successes / 4, 0.4375)
    found = describe_evaluation(episodes, success_at)
    assert found is not None
    assert found["success"] == successes / 4
    budget = RolloutBudgetSettings(enabled=True)
    assert rollout_budget(4, [0.5] * 4, budget, success_at) == (4 if success_at == 1.0 else 2)
    assert uninformative_reason([0.5, 0.5], 2, success_at) == ("all_failed" if success_at == 1.0 else "all_succeeded")
