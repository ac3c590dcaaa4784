"""What a transformers forward says about the tokens that a worker sampled.

Role: `transformers_logprobs`, the reference of log-probs in benchmarks and tests. Non-goals: how far a worker may be from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dart_agent.prompts.suppressed_tokens import suppressed_token_ids
from dart_agent.types import Completion, PolicyRequest


def transformers_logprobs(loaded: Any, request: PolicyRequest, completion: Completion) -> np.ndarray[Any, Any]:
    """Compute the log-prob of every sampled token by a forward of the whole sequence.

    Args:
        loaded: A `dart_train.model.policy_model.LoadedModel`, in evaluation mode.
        request: What was asked, with its images and its temperature.
        completion: What was sampled.

    Returns:
        Log-probs, [T]; those of image place holders are out of reach, as in a worker.
    """
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
