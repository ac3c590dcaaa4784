"""Log-probs of points, and answers to many questions."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from dart_agent.grounding.acting.pointer import Pointer  # noqa: E402
from dart_agent.grounding.forward import run_forward  # noqa: E402
from dart_agent.grounding.grounder import Grounder  # noqa: E402
from dart_agent.grounding.packing import Question, pack  # noqa: E402
from dart_agent.grounding.pointing import PointChoice, PointDistribution  # noqa: E402
from tests.unit.dart_agent.grounding_answers import GRID, random_output  # noqa: E402
from tests.unit.dart_agent.grounding_models import screen, small_model  # noqa: E402


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


def test_the_choice_without_a_draw_is_the_middle_of_a_broad_distribution() -> None:
    """The likeliest part alone would be the one at the edge, by a little."""
    parts_MP = torch.zeros(8, 16)
    parts_MP[5] = torch.tensor([0.01, 0.1, 0.11, 0.1] * 4).log()
    parts_MP[5, 11] = parts_MP[5].max() + 0.1
    cells_M = torch.full((8,), -20.0)
    cells_M[5] = 0
    distribution = PointDistribution(GRID, cells_M, parts=4, part_logits=parts_MP.__getitem__)
    assert distribution.best() == PointChoice(5, 10)


def test_the_choice_without_a_draw_lies_between_cells_that_share_a_target() -> None:
    cells_M = torch.full((8,), -20.0)
    cells_M[4:7] = torch.tensor([1.0, 1.2, 1.1])
    assert PointDistribution(GRID, cells_M).best() == PointChoice(5, 0)
    parts_MP = torch.full((8, 4), -20.0)
    cells_M[6] = -20
    parts_MP[4, [1, 3]], parts_MP[5, [0, 2]] = 0.0, 0.0
    assert PointDistribution(GRID, cells_M, parts=2, part_logits=parts_MP.__getitem__).best() in {
        PointChoice(4, 3),
        PointChoice(5, 2),
    }


def test_a_policy_at_temperature_0_points_where_the_grounder_does(tmp_path: Path) -> None:
    model, picture, asked = small_model("qwen3_vl", tmp_path, offset_parts=4), screen(128, 64), "click the button Apple"
    (answer,) = Grounder(model).ask(picture, [asked])
    (pointed,) = Pointer(model).point(picture, [asked], temperature=0, seed=0)
    width, height = (side / 4 for side in answer.grid.cell_wh)
    assert abs(pointed.point[0] - answer.points[0][0]) <= width / 2
    assert abs(pointed.point[1] - answer.points[0][1]) <= height / 2


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
