"""A fake engine in a real worker process: `python -m benchmarks.training_chaos.fake_engine`, as `dart_agent.inference.engine.server`.

Role: `FakeEngine`, an `EngineBackend` that starts in a second and computes nothing. Rule: prompts are made of the checkpoint's tokenizer,
template and image sizes, as an engine would make them; an answer follows from the weights' digest and the id of the request alone; the
log-prob of each token is a function of the digest that it was sampled under (`fake_logprob`), so that whoever has the digests can tell
which weights sampled a stored token. Every answer is written to a file of the process before it is given. Non-goals: learning, batching.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from dart_agent.errors import RequestRejected, WeightUpdateError
from dart_agent.inference.checkpoint_files import read_checkpoint_info, resolve_checkpoint
from dart_agent.inference.engine import server
from dart_agent.inference.engine.worker_engine import EngineLoad
from dart_agent.inference.pointer_wire import PointRequest, ServedLogits
from dart_agent.inference.settings import WorkerSettings
from dart_agent.inference.weights.digest import weights_digest
from dart_agent.inference.weights.files import tensor_shapes
from dart_agent.prompts.exact_prefix import prompt_ids
from dart_agent.types import Completion, FinishReason, PolicyRequest, VersionSpan

ANSWERS = "DART_TRAINING_CHAOS_ANSWERS"
"""Names the folder of the files of answers."""
TOKEN_S = 0.02
END_OF_TURN = "<|im_end|>"
CLICK_COUNT = "Action: click(start_box='(224,40)')"
ACTIONS = (
    (CLICK_COUNT, 20),
    ("Action: click(start_box='(32,40)')", 30),
    ("Action: type(content='a')", 15),
    ("Action: wait()", 15),
    ("Action: finished(content='')", 10),
    ("Press Count", 10),
)
"""Answers in pixels of a picture of 256 x 160, and their weights; the last one is no action."""


def fake_logprob(digest: str, request_id: str, position: int) -> float:
    """The log-prob of a token.

    Args:
        digest: Digest of the weights that sampled it.
        request_id: The request.
        position: Its place in the answer.

    Returns:
        A number between -1 and 0.
    """
    content = hashlib.sha256(f"{digest}/{request_id}/{position}".encode()).digest()
    return -0.01 - int.from_bytes(content[:4], "big") / 2**32 * 0.98


class FakeEngine:
    """See the module.

    Args:
        settings: Of the worker.
        answers: Folder that gets a file of answers.
    """

    def __init__(self, settings: WorkerSettings, answers: Path) -> None:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from tokenizers import Tokenizer

        model = resolve_checkpoint(settings.model)
        self._info = read_checkpoint_info(model)
        self._tokenizer: Any = Tokenizer.from_file(str(model / "tokenizer.json"))
        template = (model / "chat_template.jinja").read_text(encoding="utf-8")
        self._template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(template)
        self.checkpoint = model
        self.shapes = tensor_shapes(model)
        self.tied = self._info.tied
        self._version = 0
        self._digest = weights_digest(model, 1)
        self._running = asyncio.Event()
        self._running.set()
        self._answers = (answers / f"{os.getpid()}-{time.time_ns()}.jsonl").open("w", buffering=1, encoding="utf-8")

    async def set_version(self, number: int) -> None:
        """Number the weights that it has."""
        self._version = number

    async def sample(self, request: PolicyRequest, *, prefix_salt: str) -> Completion:
        """Write one answer, token by token, each under the weights of its moment."""
        prompt = self._prompt(request)
        request_id = request.request_id.partition("#")[0]  # behind it is which repetition of the request this is
        chosen = Random(f"{self._digest}/{request_id}")
        (text,) = chosen.choices([text for text, _ in ACTIONS], [weight for _, weight in ACTIONS])
        ids = [*self._encode(text), self._tokenizer.token_to_id(END_OF_TURN)][: request.sampling.max_tokens]
        logprobs: list[float] = []
        under: list[tuple[int, str]] = []
        for position in range(len(ids)):
            await asyncio.sleep(TOKEN_S)
            await self._running.wait()
            under.append((self._version, self._digest))
            logprobs.append(fake_logprob(self._digest, request_id, position))
        spans = _spans([version for version, _ in under])
        line = {
            "at_s": time.time(),
            "request_id": request_id,
            "token_ids": ids,
            "versions": [[span.version, span.start, span.end] for span in spans],
            "digests": [digest for _, digest in under],
        }
        self._answers.write(json.dumps(line) + "\n")
        return Completion(
            text=self._tokenizer.decode(ids, skip_special_tokens=True),
            prompt_ids_P=tuple(prompt),
            token_ids_T=tuple(ids),
            logprobs_T=tuple(logprobs),
            version_spans=tuple(spans),
            finish_reason=FinishReason.STOP if len(ids) < request.sampling.max_tokens else FinishReason.LENGTH,
        )

    async def point(self, asked: PointRequest, *, prefix_salt: str) -> tuple[ServedLogits, ...]:
        """It has no action head."""
        raise RequestRejected("this engine has no action head: serve a model with one")

    async def pause(self, *, clear_cache: bool) -> None:
        """Let all requests stand still at the next token."""
        self._running.clear()

    async def resume(self) -> None:
        """Let them go on."""
        self._running.set()

    async def load(self, path: Path, digest: str | None, number: int) -> None:
        """Take the digest of the files as the weights; another one than the published one leaves the engine unusable."""
        found = await asyncio.to_thread(weights_digest, path, 1)
        if digest is not None and found != digest:
            raise WeightUpdateError(f"what was loaded from {path} has not the digest that was published")
        self._version, self._digest = number, found

    async def check(self) -> None:
        """It can always go on."""

    def load_now(self) -> EngineLoad:
        """It has room for everything."""
        return EngineLoad()

    def metrics(self) -> str:
        """It has none."""
        return ""

    def close(self) -> None:
        """Close the file of answers."""
        self._answers.close()

    def _prompt(self, request: PolicyRequest) -> list[int]:
        """The ids of a prompt, each image expanded to its tokens."""
        ids = prompt_ids(
            request.messages,
            request.prefix_ids_P,
            request.prefix_messages,
            render=self._render,
            tokenize=self._encode,
            image_token_id=self._info.image_token_id,
        )
        side = self._info.image_token_px
        counts = iter([(image.shape[0] // side) * (image.shape[1] // side) for image in request.images])
        expanded: list[int] = []
        for token in ids:
            expanded += [token] * next(counts) if token == self._info.image_token_id else [token]
        return expanded

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return self._template.render(messages=list(messages), add_generation_prompt=True)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _spans(versions: list[int]) -> list[VersionSpan]:
    """Equal neighbours as spans."""
    starts = [index for index, version in enumerate(versions) if index == 0 or version != versions[index - 1]]
    return [
        VersionSpan(versions[start], start, end)
        for start, end in zip(starts, [*starts[1:], len(versions)], strict=True)
    ]


def _make(settings: WorkerSettings) -> FakeEngine:
    return FakeEngine(settings, Path(os.environ[ANSWERS]))


if __name__ == "__main__":
    server.main(_make)
