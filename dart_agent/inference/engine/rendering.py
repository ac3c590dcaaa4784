"""From a request to what vLLM is given: exact ids, images known by their hash, and a prompt that fits.

Role: `render_request`. Rule: ids of earlier turns are repeated as they were sampled; the expanded prompt is counted exactly, with tokens of
images, before anything is queued; images carry their content hash and the caller's salt, so that features which the engine has are not
computed again, unless other weights computed them. Non-goals: sampling (`server`).
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import numpy as np

from dart_agent.errors import ContextExceededError, PromptTooLongError
from dart_agent.prompts.chat_template import render_chat
from dart_agent.prompts.exact_prefix import prompt_ids
from dart_agent.types import PolicyRequest

RENDERS = 2
"""How often a request whose images the engine has lost is given to it."""


def lost_images(output: Any) -> bool:
    """Whether vLLM ended a request because its engine has images of it no longer; it is sent them when the request is rendered again."""
    return output is not None and any(answer.finish_reason == "error" for answer in output.outputs)


async def render_request(
    llm: Any, processor: Any, tokenizer: Any, request: PolicyRequest, *, max_images: int, prefix_salt: str = ""
) -> Any:
    """The engine's input for a request. max_images: most images of a prompt that the engine was made for.

    Raises ValueError for a request that the model cannot take, PromptTooLongError when it has too many images, ContextExceededError when
    prompt and longest answer do not fit.
    """
    if len(request.images) > max_images:
        raise PromptTooLongError(
            f"the prompt has {len(request.images)} images, but the worker was started for {max_images}: raise its max_images, or let "
            "model.history show fewer"
        )
    from PIL import Image

    image_token_id = getattr(llm.model_config.hf_config, "image_token_id", None)
    ids = prompt_ids(
        request.messages,
        request.prefix_ids_P,
        request.prefix_messages,
        render=partial(render_chat, processor),
        tokenize=partial(tokenizer.encode, add_special_tokens=False),
        image_token_id=image_token_id,
    )
    context = int(llm.model_config.max_model_len)
    if len(ids) > context:
        # Without its images expanded: vLLM would refuse it, and not say by how much.
        raise ContextExceededError(len(ids), request.sampling.max_tokens, context)
    prompt: dict[str, Any] = {"prompt_token_ids": ids}
    if prefix_salt:
        prompt["cache_salt"] = prefix_salt
    if request.images:
        prompt["multi_modal_data"] = {"image": [Image.fromarray(image) for image in request.images]}
        if request.image_sha256 or prefix_salt:
            hashes = request.image_sha256 or ("",) * len(request.images)
            named = [image_name(*one, prefix_salt) for one in zip(request.images, hashes, strict=True)]
            prompt["multi_modal_uuids"] = {"image": named}
    (rendered,) = await llm.renderer.render_cmpl_async([prompt])
    expanded = rendered["prompt_token_ids"]
    held = len(request.prefix_ids_P)
    if tuple(expanded[:held]) != request.prefix_ids_P:
        raise ValueError("the images of this request are not those of the turns that it continues")
    if len(expanded) + request.sampling.max_tokens > context:
        raise ContextExceededError(len(expanded), request.sampling.max_tokens, context)
    return rendered


def image_name(image_HWC: np.ndarray[Any, Any], sha256: str, prefix_salt: str) -> str:
    """The name under which the engine keeps the features of an image.

    Args:
        image_HWC: The pixels.
        sha256: Its content hash; "": the caller has none.
        prefix_salt: Names the weights where a swap keeps caches; "" where every swap clears them.

    Returns:
        A name that is equal for equal pixels and equal salts alone.
    """
    digest = sha256 or hashlib.sha256(image_HWC.tobytes() + str(image_HWC.shape).encode()).hexdigest()
    return f"{prefix_salt}:{digest}" if prefix_salt else digest
