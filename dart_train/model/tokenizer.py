"""The tokenizer of models initialised here: whole words, whole integers, whole action pieces, bytes for everything else.

Role: `build_tokenizer(words)` returns a fast tokenizer whose vocabulary needs no corpus. Rule: any Unicode text encodes and
decodes to itself; a listed word (with or without one leading space), an integer 0..999 and each piece of an action is one token,
so that a response costs few tokens. Non-goals: learning merges.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

MAX_INTEGER = 999
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
END_OF_TURN = "<|im_end|>"
PADDING = "<|endoftext|>"
ROLES = ("system\n", "user\n", "assistant\n")
ACTION_PIECES = (
    "Thought:",
    "\nAction: click(start_box='(",
    "\nAction: left_double(start_box='(",
    "\nAction: right_single(start_box='(",
    "\nAction: drag(start_box='(",
    "\nAction: scroll(start_box='(",
    "\nAction: type(content='",
    "\nAction: hotkey(key='",
    "\nAction: finished(content='')",
    "\nAction: wait()",
    "Action: click(start_box='(",
    "Action: type(content='",
    "Action: hotkey(key='",
    "Action: finished(content='')",
    "Action: wait()",
    ")', end_box='(",
    ")', direction='",
    ")')",
    "')",
    "\\n')",
)
TOOLS_PREAMBLE = (
    "# Tools\\n\\nYou may call these functions. Each is described by one line of JSON between the tags:\\n<tools>"
)
TOOLS_FORMAT = (
    "\\n</tools>\\n\\nTo call one, write a JSON object between tags:\\n"
    '<tool_call>\\n{"name": NAME, "arguments": ARGUMENTS}\\n</tool_call>'
)
CHAT_TEMPLATE = (
    "{%- if tools -%}"
    "{{- '<|im_start|>system\\n' -}}"
    "{%- if messages[0].role == 'system' -%}{{- messages[0].content + '\\n\\n' -}}{%- endif -%}"
    "{{- '" + TOOLS_PREAMBLE + "' -}}"
    "{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}"
    "{{- '" + TOOLS_FORMAT + "<|im_end|>\\n' -}}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if not (tools and loop.first and message.role == 'system') -%}"
    "{{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' -}}"
    "{%- if message.role == 'tool' -%}{{- '<tool_response>\\n' -}}{%- endif -%}"
    "{%- if message.content is string -%}{{- message.content -}}"
    "{%- elif message.content -%}{%- for part in message.content -%}"
    "{%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif 'text' in part -%}{{- part.text -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{%- if message.role == 'tool' -%}{{- '\\n</tool_response>' -}}{%- endif -%}"
    "{%- for call in message.tool_calls or [] -%}"
    "{%- if message.content or not loop.first -%}{{- '\\n' -}}{%- endif -%}"
    "{%- set function = call.function or call -%}"
    "{{- '<tool_call>\\n' + ({'name': function.name, 'arguments': function.arguments} | tojson) + '\\n</tool_call>' -}}"
    "{%- endfor -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)

RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}
"""How an answer is read back into a message, in the form of transformers' `parse_response` (5.13 and newer)."""


def build_tokenizer(words: Sequence[str]) -> Any:
    """Build a tokenizer from a list of words.

    Args:
        words: Words that become one token each.

    Returns:
        A `PreTrainedTokenizerFast` whose vocabulary is bytes, integers 0..999, action pieces and `words`.
    """
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    pieces = sorted({*ACTION_PIECES, *ROLES}, key=len, reverse=True)
    literal = "|".join(re.escape(piece).replace("\\\n", "\\n").replace("\n", "\\n") for piece in pieces)
    pattern = Regex(rf"{literal}| ?\p{{L}}+|\p{{N}}{{1,3}}|[^\p{{L}}\p{{N}}]")
    entries = [
        *sorted(pre_tokenizers.ByteLevel.alphabet()),
        *(_byte_level(str(number)) for number in range(MAX_INTEGER + 1)),
        *(_byte_level(piece) for piece in pieces),
        *(_byte_level(form) for word in words for form in (word, f" {word}")),
    ]
    vocabulary: dict[str, int] = {}
    for entry in entries:
        vocabulary.setdefault(entry, len(vocabulary))
    core = Tokenizer(BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END_OF_TURN,
        pad_token=PADDING,
        additional_special_tokens=[token for token in SPECIAL_TOKENS if token not in (END_OF_TURN, PADDING)],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.response_template = RESPONSE_TEMPLATE
    return tokenizer


def _byte_level(text: str) -> str:
    """`text` in the printable alphabet of byte-level vocabularies."""
    return "".join(_PRINTABLE_BY_BYTE[byte] for byte in text.encode())


def _printable_by_byte() -> dict[int, str]:
    """The byte-level alphabet: printable Latin-1 stands for itself, the other bytes for code points from 256 on."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in own]
    return {byte: chr(byte) for byte in own} | {byte: chr(256 + index) for index, byte in enumerate(others)}


_PRINTABLE_BY_BYTE = _printable_by_byte()
