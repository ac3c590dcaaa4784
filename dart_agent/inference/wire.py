"""What crosses the socket between the pool and one inference worker.

Role: encode and decode the bodies of the worker's HTTP routes. Rule: pixels travel as raw RGB bytes behind a JSON header, so a
screenshot is never compressed, re-encoded or base64-coded; everything that comes back is JSON. Non-goals: transport, retries.

    GET  /health?after=R&wait_s=S                                                 `WorkerHealth`; with `after`, as soon as its revision is
                                                                                  another than R, at most S seconds later
    POST /generate       u32 length (big endian), JSON header, raw RGB bytes of every image -> completion
    POST /weights/stage  {"path", "version", "digest"} -> {"stage_s"}             read and check the weights while requests run
    POST /weights/swap   {"version", "digest", "pause"} -> {"pause_s", "load_s"}  swap to what was staged, between two tokens
    POST /pause, /resume                                                          all requests stand still, or go on
    POST /drain          {} -> {"in_flight"}                                      take no new request from now on
    GET  /metrics        Prometheus text of the engine

All need `Authorization: Bearer KEY`. An error is {"error": code, "detail": sentence}: 400 `invalid` (never retry), 400 `context` (the
prompt is longer than the model takes; with prompt_tokens, max_tokens and context where its tokens are too many), 401, 409 `weights` (the
new weights were refused, the old ones serve), 500 `engine` (this request failed, others go on), 503 `busy` (draining: use another worker),
500 `broken` (this worker must be restarted).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dart_agent.errors import ContextExceededError, PromptTooLongError
from dart_agent.inference.decisions.routing import WorkerState
from dart_agent.inference.decisions.weight_updates import WeightsId
from dart_agent.types import Completion, FinishReason, PolicyRequest, PolicyVersion, SamplingParams, VersionSpan

HEALTH_PATH = "/health"
GENERATE_PATH = "/generate"
STAGE_PATH = "/weights/stage"
SWAP_PATH = "/weights/swap"
PAUSE_PATH = "/pause"
RESUME_PATH = "/resume"
DRAIN_PATH = "/drain"
METRICS_PATH = "/metrics"
CONTEXT_CODE = "context"
_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """What a worker says about itself.

    Attributes:
        version: The policy version that it serves.
        in_flight: Requests that run or wait on it, whoever sent them.
        pid: Its process id.
        state: What it can do.
        digest: Digest of its weights, None where it was not published.
        revision: Changes with state and weights.
        waiting: Requests that wait for room in the engine.
        kv_cache_usage: Used share of the key-value cache, 0 to 1.
        up_s: Seconds since its start.
        serving_s: Seconds of them with at least one request that was computed.
        updating_s: Seconds of them in which it took new weights, or stood still until others had taken them.
    """

    version: PolicyVersion
    in_flight: int
    pid: int
    state: WorkerState = WorkerState.SERVING
    digest: str | None = None
    revision: int = 0
    waiting: int = 0
    kv_cache_usage: float = 0.0
    up_s: float = 0.0
    serving_s: float = 0.0
    updating_s: float = 0.0

    @property
    def weights(self) -> WeightsId:
        """Identity of the weights that it serves."""
        return WeightsId(self.version, self.digest)


def encode_health(health: WorkerHealth) -> dict[str, Any]:
    """JSON reply of `GET /health`."""
    return {field.name: getattr(health, field.name) for field in fields(WorkerHealth)}


def decode_health(reply: Mapping[str, Any]) -> WorkerHealth:
    """Inverse of `encode_health`. Raises KeyError, TypeError or ValueError."""
    digest = reply["digest"]
    return WorkerHealth(
        version=int(reply["version"]),
        in_flight=int(reply["in_flight"]),
        pid=int(reply["pid"]),
        state=WorkerState(reply["state"]),
        digest=None if digest is None else str(digest),
        revision=int(reply["revision"]),
        waiting=int(reply["waiting"]),
        kv_cache_usage=float(reply["kv_cache_usage"]),
        up_s=float(reply["up_s"]),
        serving_s=float(reply["serving_s"]),
        updating_s=float(reply["updating_s"]),
    )


def encode_request(request: PolicyRequest) -> bytes:
    """Body of `POST /generate`."""
    sampling = request.sampling
    header = {
        "request_id": request.request_id,
        "messages": list(request.messages),
        "image_sha256": list(request.image_sha256),
        "prefix_ids": list(request.prefix_ids_P),
        "prefix_messages": request.prefix_messages,
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
        hashes, prefix = tuple(header["image_sha256"]), tuple(header["prefix_ids"])
        prefix_messages = int(header["prefix_messages"])
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
    return PolicyRequest(
        messages=messages,
        images=tuple(images),
        sampling=sampling,
        request_id=request_id,
        image_sha256=hashes,
        prefix_ids_P=prefix,
        prefix_messages=prefix_messages,
    )


def encode_prompt_too_long(error: PromptTooLongError) -> dict[str, Any]:
    """JSON reply of `POST /generate` with status 400 for a prompt that is too long."""
    reply: dict[str, Any] = {"error": CONTEXT_CODE, "detail": str(error)}
    if isinstance(error, ContextExceededError):
        reply |= {"prompt_tokens": error.prompt_tokens, "max_tokens": error.max_tokens, "context": error.context}
    return reply


def decode_prompt_too_long(reply: Mapping[str, Any]) -> PromptTooLongError | None:
    """Inverse of `encode_prompt_too_long`; None for another refusal."""
    if reply.get("error") != CONTEXT_CODE:
        return None
    if "context" not in reply:
        return PromptTooLongError(str(reply["detail"]))
    return ContextExceededError(int(reply["prompt_tokens"]), int(reply["max_tokens"]), int(reply["context"]))


def encode_completion(completion: Completion) -> dict[str, Any]:
    """JSON reply of `POST /generate`."""
    return {
        "text": completion.text,
        "prompt_ids": list(completion.prompt_ids_P),
        "token_ids": list(completion.token_ids_T),
        "logprobs": list(completion.logprobs_T),
        "version_spans": [[span.version, span.start, span.end, span.kept_kv] for span in completion.version_spans],
        "finish_reason": completion.finish_reason.value,
        "cached_prompt_tokens": completion.cached_prompt_tokens,
        "queue_s": completion.queue_s,
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
        cached_prompt_tokens=int(reply["cached_prompt_tokens"]),
        queue_s=float(reply["queue_s"]),
    )
    tokens = len(completion.token_ids_T)
    covered = sum(span.end - span.start for span in completion.version_spans)
    if len(completion.logprobs_T) != tokens or covered != tokens:
        raise ValueError(f"{tokens} tokens, {len(completion.logprobs_T)} log-probs, {covered} tokens with a version")
    return completion
