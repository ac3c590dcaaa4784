"""Supervised warm start: from demonstrations and the accessibility trees of their screens to policy version 0.

Role: a process of its own (`python -m dart_train.warmup --config FILE`); `warm_start(config)` is the same without the process.
Rule: it reads annotated screens only, never a desktop, a rollout or an evaluation. The policy still maps pixels and text to action text:
the accessibility tree only labels the images. Non-goals: reinforcement learning (`dart_train.trainer.trainer`).

    screens (read) → pages → reading (the vision tower)
    screens (read) → queries (questions about a screen) → packing (one image, many questions) → fit (the loop)
"""

from __future__ import annotations

from dart_train.warmup.config import WarmupConfig
from dart_train.warmup.fit import WarmupResult, warm_start

__all__ = ["WarmupConfig", "WarmupResult", "warm_start"]
