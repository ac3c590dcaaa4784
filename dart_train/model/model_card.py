"""The model card of a published policy version.

Role: `write_model_card` puts a README.md into a model directory, as the Hugging Face Hub reads it; `add_evaluations` adds figures. Rule: it
states what is known of the training and no path of the host. Non-goals: weights and configuration (`LoadedModel.save`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CARD = "README.md"


def write_model_card(
    directory: Path,
    start_model: str,
    version: int,
    updates: int,
    settings: Mapping[str, Any],
    method: str = "reinforcement learning",
) -> None:
    """Write the card.

    Args:
        directory: The model directory.
        start_model: Name or directory of the model that training began with.
        version: Policy version.
        updates: Train steps that made it.
        settings: Settings of the training, as plain data.
        method: How it was trained.
    """
    is_path = start_model.startswith((".", "~", "/")) or Path(start_model).exists()
    named = Path(start_model).name if is_path else start_model
    head = ["library_name: transformers", "pipeline_tag: image-text-to-text", "tags: [gui-agent, grpo, dart]"]
    if not is_path:
        head.append(f"base_model: {named}")
    rows = [f"| `{name}` | `{json.dumps(value)}` |" for name, value in settings.items()]
    text = [
        "---", *head, "---", "",
        f"# {named}, policy version {version}", "",
        f"A policy for desktops, trained with DART from `{named}` by {updates} train steps of {method}.", "",
        "| setting | value |", "|---|---|", *rows,
    ]  # fmt: skip
    (directory / CARD).write_text("\n".join(text) + "\n", encoding="utf-8")


def add_evaluations(directory: Path, rows: Sequence[str]) -> None:
    """Add what evaluations found to the card of a model directory; a model that was not trained here has none, and gets one.

    Args:
        directory: The model directory.
        rows: Rows of a Markdown table: split, tasks, episodes, success with its 95 % interval, what judged it where no evaluator did, and
            how often the test split was used.
    """
    card = directory / CARD
    before = card.read_text(encoding="utf-8").rstrip() if card.exists() else "# A policy for desktops"
    table = ["| split | tasks | episodes | success (95 % interval) | |", "|---|---|---|---|---|", *rows]
    told = table if rows else ["These weights have not been evaluated: `dart-train eval` does it."]
    card.write_text("\n".join([before, "", "## Evaluation", "", *told]) + "\n", encoding="utf-8")
