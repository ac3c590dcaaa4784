"""Configuration file of the inference component: `python -m dart_agent.inference --config FILE`.

Role: one schema, shared with whoever writes the file. Rule: unknown keys are errors; imports neither torch nor vLLM.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from dart_agent.chat_api.server import ChatApiSettings
from dart_agent.errors import ConfigError
from dart_agent.inference.settings import WorkerSettings
from dart_agent.strict_model import StrictModel, format_validation_error


class InferenceConfig(StrictModel):
    """K workers of one model that follow the versions of one data manager.

    directory: where sockets and keys live (short: Unix sockets; default: made below the runtime directory). addresses: file that tells
    the rollout workers where the workers are. socket: the data manager's, None: serve the model's own weights for ever.
    metrics: JSONL file that gets one line per rolling update. chat: OpenAI's chat API in front of the workers, None: none.
    """

    worker: WorkerSettings
    workers: int = Field(default=2, ge=1, le=64)
    directory: Path
    addresses: Path
    logs: Path
    socket: Path | None = None
    metrics: Path | None = None
    chat: ChatApiSettings | None = None
    poll_s: float = Field(default=0.5, gt=0)


def load_inference_config(path: Path) -> InferenceConfig:
    """Read the file. Raises ConfigError with the key's path."""
    try:
        return InferenceConfig.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {format_validation_error(error)}") from error
