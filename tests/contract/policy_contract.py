"""What every policy must keep to, as checks that any test can run on its own policy.

Role: `check_policy`. Rule: what a policy cannot do is declared (`samples_tokens`), never skipped silently.
"""

from __future__ import annotations

import asyncio

import numpy as np

from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.types import Completion, FinishReason, Policy, PolicyRequest, SamplingParams
from dart_envs.action_formats import ParsedAnswer, ParseError
from dart_envs.action_formats.uitars import parse
from dart_envs.types import Observation


def make_request(
    request_id: str, *, temperature: float = 1.0, max_tokens: int = 12, grey: int = 200, step: int = 0
) -> PolicyRequest:
    """A request of the tiny preset on a plain screen."""
    builder = PromptBuilder(preset("tiny"))
    prompt = builder.build(Observation(np.full((400, 640, 3), grey, np.uint8), "Click OK"), builder.new_history())
    sampling = SamplingParams(temperature=temperature, max_tokens=max_tokens)
    return PolicyRequest(prompt.messages, prompt.images, sampling, request_id, step=step)


def check_completion(completion: Completion, *, samples_tokens: bool, max_tokens: int) -> None:
    """Lengths, spans and log-probs of one answer agree."""
    tokens = len(completion.token_ids_T)
    assert isinstance(completion.text, str)
    assert len(completion.logprobs_T) == tokens
    assert all(np.isfinite(logprob) and logprob <= 1e-6 for logprob in completion.logprobs_T)
    ends = [0, *(span.end for span in completion.version_spans)]
    assert [span.start for span in completion.version_spans] == ends[:-1]
    assert ends[-1] == tokens
    if not samples_tokens:
        assert tokens == len(completion.prompt_ids_P) == 0
        return
    assert 1 <= tokens <= max_tokens
    assert completion.prompt_ids_P
    assert completion.finish_reason is FinishReason.STOP or (
        completion.finish_reason is FinishReason.LENGTH and tokens == max_tokens
    )
    versions = [span.version for span in completion.version_spans]
    assert versions == sorted(set(versions))


async def check_policy(policy: Policy, *, samples_tokens: bool, name: str) -> None:
    """One answer, many at once, and (where tokens are sampled) greedy decoding that repeats itself."""
    check_completion(
        await policy.complete(make_request(f"{name}.single")), samples_tokens=samples_tokens, max_tokens=12
    )
    many = await asyncio.gather(
        *(policy.complete(make_request(f"{name}.{index}", max_tokens=3 + index)) for index in range(8))
    )
    for index, completion in enumerate(many):
        check_completion(completion, samples_tokens=samples_tokens, max_tokens=3 + index)
    builder = PromptBuilder(preset("tiny"))
    prompt = builder.build(Observation(np.zeros((400, 640, 3), np.uint8), "Click OK"), builder.new_history())
    for completion in many:
        assert isinstance(parse(completion.text, prompt.points), ParsedAnswer | ParseError)
    if samples_tokens:
        greedy = [await policy.complete(make_request(f"{name}.greedy{index}", temperature=0.0)) for index in range(2)]
        assert greedy[0].token_ids_T == greedy[1].token_ids_T
        assert greedy[0].prompt_ids_P == greedy[1].prompt_ids_P
