"""What a transformers forward says about the tokens that a worker sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dart_agent.prompts.suppressed_tokens import suppressed_token_ids
from dart_agent.types import Completion, PolicyRequest


def reference(path: Path) -> Any:
    from dart_train.model.policy_model import load_model

    loaded = load_model(path)
    loaded.model.eval()
    return loaded


def reference_logprobs(loaded: Any, request: PolicyRequest, completion: Completion) -> np.ndarray[Any, Any]:
    """Log-prob of every sampled token under a transformers forward of the whole sequence."""
    import torch

    features = loaded.processor.image_processor(images=list(request.images), return_tensors="pt")
    ids = torch.tensor([[*completion.prompt_ids_P, *completion.token_ids_T]])
    with torch.no_grad():
        logits = loaded.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == loaded.model.config.image_token_id).int(),
            **features,
        ).logits[0]
    prompt = len(completion.prompt_ids_P)
    logits[:, list(suppressed_token_ids(loaded.model.config))] = -1e4
    logprobs = torch.log_softmax(logits[prompt - 1 : -1].float() / (request.sampling.temperature or 1.0), -1)
    return logprobs[range(len(completion.token_ids_T)), list(completion.token_ids_T)].numpy()
