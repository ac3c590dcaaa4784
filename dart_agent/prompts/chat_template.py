"""A conversation as the text that a checkpoint was trained on.

Role: `render_chat`, used by the engine and by the warm start. Rule: one template per checkpoint: the processor's own (chat_template.jinja
or chat_template.json), else its tokenizer's (tokenizer_config.json); published checkpoints carry it in either place. Non-goals: wording
(`dart_agent.prompts.builder`), tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def render_chat(processor: Any, messages: Sequence[Mapping[str, Any]]) -> str:
    """The prompt's text up to where the answer begins, one place holder per image. Raises ValueError without a template."""
    text: str = processor.tokenizer.apply_chat_template(
        list(messages), chat_template=chat_template(processor), tokenize=False, add_generation_prompt=True
    )
    return text


def chat_template(processor: Any) -> str:
    """The checkpoint's template. Raises ValueError when it has none."""
    for found in (processor.chat_template, processor.tokenizer.chat_template):
        template = found.get("default") if isinstance(found, dict) else found
        if template:
            return str(template)
    raise ValueError(
        "this checkpoint has no chat template: take chat_template.jinja from the instruction-tuned model it was made of"
    )
