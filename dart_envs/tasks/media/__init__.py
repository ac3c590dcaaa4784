"""The bundled suite `media`: pictures in GIMP and the image viewer, sound and video in VLC, documents in the PDF viewer.

Role: `MEDIA`, put together from one module per kind of program. Rule: every family proves its evaluator (oracle 1; nothing, near miss and
both exploits 0) on the image `desktop`; pictures are drawn by `dart_envs.evaluators.images`, sounds by the desktop's own ffmpeg,
nothing is downloaded. Non-goals: office documents.
"""

from __future__ import annotations

from dart_envs.tasks.media import gimp, player, viewers
from dart_envs.tasks.suite import Suite

MEDIA = Suite.from_families("media", (*gimp.FAMILIES, *player.FAMILIES, *viewers.FAMILIES), image="desktop")
"""All families of the suite."""
