"""The forward pass of training: log-probs and entropies of all sampled tokens of packed token streams.

Role: `PolicyScorer(model)(tokens)`. Rule: the result depends on the values of the parameters only, not on how they are trained (all of
them, adapters, shards). Each token attends to its true prefix, so that a step's log-probs are those of its own prompt, although all steps
of a stream share one pass. Features of an image are computed once, however often it is shown. Only positions that predict a sampled token
are projected to the vocabulary, a chunk at a time. Non-goals: packing (`dart_train.trainer.batches.tensors`), losses
(`dart_train.objectives`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dart_agent.prompts.suppressed_tokens import suppressed_token_ids
from dart_train.model.segment_attention import use_segment_attention
from dart_train.model.token_scores import score_tokens
from dart_train.types import PackedTokens


class PolicyScorer(nn.Module):
    """Scores tokens with a model; one module, so that hooks on its forward pass (FSDP) cover all parameters.

    Args:
        model: A transformers model of the Qwen-VL families; its attention is set to `segment_attention`.
        chunk_tokens: Positions whose logits are held at once; None: by memory (`token_scores`).

    Attributes:
        always_vision: Run the vision tower also where there is no image, without an effect on the scores: processes that share its
            parameters must run it equally often.
    """

    def __init__(self, model: Any, chunk_tokens: int | None = None) -> None:
        super().__init__()
        use_segment_attention(model)
        self.model = model
        self._suppressed = suppressed_token_ids(model.config)
        self._chunk_tokens = chunk_tokens
        self.always_vision = False

    def forward(self, tokens: PackedTokens) -> tuple[Tensor, Tensor]:
        """Score the sampled tokens.

        Args:
            tokens: Packed streams on the device of the model.

        Returns:
            Log-probs and entropies in nats of the M sampled tokens, each under softmax(logits / temperature of its row) given all tokens
            before it; [M], at least float32.
        """
        # The vision tower comes first in any case: processes that share parameters must run layers in the same order.
        images = self._image_features(tokens)
        blank = self._blank_image_sum(tokens) if images is None and self.always_vision else None
        hidden_1LD = self.model.model(
            input_ids=tokens.input_ids_1L,
            position_ids=tokens.position_ids_31L,
            mm_encoder_outputs=images,
            use_cache=False,
            segments=tokens.segments,
        ).last_hidden_state
        hidden_MD = hidden_1LD[0, tokens.predicts_M]
        if blank is not None:
            hidden_MD = hidden_MD + 0.0 * blank
        return score_tokens(
            hidden_MD,
            self.model.lm_head.weight,
            tokens.targets_M,
            tokens.temperatures_M,
            self._suppressed,
            self._chunk_tokens,
        )

    def _blank_image_sum(self, tokens: PackedTokens) -> Tensor:
        """Sum of all features of the smallest image."""
        backbone = self.model.model
        side = backbone.visual.spatial_merge_size
        values = backbone.visual.patch_embed.proj.weight[0].numel()
        device = tokens.input_ids_1L.device
        pixels, grid = torch.zeros(side * side, values, device=device), torch.tensor([[1, side, side]], device=device)
        features = backbone.get_image_features(pixels, grid)
        layers = getattr(features, "deepstack_features", None) or []
        found: Tensor = sum(
            part.sum() for part in (*features.pooler_output, *(part for layer in layers for part in layer))
        )
        return found

    def _image_features(self, tokens: PackedTokens) -> dict[str, Any] | None:
        """Features of every image, in the order in which the streams show them."""
        if tokens.pixel_values is None:
            return None
        features = self.model.model.get_image_features(tokens.pixel_values, tokens.image_grid_thw)
        features.pooler_output = [features.pooler_output[index] for index in tokens.shown_images]
        layers = getattr(features, "deepstack_features", None)
        if layers is not None:
            features.deepstack_features = [[layer[index] for index in tokens.shown_images] for layer in layers]
        return {"image": features}
