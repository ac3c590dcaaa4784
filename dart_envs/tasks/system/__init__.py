"""The bundled suite `system`: files, archives, text, permissions, processes and settings of an Xfce desktop.

Role: `SYSTEM`, put together from one module per kind of work. Rule: every family proves its evaluator (oracle 1; nothing,
near miss and both exploits 0) on the image `desktop` and needs no internet; what a shell does rightly is right. Non-goals:
office documents, the web, pictures.
"""

from __future__ import annotations

from dart_envs.tasks.suite import Suite
from dart_envs.tasks.system import archives, files, processes, settings, shell, texts

SYSTEM = Suite.from_families(
    "system",
    (
        *files.FAMILIES,
        *texts.FAMILIES,
        *shell.FAMILIES,
        *archives.FAMILIES,
        *processes.FAMILIES,
        *settings.FAMILIES,
    ),
    image="desktop",
)
"""All families of the suite."""
