"""The fields of a preset: a Qwen3-VL-family shape, its pixels and its words.

Role: one frozen value per preset. Rule: sizes are checked when the value is made, so a wrong preset fails at import.
"""

from __future__ import annotations

from dataclasses import dataclass

MIN_HEAD_SIZE = 32
"""vLLM refuses smaller attention heads."""


@dataclass(frozen=True, slots=True)
class ModelPreset:
    """A small Qwen3-VL-family model.

    input_wh: model-input size in pixels the model is meant for; both multiples of `patch_size * merge_size`.
    coordinate_step_px: the grid, in model-input pixels, on which the model is taught to click.
    pixel_mean, pixel_std: of screens, in [0, 1]: normalising with them is what lets a model learn from nothing.
    words: whole-word tokens; any other text is encoded in bytes.
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
