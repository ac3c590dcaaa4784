"""Values and gradients of the losses against references in float64, which are written out token by token."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from dart_agent.grounding.answers import POINTER_END, answer_text  # noqa: E402
from dart_agent.grounding.forward import QuestionOutput  # noqa: E402
from dart_agent.grounding.head import ActionHead  # noqa: E402
from dart_agent.grounding.labels import PatchGrid, offset_targets, token_targets  # noqa: E402
from dart_agent.grounding.packing import PackedQuestions, Question, pack  # noqa: E402
from dart_agent.grounding.samples import GroundingTarget  # noqa: E402
from dart_agent.grounding.verifier import verifier_answer, verifier_question  # noqa: E402
from dart_train.grounding.losses import judgement_loss, language_loss, offset_loss  # noqa: E402
from tests.unit.dart_agent.grounding_models import relative_error, screen, small_model  # noqa: E402

MOST = 1e-10
"""Relative error; a loss that is computed in float32 has 1e-8 to 1e-7."""


def cross_entropy(
    hidden_BTD: Any, weight_VD: Any, predicted: list[tuple[int, int, int]]
) -> tuple[float, np.ndarray, np.ndarray]:
    """The mean of -log p of tokens, with its gradients by states and output embeddings.

    predicted: (row, position of the state, token that follows it).
    """
    hidden, weight = hidden_BTD.detach().numpy(), weight_VD.detach().numpy()
    loss, by_hidden, by_weight = 0.0, np.zeros_like(hidden), np.zeros_like(weight)
    for row, position, token in predicted:
        logits = weight @ hidden[row, position]
        logits = logits - logits.max()
        logprobs = logits - math.log(math.fsum(np.exp(logits)))
        loss -= logprobs[token] / len(predicted)
        by_logits = np.exp(logprobs)
        by_logits[token] -= 1
        by_hidden[row, position] += by_logits @ weight / len(predicted)
        by_weight += np.outer(by_logits, hidden[row, position]) / len(predicted)
    return loss, by_hidden, by_weight


def check_tokens(loss: Any, model: Any, packed: PackedQuestions, predicted: list[tuple[int, int, int]]) -> None:
    torch.manual_seed(0)
    weight_VD = model.backbone.lm_head.weight
    hidden_BTD = torch.randn(*packed.input_ids_BT.shape, weight_VD.shape[1], dtype=torch.float64, requires_grad=True)
    found = loss(model.backbone, hidden_BTD, packed)
    assert found.dtype == torch.float64
    gradients = torch.autograd.grad(found, [hidden_BTD, weight_VD])
    wanted, *by_hand = cross_entropy(hidden_BTD, weight_VD, predicted)
    assert float(found.detach()) == pytest.approx(wanted, rel=MOST)
    for gradient, one in zip(gradients, by_hand, strict=True):
        assert relative_error(gradient, torch.from_numpy(one)) <= MOST


def test_language_loss_is_the_mean_over_the_tokens_of_all_answers(tmp_path: Path) -> None:
    model = small_model("qwen3_vl", tmp_path)
    model.backbone.double()
    torch.nn.init.normal_(model.backbone.lm_head.weight, std=0.3)
    targets = [[1, 2], [0]]
    asked = [[Question.point("click the button Apple", count) for count in row] for row in targets]
    packed = pack(model, [screen(), screen(64, 64)], asked)
    forced = model.tokenizer.convert_tokens_to_ids(POINTER_END)
    predicted = []
    for row, counts in enumerate(targets):
        for begin, count in zip(packed.decisions[row], counts, strict=True):
            answer = model.tokenizer(answer_text(count), add_special_tokens=False).input_ids
            assert packed.input_ids_BT[row, begin : begin + len(answer)].tolist() == answer
            predicted += [(row, begin + at - 1, token) for at, token in enumerate(answer) if token != forced]
    check_tokens(language_loss, model, packed, predicted)


def test_judgement_loss_is_the_mean_over_the_first_words(tmp_path: Path) -> None:
    model = small_model("qwen2_5_vl", tmp_path)
    model.backbone.double()
    torch.nn.init.normal_(model.backbone.lm_head.weight, std=0.3)
    right = [True, False, True]
    asked = [[Question(verifier_question("click Save"), verifier_answer(one))] for one in right]
    packed = pack(model, [screen(), screen(56, 56), screen(84, 56)], asked)
    words = {one: model.tokenizer(str(one), add_special_tokens=False).input_ids[0] for one in (True, False)}
    predicted = [(row, packed.decisions[row][0], words[one]) for row, one in enumerate(right)]
    check_tokens(judgement_loss, model, packed, predicted)


def test_offset_loss_and_its_gradients_equal_the_formula() -> None:
    torch.manual_seed(0)
    grid, parts = PatchGrid(4, 2, (128, 64)), 2
    head = ActionHead(16, offset_parts=parts).double().eval()
    assert head.offset is not None
    for parameter in head.offset.parameters():
        torch.nn.init.normal_(parameter)
    targets = [GroundingTarget(boxes=(box,)) for box in ((16, 0, 64, 32), (40, 8, 70, 50), (96, 32, 128, 64))]
    labels = torch.from_numpy(token_targets(grid, targets, soft=True))
    offsets = torch.from_numpy(offset_targets(grid, targets, parts))
    context = torch.randn(8, 16, dtype=torch.float64, requires_grad=True)
    pointers = torch.randn(3, 16, dtype=torch.float64, requires_grad=True)
    leaves = [context, pointers, *head.projection_dec.parameters(), *head.offset.parameters()]
    found = offset_loss(head, QuestionOutput(grid, torch.zeros(3, 8), context, pointers), labels, offsets)
    first, second = head.projection_dec[0], head.projection_dec[2]
    wanted = torch.zeros((), dtype=torch.float64)
    for number, pointer in enumerate(pointers):
        inner = first.weight @ pointer + first.bias
        query = second.weight @ (inner * (1 + torch.erf(inner / math.sqrt(2))) / 2) + second.bias
        narrow = head.offset.query.weight @ query
        keys = (head.offset.key.weight @ context.T).T + head.offset.key.bias  # [M, P R]
        scores = torch.stack([(key.reshape(parts**2, -1) * narrow).sum(dim=1) for key in keys]) / math.sqrt(16)
        probabilities = scores.exp() / scores.exp().sum()  # over the parts of all cells
        for cell in range(8):
            for part in range(parts**2):
                p = labels[number, cell] * offsets[number, cell, part]
                if p > 0:
                    wanted = wanted + p * torch.log(p / probabilities[cell, part]) / 3
    assert relative_error(found, wanted) <= MOST
    ours, theirs = torch.autograd.grad(found, leaves), torch.autograd.grad(wanted, leaves)
    assert all(relative_error(one, other) <= MOST for one, other in zip(ours, theirs, strict=True))
    assert all(float(gradient.abs().max()) > 1e-3 for gradient in theirs)
