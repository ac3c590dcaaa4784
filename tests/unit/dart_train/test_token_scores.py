"""Log-probs and entropies by chunks, against the plain formula with autograd's own gradients, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dart_train.model.token_scores import SUPPRESSED_LOGIT, score_tokens


def plain_scores(
    hidden_MD: Tensor, weight_VD: Tensor, tokens_M: Tensor, temperatures_M: Tensor, suppressed: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    logits_MV = hidden_MD @ weight_VD.T / temperatures_M.unsqueeze(-1)
    logits_MV = logits_MV.index_fill(-1, torch.tensor(suppressed, dtype=torch.long), SUPPRESSED_LOGIT)
    log_probs_MV = logits_MV.log_softmax(-1)
    chosen_M = log_probs_MV.gather(-1, tokens_M.unsqueeze(-1)).squeeze(-1)
    return chosen_M, -(log_probs_MV.exp() * log_probs_MV).sum(-1)


@given(
    seed=st.integers(0, 10**6),
    tokens=st.integers(1, 9),
    vocabulary=st.integers(4, 40),
    chunk=st.integers(1, 12),
    suppressed=st.sampled_from([(), (0,), (1, 3)]),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
    terms=st.sampled_from(["logprobs", "entropy", "both"]),
)
@settings(max_examples=150, deadline=None)
def test_values_and_gradients_are_those_of_the_plain_formula(
    seed: int, tokens: int, vocabulary: int, chunk: int, suppressed: tuple[int, ...], scale: float, terms: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden_MD = scale * torch.randn(tokens, 5, generator=generator, dtype=torch.float64)
    weight_VD = torch.randn(vocabulary, 5, generator=generator, dtype=torch.float64)
    tokens_M = torch.randint(0, vocabulary, (tokens,), generator=generator)
    temperatures_M = 0.3 + torch.rand(tokens, generator=generator, dtype=torch.float64)
    weights_2M = torch.randn(2, tokens, generator=generator, dtype=torch.float64)
    weights_2M[0] *= terms != "entropy"
    weights_2M[1] *= terms != "logprobs"
    found: list[list[Tensor]] = []
    for score in (
        lambda h, w: score_tokens(h, w, tokens_M, temperatures_M, suppressed, chunk),
        lambda h, w: plain_scores(h, w, tokens_M, temperatures_M, suppressed),
    ):
        hidden, weight = hidden_MD.clone().requires_grad_(), weight_VD.clone().requires_grad_()
        values = score(hidden, weight)
        used = [row * value for row, value in zip(weights_2M, values, strict=True) if bool(row.any())]
        torch.stack(used).sum().backward()
        found.append([*(value.detach() for value in values), hidden.grad, weight.grad])  # type: ignore[list-item]
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)


class LargestTensor(TorchDispatchMode):
    """The most elements of any tensor that an operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(each, Tensor):
                self.elements = max(self.elements, each.numel())
        return made


@pytest.mark.parametrize("chunk", [None, 8])
def test_tokens_times_vocabulary_is_never_held(chunk: int | None) -> None:
    tokens, vocabulary, size = 64, 5_000, 4
    hidden_MD, weight_VD = torch.randn(tokens, size, requires_grad=True), torch.randn(vocabulary, size)
    weight_VD.requires_grad_()
    with LargestTensor() as largest:
        logprobs_M, entropy_M = score_tokens(
            hidden_MD, weight_VD, torch.zeros(tokens, dtype=torch.long), torch.ones(tokens), (), chunk
        )
        (logprobs_M + entropy_M).sum().backward()
    limit = vocabulary * max(size, chunk or tokens)
    assert largest.elements == limit, "8 tokens at a time; all at once where the logits are small"


def test_frozen_output_embeddings_get_no_gradient() -> None:
    hidden_MD, weight_VD = torch.randn(3, 4, requires_grad=True), torch.randn(7, 4)
    logprobs_M, _ = score_tokens(hidden_MD, weight_VD, torch.tensor([1, 2, 3]), torch.ones(3))
    logprobs_M.sum().backward()
    assert hidden_MD.grad is not None
    assert weight_VD.grad is None


def test_bfloat16_products_keep_float32_scores() -> None:
    torch.manual_seed(0)
    hidden_MD, weight_VD = torch.randn(6, 32, requires_grad=True), torch.randn(50, 32, requires_grad=True)
    tokens_M, ones_M = torch.arange(6), torch.ones(6)
    exact_M, _ = score_tokens(hidden_MD, weight_VD, tokens_M, ones_M)
    with torch.autocast("cpu", torch.bfloat16):
        half_M, _ = score_tokens(hidden_MD, weight_VD, tokens_M, ones_M, chunk_tokens=2)
    assert half_M.dtype == torch.float32
    assert not torch.equal(exact_M, half_M)
    torch.testing.assert_close(exact_M, half_M, rtol=0.05, atol=0.1)
    half_M.sum().backward()
    assert weight_VD.grad is not None
    assert weight_VD.grad.dtype == torch.float32


def test_only_products_are_rounded_under_autocast() -> None:
    """The sum of an entropy over a vocabulary is not, which decides what the selection of steps keeps."""
    generator = torch.Generator().manual_seed(0)
    hidden_MD = torch.randn(8, 16, generator=generator).bfloat16().float()
    weight_VD = (0.3 * torch.randn(20_000, 16, generator=generator)).bfloat16().float()
    tokens_M, ones_M = torch.arange(8), torch.ones(8)
    with torch.autocast("cpu", torch.bfloat16):
        logprobs_M, entropy_M = score_tokens(hidden_MD, weight_VD, tokens_M, ones_M)
    rounded_MV = (hidden_MD.bfloat16() @ weight_VD.bfloat16().T).float()
    log_probs_MV = rounded_MV.log_softmax(-1)
    torch.testing.assert_close(entropy_M, -(log_probs_MV.exp() * log_probs_MV).sum(-1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logprobs_M, log_probs_MV[range(8), tokens_M], rtol=1e-4, atol=1e-4)


def test_gradients_of_bfloat16_embeddings_are_summed_over_chunks_in_float32() -> None:
    """Embeddings that FSDP gathers are bfloat16. The old way added the chunks' gradients in that type, as autograd does over many calls."""
    generator = torch.Generator().manual_seed(0)
    hidden_MD = torch.randn(512, 16, generator=generator).bfloat16()
    weight_VD = torch.randn(40, 16, generator=generator).bfloat16()
    tokens_M, temperatures_M = torch.randint(0, 40, (512,), generator=generator), torch.ones(512)

    def gradient(parts: list[slice], chunk: int) -> Tensor:
        weight = weight_VD.clone().requires_grad_()
        for part in parts:
            scores, _ = score_tokens(hidden_MD[part], weight, tokens_M[part], temperatures_M[part], (), chunk)
            scores.sum().backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        assert weight.grad.dtype == torch.bfloat16
        return weight.grad.double()

    unchunked_VD = gradient([slice(0, 512)], 512)
    old_VD = gradient([slice(start, start + 2) for start in range(0, 512, 2)], 2)
    new_VD = gradient([slice(0, 512)], 2)
    old_error, new_error = ((found - unchunked_VD).norm() for found in (old_VD, new_VD))
    assert float(new_error) < 0.3 * float(old_error)
