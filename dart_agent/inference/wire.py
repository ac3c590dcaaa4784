"""What crosses the socket between the pool and one inference worker.

Role: encode and decode the bodies of the worker's HTTP routes. Rule: pixels travel as raw RGB bytes behind a JSON header, so a
screenshot is never compressed, re-encoded or base64-coded; everything that comes back is JSON. Non-goals: transport, retries.

    GET  /health    -> {"ready", "version", "in_flight", "pid"}
    POST /generate  u32 length (big endian), JSON header, raw RGB bytes of every image -> completion
    POST /weights   {"path", "version"} -> {"version", "pause_s", "load_s"}     swap the weights between two tokens

All need `Authorization: Bearer KEY`. An error is {"error": code, "detail": sentence}: 400 `invalid` (never retry), 401, 409
`weights` (the new weights were refused, the old ones serve), 500 `broken` (this worker must be restarted).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from dart_agent.types import Completion, FinishReason, PolicyRequest, SamplingParams, VersionSpan

HEALTH_PATH = "/health"
GENERATE_PATH = "/generate"
WEIGHTS_PATH = "/weights"
_LENGTH = struct.Struct(">I")


def encode_request(request: PolicyRequest) -> bytes:
    """Body of `POST /generate`."""
    sampling = request.sampling
    header = {
        "request_id": request.request_id,
        "messages": list(request.messages),
        "images_hw": [[int(image.shape[0]), int(image.shape[1])] for image in request.images],
        "sampling": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": sampling.seed,
            "stop": list(sampling.stop),
        },
    }
    text = json.dumps(header, ensure_ascii=False).encode()
    pixels = [np.ascontiguousarray(image, dtype=np.uint8).tobytes() for image in request.images]
    return b"".join([_LENGTH.pack(len(text)), text, *pixels])


def decode_request(body: bytes) -> PolicyRequest:
    """Inverse of `encode_request`. Raises ValueError when the body is malformed."""
    if len(body) < _LENGTH.size:
        raise ValueError("the body is shorter than its length prefix")
    (length,) = _LENGTH.unpack_from(body)
    offset = _LENGTH.size + length
    try:
        header = json.loads(body[_LENGTH.size : offset])
        given = header["sampling"]
        sampling = SamplingParams(**{**given, "stop": tuple(given["stop"])})
        sizes = [(int(height), int(width)) for height, width in header["images_hw"]]
        messages, request_id = tuple(header["messages"]), str(header["request_id"])
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"the header of the body is malformed: {error}") from error
    images = []
    for height, width in sizes:
        size = height * width * 3
        if offset + size > len(body):
            raise ValueError("the body ends before its last image")
        images.append(np.frombuffer(body, np.uint8, size, offset).reshape(height, width, 3))
        offset += size
    if offset != len(body):
        raise ValueError("the body goes on after its last image")
    return PolicyRequest(messages=messages, images=tuple(images), sampling=sampling, request_id=request_id)


def encode_completion(completion: Completion) -> dict[str, Any]:
    """JSON reply of `POST /generate`."""
    return {
        "text": completion.text,
        "prompt_ids": list(completion.prompt_ids_P),
        "token_ids": list(completion.token_ids_T),
        "logprobs": list(completion.logprobs_T),
        "version_spans": [[span.version, span.start, span.end] for span in completion.version_spans],
        "finish_reason": completion.finish_reason.value,
    }


def decode_completion(reply: Mapping[str, Any], *, worker: str) -> Completion:
    """Inverse of `encode_completion`. Raises ValueError when the lengths disagree."""
    completion = Completion(
        text=str(reply["text"]),
        prompt_ids_P=tuple(reply["prompt_ids"]),
        token_ids_T=tuple(reply["token_ids"]),
        logprobs_T=tuple(reply["logprobs"]),
        version_spans=tuple(VersionSpan(*span) for span in reply["version_spans"]),
        finish_reason=FinishReason(reply["finish_reason"]),
        worker=worker,
    )
    tokens = len(completion.token_ids_T)
    covered = sum(span.end - span.start for span in completion.version_spans)
    if len(completion.logprobs_T) != tokens or covered != tokens:
        raise ValueError(f"{tokens} tokens, {len(completion.logprobs_T)} log-probs, {covered} tokens with a version")
    return completion
