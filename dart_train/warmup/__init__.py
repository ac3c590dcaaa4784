"""Supervised warm start: from demonstrations and the accessibility trees of their screens to policy version 0.

Role: a process of its own (`python -m dart_train.warmup --config FILE`); `warm_start(config)` is the same without the process.
Rule: reads annotated screens only, never a desktop, a rollout or an evaluation. What is trained stays pixels and text in, action
text out: the accessibility tree only labels the pictures. Non-goals: reinforcement (`dart_train.trainer.trainer`).

    screens (read) → queries (what to ask about a screen) → packing (one picture, many questions) → fit (the loop)
"""

from __future__ import annotations

from dart_train.warmup.config import WarmupConfig
from dart_train.warmup.fit import WarmupResult, warm_start

__all__ = ["WarmupConfig", "WarmupResult", "warm_start"]
