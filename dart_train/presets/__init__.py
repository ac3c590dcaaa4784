"""Named shapes of small models that are initialised here, without any download.

Role: `PRESETS[name]` is everything that `dart_train.model.init_model` needs to write a model directory. Rule: plain frozen data, imported
without torch. Non-goals: published checkpoints; those load by name or path and need no preset.
"""

from __future__ import annotations

from dart_train.presets.spec import ModelPreset
from dart_train.presets.tiny import TINY

PRESETS: dict[str, ModelPreset] = {TINY.name: TINY}

__all__ = ["PRESETS", "ModelPreset"]
