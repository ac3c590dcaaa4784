"""The fields of a preset: a shape of the Qwen3-VL family, its pixels and its words.

Role: one frozen value per preset. Rule: sizes are checked when the value is made, so that a wrong preset fails at import. Non-goals: making
the model (`dart_train.model.init_model`).
"""

from __future__ import annotations

from dataclasses import dataclass

MIN_HEAD_SIZE = 32
"""vLLM refuses smaller attention heads."""


@dataclass(frozen=True, slots=True)
class ModelPreset:
    """A small model of the Qwen3-VL family.

    Attributes:
        name: Name of the preset.
        hidden_size: Width of the text layers.
        intermediate_size: Width of their feed-forward layers.
        text_layers: Number of text layers.
        heads: Attention heads of a text layer.
        head_dim: Width of an attention head.
        vision_layers: Number of vision layers.
        vision_hidden_size: Width of the vision layers.
        vision_intermediate_size: Width of their feed-forward layers.
        vision_heads: Attention heads of a vision layer.
        patch_size: Pixels per side of a patch.
        merge_size: Patches per side that are merged into one token.
        position_grid: Side of the grid of learnt vision positions.
        deepstack_layers: Vision layers whose features enter the text layers.
        mrope_section: Rotary dimensions for time, height and width.
        max_positions: Longest sequence in tokens.
        input_wh: Model-input size in pixels; both are multiples of `patch_size * merge_size`.
        coordinate_step_px: Grid of clicks that the model learns, in model-input pixels.
        pixel_mean: Mean of screen pixels in [0, 1]; normalisation with it makes learning from random weights possible.
        pixel_std: Standard deviation of screen pixels in [0, 1].
        initializer_range: Standard deviation of the random weights.
        words: Whole-word tokens; any other text is encoded in bytes.
    """

    name: str
    hidden_size: int
    intermediate_size: int
    text_layers: int
    heads: int
    head_dim: int
    vision_layers: int
    vision_hidden_size: int
    vision_intermediate_size: int
    vision_heads: int
    patch_size: int
    merge_size: int
    position_grid: int
    deepstack_layers: tuple[int, ...]
    mrope_section: tuple[int, int, int]
    max_positions: int
    input_wh: tuple[int, int]
    coordinate_step_px: int
    pixel_mean: float
    pixel_std: float
    initializer_range: float
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        image_token_px = self.patch_size * self.merge_size
        if self.input_wh[0] % image_token_px or self.input_wh[1] % image_token_px:
            raise ValueError(
                f"preset {self.name}: input_wh {self.input_wh} is not a multiple of {image_token_px} pixels"
            )
        if min(self.head_dim, self.vision_hidden_size // self.vision_heads) < MIN_HEAD_SIZE:
            raise ValueError(f"preset {self.name}: attention heads below {MIN_HEAD_SIZE} do not run in vLLM")
        if sum(self.mrope_section) * 2 != self.head_dim:
            raise ValueError(f"preset {self.name}: mrope_section must sum to half of head_dim {self.head_dim}")
