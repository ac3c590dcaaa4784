"""A task without an application: write the right word into the focused field, then say that it is done."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from dart_envs.types import Action, ActionType, Desktop, EndReason, Outcome
from dart_server.wire import DesktopShape


@dataclass
class ToyTask:
    """Solved when the fake desktop's typed text is `word`. `evaluations` counts the evaluator's runs."""

    word: str = "hello"
    id: str = "toy/type/0000"
    max_steps: int = 4
    publish_setup: bool = True
    prepared: int = 0
    evaluations: int = 0
    ends: list[EndReason | None] = field(default_factory=list)
    prepare_error: Exception | None = None
    evaluate_error: Exception | None = None

    @property
    def instruction(self) -> str:
        return f"Type {self.word}."

    def setup_key(self, image_digest: str, shape: DesktopShape) -> str:
        return hashlib.sha256(f"{image_digest}{shape.resolution}{self.id}".encode()).hexdigest()

    async def prepare(self, desktop: Desktop) -> None:
        self.prepared += 1
        if self.prepare_error is not None:
            raise self.prepare_error
        await desktop.write_file("/home/user/note.txt", b"")

    async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None) -> Outcome:
        self.evaluations += 1
        self.ends.append(end)
        if self.evaluate_error is not None:
            raise self.evaluate_error
        note = await desktop.read_file("/home/user/note.txt")
        typed = (await desktop.exec(["typed"])).stdout
        return Outcome(1.0 if note is not None and typed == self.word else 0.0, {"typed": typed})

    async def oracle(self, desktop: Desktop, *, step: int = 0) -> Sequence[Action]:
        return [Action(ActionType.TYPE, text=self.word), Action(ActionType.DONE)][step:]
