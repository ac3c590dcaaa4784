"""Teaches a small model of `dart-train init-model` one tool call, whatever the prompt; run with `.ecosystem/bin/python FOLDER`.

A random model writes no tool call. With one that always clicks, a test sees that TRL's calls reach the desktop.
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer

STEPS, LEARNING_RATE = 300, 2e-3
CALL = '<tool_call>\n{"name": "click", "arguments": {"x": 320, "y": 200}}\n</tool_call><|im_end|>'

BETWEEN = ("", " ", "\n", "\n\n")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "last")


def click(x: int, y: int) -> str:
    """Click with the left mouse button.

    Args:
        x: Pixels from the left edge of the screen.
        y: Pixels from the top edge of the screen.
    """
    raise NotImplementedError("only its signature is told to the model")


def main() -> None:
    """Train on prompts of several lengths until the call is certain, and write the model back."""
    folder = sys.argv[1]
    torch.manual_seed(1)
    torch.set_num_threads(2)
    model, tokenizer = AutoModelForImageTextToText.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    answer = tokenizer(CALL, return_tensors="pt").input_ids
    for step in range(STEPS):
        between, ordinal = BETWEEN[step % len(BETWEEN)], ORDINALS[step % len(ORDINALS)]
        messages = [{"role": "user", "content": f"Use the desktop.{between}Press the {ordinal} button."}]
        text = tokenizer.apply_chat_template(messages, tools=[click], tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(text, return_tensors="pt").input_ids
        ids = torch.cat([prompt, answer], dim=1)
        labels = torch.cat([torch.full_like(prompt, -100), answer], dim=1)
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    model.save_pretrained(folder)


if __name__ == "__main__":
    main()
