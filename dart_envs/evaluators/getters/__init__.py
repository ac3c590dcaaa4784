"""Getters: read the end state of a desktop.

Role: `GETTERS[type](context, config)` returns the value that a metric compares; one module per kind of thing read,
each with a table of its own, put together here. Rule: two modules never serve the same name.
"""

from __future__ import annotations

from collections.abc import Mapping

from dart_envs.evaluators.getters import apps, chrome, desktop, media, protected, system, web, windows
from dart_envs.evaluators.getters.base import Getter, GetterContext

__all__ = ["GETTERS", "Getter", "GetterContext"]

GETTERS: Mapping[str, Getter] = {
    **desktop.GETTERS,
    **apps.GETTERS,
    **chrome.GETTERS,
    **media.GETTERS,
    **protected.GETTERS,
    **system.GETTERS,
    **web.GETTERS,
    **windows.GETTERS,
}
