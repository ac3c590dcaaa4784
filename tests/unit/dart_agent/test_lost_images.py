"""A request whose images the engine has lost is rendered again, once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from dart_agent.errors import WorkerError
from dart_agent.inference.engine import vllm_engine
from dart_agent.inference.engine.vllm_engine import VllmEngine
from tests.unit.dart_agent.fakes import request


def ended(reason: str) -> Any:
    return SimpleNamespace(outputs=[SimpleNamespace(finish_reason=reason)])


@pytest.mark.parametrize(("reasons", "answered"), [(["error", "stop"], True), (["error", "error"], False)])
async def test_images_that_the_engine_has_lost_are_sent_again(
    reasons: list[str], answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [ended(reason) for reason in reasons]

    async def sample_once(self: VllmEngine, asked: Any, salt: str) -> Any:
        return left.pop(0)

    monkeypatch.setattr(VllmEngine, "_sample_once", sample_once)
    monkeypatch.setattr(vllm_engine, "_completion", lambda final: final.outputs[0].finish_reason)
    engine = object.__new__(VllmEngine)
    if answered:
        assert await engine.sample(request(), prefix_salt="") == "stop"
    else:
        with pytest.raises(WorkerError, match="had lost images of request r0, also after they were sent again"):
            await engine.sample(request(), prefix_salt="")
    assert left == []
