"""The losses of a grounding model.

Role: pure functions of tensors. Rule (GUI-Actor, appendix B): the attention's loss is KL(p || a), summed over visual tokens and averaged
over the pointer tokens of a question, then over questions; an exact attention has the loss 0. The scores of the parts of cells have the
same loss over the parts of all cells together: a part is told from those of every other cell, and not only from its neighbours. The
language model's loss is the mean cross-entropy of the answers' tokens.
Non-goals: labels (`dart_agent.grounding.labels`), weights of the losses (`dart_train.grounding.config`).
Axes: K pointer tokens, M visual tokens, P parts of a cell, B images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dart_agent.grounding.forward import QuestionOutput
from dart_agent.grounding.head import ActionHead
from dart_agent.grounding.packing import NO_LABEL, PackedQuestions


def attention_loss(logits_KM: Tensor, targets_KM: Tensor) -> Tensor:
    """KL divergence from the target distributions to the attention.

    Args:
        logits_KM: Logits of the attention.
        targets_KM: `dart_agent.grounding.labels.token_targets`.

    Returns:
        Nats, averaged over the pointer tokens; a scalar.
    """
    return attention_divergences(logits_KM, targets_KM).mean()


def attention_divergences(logits_KM: Tensor, targets_KM: Tensor) -> Tensor:
    """KL divergence from the target distribution of each pointer token to its attention.

    Args:
        logits_KM: Logits of the attention.
        targets_KM: `dart_agent.grounding.labels.token_targets`.

    Returns:
        Nats [K].
    """
    log_attention_KM = F.log_softmax(logits_KM, dim=-1)
    return (torch.xlogy(targets_KM, targets_KM) - targets_KM * log_attention_KM).sum(dim=-1)


def offset_loss(head: ActionHead, output: QuestionOutput, targets_KM: Tensor, offsets_KMP: Tensor) -> Tensor:
    """KL divergence from the distribution of the target over the parts of all cells to the softmax of their scores.

    Args:
        head: A head with offsets.
        output: What the head said.
        targets_KM: Label of each cell.
        offsets_KMP: `dart_agent.grounding.labels.offset_targets`.

    Returns:
        Nats, averaged over the pointer tokens; a scalar.
    """
    image_K = torch.zeros(len(targets_KM), dtype=torch.long, device=targets_KM.device)
    return offset_divergences(
        head, output.context_MD[None], output.pointers_KD, image_K, targets_KM, offsets_KMP
    ).mean()


def offset_divergences(
    head: ActionHead, context_BMD: Tensor, pointers_KD: Tensor, image_K: Tensor, targets_KM: Tensor, offsets_KMP: Tensor
) -> Tensor:
    """The divergence of `offset_loss` for each pointer token of several images of one size.

    Args:
        head: A head with offsets.
        context_BMD: The visual tokens of each image as the head sees them.
        pointers_KD: Hidden states of the pointer tokens.
        image_K: Index of the image that each of them points at, ascending.
        targets_KM: Label of each cell.
        offsets_KMP: `dart_agent.grounding.labels.offset_targets`.

    Returns:
        Nats [K].

    Raises:
        ValueError: The head has no offsets.
    """
    found = []
    for image, context_MD in enumerate(context_BMD):
        of_image_K = image_K == image
        if of_image_K.any():
            logits_KMP = head.all_offset_logits(context_MD, pointers_KD[of_image_K])
            wanted_KMP = targets_KM[of_image_K][:, :, None] * offsets_KMP[of_image_K]
            found.append(attention_divergences(logits_KMP.flatten(1), wanted_KMP.flatten(1)))
    return torch.cat(found)


def language_loss(backbone: Any, hidden_BTD: Tensor, packed: PackedQuestions) -> Tensor:
    """Mean cross-entropy of the answers' tokens.

    Args:
        backbone: The transformers model.
        hidden_BTD: Final hidden states of the forward pass.
        packed: Its questions.

    Returns:
        Nats per token; a scalar.
    """
    labels_BT = packed.labels_BT[:, 1:].to(hidden_BTD.device)
    learnt_BT = labels_BT != NO_LABEL
    logits_NV = backbone.lm_head(hidden_BTD[:, :-1][learnt_BT])
    return F.cross_entropy(_at_least_float32(logits_NV), labels_BT[learnt_BT])


def judgement_loss(backbone: Any, hidden_BTD: Tensor, packed: PackedQuestions) -> Tensor:
    """Mean cross-entropy of a verifier's first word, which alone its score reads.

    Args:
        backbone: The transformers model.
        hidden_BTD: Final hidden states of the forward pass.
        packed: One question per image.

    Returns:
        Nats per question; a scalar.
    """
    rows = torch.arange(len(hidden_BTD), device=hidden_BTD.device)
    at = torch.tensor([position for (position,) in packed.decisions], device=hidden_BTD.device)
    words_B = packed.labels_BT.to(hidden_BTD.device)[rows, at + 1]
    return F.cross_entropy(_at_least_float32(backbone.lm_head(hidden_BTD[rows, at])), words_B)


def mean_loss(losses: Sequence[Tensor], like: Tensor) -> Tensor:
    """Average over questions; 0 with a gradient of 0 where no question has a target.

    Args:
        losses: One per question.
        like: Any tensor of the graph.

    Returns:
        A scalar.
    """
    return torch.stack(list(losses)).mean() if losses else 0.0 * like.sum()


def share(part: int, whole: int) -> float:
    """What a mean over a part counts for in the mean over the whole.

    Args:
        part: How many of them the part has.
        whole: How many there are.

    Returns:
        part / whole; 1 where there is none at all.
    """
    return part / whole if whole else 1.0


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
