"""What getters share.

Role: the context, reading a file, checked parameters. Rule: a getter only reads; `InvalidArtifact` is for what the policy left
missing or broken, `EvaluatorError` for a config that cannot be read. Non-goals: any one getter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dart_envs.errors import EvaluatorError
from dart_envs.evaluators.artifacts import GuestFile
from dart_envs.evaluators.evidence import read_content
from dart_envs.setup.steps import fill_placeholders, guest_path
from dart_envs.types import Desktop
from dart_server.wire import Clock

MAX_FILE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class GetterContext:
    """What getters may use; step_outputs: what the post-configuration's steps printed, by the name they gave it."""

    desktop: Desktop
    clock: Clock
    step_outputs: Mapping[str, str] = field(default_factory=dict)


GetterConfig = Mapping[str, Any]


def required_text(config: GetterConfig, key: str) -> str:
    """A required text parameter. Raises EvaluatorError where it is missing."""
    value = config.get(key)
    if not isinstance(value, str) or not value:
        raise EvaluatorError(f"Getter {config.get('type')!r} needs the text parameter {key!r}.")
    return value


async def read_guest_file(context: GetterContext, path: str) -> GuestFile:
    """One regular file of the desktop. Raises InvalidArtifact when it is missing, too large, or not a regular file."""
    path = guest_path(fill_placeholders(path, context.desktop.resolution))
    content = await read_content(context.desktop, path, MAX_FILE_BYTES)
    return GuestFile(path, content)


Getter = Callable[[GetterContext, GetterConfig], Awaitable[Any]]
