"""Export to ATIF, Harbor's Agent Trajectory Interchange Format (version 1.7).

Role: one JSON document per trajectory, with images as files beside it. Rule: the first step is the user's instruction; each further step is
one of the agent, with its response as message, its action as tool call, and the screen that followed as observation. Sampled ids,
log-probs and exact prompt ids are in the metrics; what ATIF has no field for (reward, version spans, provenance) is in `extra`. Fields that
are not known are left out. Source: https://github.com/laude-institute/harbor, RFC 0001. Non-goals: reading ATIF.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dart_agent.data_client.image_store import BlobError, BlobStorage, ImageStore
from dart_agent.types import StepRecord, Trajectory
from dart_train.data_commands.provenance import TrajectoryProvenance
from dart_train.data_commands.redaction import Redaction

SCHEMA_VERSION = "ATIF-v1.7"
IMAGES = "images"


def write_atif(
    trajectory: Trajectory,
    known: TrajectoryProvenance,
    instruction: str,
    images: BlobStorage,
    folder: Path,
    redaction: Redaction,
    model: str,
) -> Path:
    """Write one trajectory as ATIF.

    Args:
        trajectory: The trajectory, redacted already.
        known: Why its steps were trained on.
        instruction: What the policy was asked to do.
        images: Where its images are.
        folder: The folder of the export; images go to its `images`.
        redaction: What was taken out; without screens no image is written.
        model: Name of the model.

    Returns:
        The file.
    """
    screens: dict[str, str] = {}
    if not redaction.screens:
        target = ImageStore(folder / IMAGES)
        for sha256 in dict.fromkeys(sha256 for step in trajectory.steps_S for sha256 in step.image_sha256):
            try:
                target.put(images.get(sha256))
            except BlobError:
                continue
            screens[sha256] = f"{IMAGES}/{sha256[:2]}/{sha256}.png"
    document = to_atif(trajectory, known, instruction, screens, redaction, model)
    file = folder / f"{trajectory.rollout_id}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    return file


def to_atif(
    trajectory: Trajectory,
    known: TrajectoryProvenance,
    instruction: str,
    screens: Mapping[str, str],
    redaction: Redaction,
    model: str,
) -> dict[str, Any]:
    """Convert one trajectory.

    Args:
        trajectory: The trajectory.
        known: Why its steps were trained on.
        instruction: What the policy was asked to do.
        screens: Paths of its images, relative to the document, by content hash; those that are missing are left out.
        redaction: What was taken out: without typed text there are no token ids.
        model: Name of the model.

    Returns:
        The document.
    """
    steps = trajectory.steps_S
    first = _screen(steps[0], screens) if steps else None
    message: Any = instruction if first is None else [{"type": "text", "text": instruction}, first]
    told: list[dict[str, Any]] = [
        {"step_id": 1, "source": "user", "timestamp": _iso(trajectory.started_at_s), "message": message}
    ]
    for step, later in zip(steps, (*steps[1:], None), strict=True):
        provenance = next((each for each in known.steps if each.index == step.index), None)
        told.append(
            _agent_step(
                step,
                None if later is None else _screen(later, screens),
                () if provenance is None else provenance.verdict,
                redaction,
                model,
            )
        )
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": trajectory.rollout_id,
        "trajectory_id": trajectory.rollout_id,
        "agent": {"name": "dart", "version": "1", "model_name": model},
        "steps": told,
        "final_metrics": {
            "total_prompt_tokens": sum(len(step.prompt_ids_P) for step in steps),
            "total_completion_tokens": sum(len(step.token_ids_T) for step in steps),
            "total_steps": len(told),
        },
        "extra": {
            "reward": trajectory.reward,
            "reward_source": trajectory.reward_source.value,
            "task_id": trajectory.task_id,
            "group_id": trajectory.group_id,
            "purpose": trajectory.purpose.value,
            "phase": trajectory.phase,
            "stop": trajectory.stop.value,
            "cause": trajectory.cause,
            "duration_s": trajectory.duration_s,
            "fate": known.fate,
            "why": known.why,
            "redacted": {"text": redaction.text, "screens": redaction.screens},
        },
    }


def _agent_step(
    step: StepRecord,
    screen: dict[str, Any] | None,
    verdict: tuple[str, ...],
    redaction: Redaction,
    model: str,
) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        "prompt_tokens": len(step.prompt_ids_P),
        "completion_tokens": len(step.token_ids_T),
        "logprobs": list(step.logprobs_T),
    }
    if not redaction.text:
        metrics |= {"prompt_token_ids": list(step.prompt_ids_P), "completion_token_ids": list(step.token_ids_T)}
    call_id = f"call_{step.index}"
    told: dict[str, Any] = {
        "step_id": step.index + 2,
        "source": "agent",
        "model_name": model,
        "message": step.text,
        "metrics": metrics,
        "extra": {
            "version_spans": [list(span.packed()) for span in step.version_spans],
            "finish_reason": step.finish_reason.value,
            "parse_error": step.parse_error,
            "image_sha256": [] if redaction.screens else list(step.image_sha256),
            "model_s": step.model_s,
            "env_s": step.env_s,
            "provenance": list(verdict),
        },
    }
    if step.action is not None:
        arguments = {name: value for name, value in step.action.items() if name != "type"}
        name = str(step.action.get("type", "action"))
        told["tool_calls"] = [{"tool_call_id": call_id, "function_name": name, "arguments": arguments}]
    if screen is not None:
        result: dict[str, Any] = {"content": [screen]}
        if step.action is not None:
            result["source_call_id"] = call_id
        told["observation"] = {"results": [result]}
    return told


def _screen(step: StepRecord, screens: Mapping[str, str]) -> dict[str, Any] | None:
    path = screens.get(step.image_sha256[-1]) if step.image_sha256 else None
    return None if path is None else {"type": "image", "source": {"media_type": "image/png", "path": path}}


def _iso(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat()
