"""Which refusals of an endpoint mean that the prompt is too long.

Role: `is_prompt_overflow`, from the status and the body of a reply. Rule: OpenAI's code and the codes and sentences of other servers with
routes in OpenAI's or Anthropic's form; they are read in the error itself only, never in what it quotes of the request. A body that a proxy
finds too large (413) is one, too. A limit of the answer's length is none: the settings are wrong then. Non-goals: what follows of it
(`dart_agent.rollouts.episode_loop`).

    OpenAI            code context_length_exceeded; "This model's maximum context length is 8192 tokens."
    vLLM              the same sentence; "... longer than the maximum model length of 8192"; "At most 4 image(s) may be provided ..."
    SGLang            "... longer than the model's context length (8192 tokens)"
    llama.cpp         type exceed_context_size_error
    Anthropic         "prompt is too long: 210000 tokens > 200000 maximum"; type request_too_large
    Mistral           "... too large for model with 32768 maximum context length"
    Google            "The input token count (1100000) exceeds the maximum number of tokens allowed"
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
"""OpenAI's code."""
_CODES = frozenset({CONTEXT_LENGTH_EXCEEDED, "exceed_context_size_error", "request_too_large"})
_REFUSED_STATUS = frozenset({400, 422})
_TOO_LARGE_STATUS = 413
_SENTENCE = re.compile(
    r"maximum context length|model's context length|context window|maximum model length|prompt is too long"
    r"|input token count.{0,40}exceeds|at most \d+ image",
    re.IGNORECASE,
)
_MAX_SENTENCE = 500


def is_prompt_overflow(status: int, body: str) -> bool:
    """Say whether a refusal means that the prompt has more tokens, images or bytes than the model takes.

    Args:
        status: HTTP status of the reply.
        body: Its text.

    Returns:
        False for every other refusal, and for what is no refusal.
    """
    if status == _TOO_LARGE_STATUS:
        return True
    if status not in _REFUSED_STATUS:
        return False
    return any(text in _CODES or _SENTENCE.search(text[:_MAX_SENTENCE]) is not None for text in _error_texts(body))


def _error_texts(body: str) -> Iterator[str]:
    """Code, type and sentence of an error: at the top of the body, or in its `error` or `detail`."""
    try:
        top: Any = json.loads(body)
    except (ValueError, RecursionError):
        yield body
        return
    if not isinstance(top, dict):
        return
    for found in (top, top.get("error"), top.get("detail")):
        if isinstance(found, str):
            yield found
        elif isinstance(found, dict):
            yield from (text for key in ("code", "type", "message") if isinstance(text := found.get(key), str))
