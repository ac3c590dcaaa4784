"""Settings of the head of a policy. Rule: imports no torch. Non-goals: training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pydantic import Field

from dart_agent.grounding.acting.targets import TARGET_RULES
from dart_agent.prompts.builder import PRESETS, PromptSpec
from dart_agent.strict_model import StrictModel

PLANNERS = ("transformers", "vllm", "endpoint")
"""Kinds of policies that can describe targets."""
WORKERS = "workers"
"""In the place of a model: the head of the inference workers' own model."""


class PointerSettings(StrictModel):
    """An action head that finds the targets that a policy describes.

    Attributes:
        model: Directory or name of a model with an action head; `workers`: the inference workers' own (policy `vllm`), for which the other
            settings mean nothing.
        device: Name of the torch device.
        version: Policy version of its weights.
        threads: CPU threads of torch.
        max_context: Most tokens of a prompt and its answer (policy `transformers`); None: as many as the model's config.json allows.
        follow: Whether every version that is published is loaded while the worker runs (policy `transformers`).
        served: File that says which version acts; None: there is none.
    """

    model: str
    device: str = "cpu"
    version: int = Field(default=0, ge=0)
    threads: int = Field(default=1, ge=1)
    max_context: int | None = Field(default=None, ge=64)
    follow: bool = False
    served: Path | None = None


def tell_of_targets(spec: PromptSpec) -> PromptSpec:
    """Let prompts say that an action may describe its target.

    Args:
        spec: How prompts look.

    Returns:
        The same with the note.

    Raises:
        ValueError: Answers to this prompt cannot describe targets.
    """
    if spec.format is not None:
        raise ValueError(f"answers to the prompt {spec.preset} describe no targets: choose {', '.join(PRESETS)}")
    return replace(spec, notes=TARGET_RULES)


def check_pointer(policy: str, pointer: PointerSettings | None, spec: PromptSpec) -> None:
    """Check that a policy and a head go together.

    Args:
        policy: Kind of the policy.
        pointer: The head; None: there is none.
        spec: How prompts look.

    Raises:
        ValueError: They do not.
    """
    if pointer is None:
        if policy == "transformers":
            raise ValueError(
                "policy transformers needs a pointer: a model with an action head, whose backbone is the policy"
            )
        return
    if policy not in PLANNERS:
        raise ValueError(
            f"policy {policy} describes no targets: leave the pointer out, or choose {', '.join(PLANNERS)}"
        )
    if pointer.model == WORKERS and policy != "vllm":
        raise ValueError(
            f"pointer {WORKERS} is the head of inference workers, which policy {policy} has not: name a model"
        )
    if pointer.follow and policy != "transformers":
        raise ValueError(f"pointer.follow loads head and planner together: set policy transformers instead of {policy}")
    tell_of_targets(spec)
