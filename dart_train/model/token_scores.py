"""Log-probabilities and entropies of tokens from hidden states, a chunk of tokens at a time.

Role: `score_tokens` computes, for each position, what a policy-gradient loss needs of the logits z = h W^T / temperature:

    log p(token) = z_token - logsumexp(z)        d log p(token) / dz_j = [j = token] - p_j
    H            = logsumexp(z) - sum_j p_j z_j  dH / dz_j             = -p_j (log p_j + H)

Rule: tokens x vocabulary is never held. The logits of a chunk are computed in the forward pass, dropped, and computed again in the backward
pass. Logits are at least float32, and so is the sum of the chunks' gradients of the output embeddings, which is rounded to their data
type once: sharded embeddings arrive in bfloat16, where small parts would be lost in the sum. Suppressed tokens have no probability and no
gradient (`dart_agent.prompts.suppressed_tokens`).
Non-goals: which positions are scored (`dart_train.model.policy_scorer`). Axes: M positions, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SUPPRESSED_LOGIT = -1e4
"""Low enough for probability 0, finite so that p log p stays 0."""
CHUNK_BYTES = {"cpu": 32 * 2**20, "cuda": 512 * 2**20}
"""Size of the logits that are held at once: small where caches are, large where kernels are to be filled."""


def score_tokens(
    hidden_MD: Tensor,
    weight_VD: Tensor,
    tokens_M: Tensor,
    temperatures_M: Tensor,
    suppressed_ids: tuple[int, ...] = (),
    chunk_tokens: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute log-probability and entropy of tokens, with gradients to hidden states and output embeddings.

    Args:
        hidden_MD: Hidden states that predict the tokens, [M, D].
        weight_VD: Output embeddings, [V, D].
        tokens_M: The tokens, int64 [M].
        temperatures_M: Temperatures that divide the logits, [M].
        suppressed_ids: Tokens that are never sampled.
        chunk_tokens: Positions whose logits are held at once; None: as many as `CHUNK_BYTES` allows.

    Returns:
        Log-probs and entropies in nats, float32 [M], or float64 where the hidden states are.
    """
    precise = torch.promote_types(hidden_MD.dtype, torch.float32)
    if chunk_tokens is None:
        room = CHUNK_BYTES.get(hidden_MD.device.type, CHUNK_BYTES["cuda"])
        chunk_tokens = max(1, room // (weight_VD.shape[0] * precise.itemsize))
    suppressed = torch.tensor(suppressed_ids, dtype=torch.long, device=hidden_MD.device)
    temperatures_M1 = temperatures_M.to(hidden_MD.device, precise).unsqueeze(-1)
    kind = hidden_MD.device.type
    matmul = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight_VD.dtype
    with torch.autocast(kind, enabled=False):  # it would round the sum of an entropy, too
        scores: tuple[Tensor, Tensor] = _ChunkedScores.apply(  # type: ignore[no-untyped-call]
            hidden_MD, weight_VD, tokens_M, temperatures_M1, suppressed, chunk_tokens, matmul
        )
    return scores


class _ChunkedScores(torch.autograd.Function):
    """The function with its own backward pass; no argument but the first two has a gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_MD: Tensor,
        weight_VD: Tensor,
        tokens_M: Tensor,
        temperatures_M1: Tensor,
        suppressed: Tensor,
        chunk_tokens: int,
        matmul: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        precise = temperatures_M1.dtype
        logprobs_M = torch.empty(len(tokens_M), dtype=precise, device=hidden_MD.device)
        entropy_M, total_M = torch.empty_like(logprobs_M), torch.empty_like(logprobs_M)
        weight = weight_VD.to(matmul)
        for start in range(0, len(tokens_M), chunk_tokens):
            part = slice(start, start + chunk_tokens)
            logits_CV = _logits(hidden_MD[part], weight, temperatures_M1[part], suppressed)
            total_C1 = logits_CV.logsumexp(-1, keepdim=True)
            logits_CV -= total_C1
            logprobs_M[part] = logits_CV.gather(-1, tokens_M[part].unsqueeze(-1)).squeeze(-1)
            total_M[part] = total_C1.squeeze(-1)
            entropy_M[part] = -torch.linalg.vecdot(logits_CV.exp(), logits_CV)
        ctx.save_for_backward(hidden_MD, weight_VD, tokens_M, temperatures_M1, suppressed, total_M, entropy_M)
        ctx.chunk_tokens, ctx.matmul = chunk_tokens, matmul
        ctx.set_materialize_grads(False)
        return logprobs_M, entropy_M

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_logprobs_M, grad_entropy_M = grads
        hidden_MD, weight_VD, tokens_M, temperatures_M1, suppressed, total_M, entropy_M = ctx.saved_tensors
        weight = weight_VD.to(ctx.matmul)
        grad_hidden_MD = torch.empty_like(hidden_MD) if ctx.needs_input_grad[0] else None
        summed = torch.promote_types(weight_VD.dtype, torch.float32)
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=summed) if ctx.needs_input_grad[1] else None
        for start in range(0, len(tokens_M), ctx.chunk_tokens):
            part = slice(start, start + ctx.chunk_tokens)
            logits_CV = _logits(hidden_MD[part], weight, temperatures_M1[part], suppressed)
            logits_CV -= total_M[part].unsqueeze(-1)
            slope_CV = logits_CV.exp()
            factor_CV: Tensor | None = None
            if grad_entropy_M is not None:
                factor_CV = logits_CV.add_(entropy_M[part].unsqueeze(-1)).mul_(-grad_entropy_M[part].unsqueeze(-1))
            if grad_logprobs_M is not None:
                less_C1 = grad_logprobs_M[part].unsqueeze(-1)
                factor_CV = -less_C1 if factor_CV is None else factor_CV.sub_(less_C1)
            slope_CV = slope_CV.zero_() if factor_CV is None else slope_CV.mul_(factor_CV)
            if grad_logprobs_M is not None:
                slope_CV.scatter_add_(-1, tokens_M[part].unsqueeze(-1), grad_logprobs_M[part].unsqueeze(-1))
            slope_CV.index_fill_(-1, suppressed, 0)
            slope_CV = slope_CV.div_(temperatures_M1[part]).to(ctx.matmul)
            if grad_hidden_MD is not None:
                grad_hidden_MD[part] = (slope_CV @ weight).to(grad_hidden_MD.dtype)
            if grad_weight_VD is not None and ctx.matmul == summed:
                grad_weight_VD.addmm_(slope_CV.T, hidden_MD[part].to(ctx.matmul))
            elif grad_weight_VD is not None:
                grad_weight_VD += slope_CV.T @ hidden_MD[part].to(ctx.matmul)
        if grad_weight_VD is not None:
            grad_weight_VD = grad_weight_VD.to(weight_VD.dtype)
        return grad_hidden_MD, grad_weight_VD, None, None, None, None, None


def _logits(hidden_CD: Tensor, weight: Tensor, temperatures_C1: Tensor, suppressed: Tensor) -> Tensor:
    """Logits of a chunk at their temperatures, at least float32; nothing else refers to the tensor."""
    logits_CV = (hidden_CD.to(weight.dtype) @ weight.T).to(temperatures_C1.dtype)
    return logits_CV.div_(temperatures_C1).index_fill_(-1, suppressed, SUPPRESSED_LOGIT)
