"""A class name that published checkpoints still use and transformers no longer has.

Role: `register_legacy_processors()` is called before a checkpoint's processor is loaded (`dart_train.model` does; vLLM's processes do through the
general plugin). Qwen2.5-VL checkpoints of early 2025, and what was made of them, name `Qwen2_5_VLImageProcessor`, which has become
`Qwen2VLImageProcessor`. Rule: the old name leads to the class that transformers chooses for the architecture; checkpoints with the new
name are not touched. Non-goals: old settings.
"""

from __future__ import annotations

_OLD_NAME = "Qwen2_5_VLImageProcessor"


def register_legacy_processors() -> None:
    """Register the old name as one more form of the architecture's image processor; idempotent."""
    from transformers import AutoImageProcessor, Qwen2_5_VLConfig, Qwen2VLImageProcessor

    renamed = type(_OLD_NAME, (Qwen2VLImageProcessor,), {})
    AutoImageProcessor.register(Qwen2_5_VLConfig, image_processor_classes={_OLD_NAME: renamed}, exist_ok=True)
