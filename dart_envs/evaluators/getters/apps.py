"""Getters of applications' settings, and of what the post-configuration printed.

Role: one coroutine per getter, and `GETTERS` of this module. Names and parameters are OSWorld's. Non-goals: comparing.
"""

from __future__ import annotations

from collections.abc import Mapping

from dart_envs.errors import EvaluatorError
from dart_envs.evaluators.artifacts import GuestFile
from dart_envs.evaluators.getters.base import Getter, GetterConfig, GetterContext, read_guest_file, required_text

HOME = "/home/user"


async def vlc_config(context: GetterContext, config: GetterConfig) -> GuestFile:
    """VLC's settings file, vlcrc."""
    return await read_guest_file(context, f"{HOME}/.config/vlc/vlcrc")


async def gimp_config_file(context: GetterContext, config: GetterConfig) -> GuestFile:
    """{file_name}: a settings file of GIMP 2.10."""
    return await read_guest_file(context, f"{HOME}/.config/GIMP/2.10/{required_text(config, 'file_name')}")


async def cache_file(context: GetterContext, config: GetterConfig) -> GuestFile:
    """{path}: what a step of the post-configuration printed, under the name that the step gave it. Raises EvaluatorError where none did."""
    name = required_text(config, "path")
    if name not in context.step_outputs:
        raise EvaluatorError(f"No step of the post-configuration printed a file {name!r}.")
    return GuestFile(name, context.step_outputs[name].encode())


GETTERS: Mapping[str, Getter] = {
    "vlc_config": vlc_config,
    "gimp_config_file": gimp_config_file,
    "cache_file": cache_file,
}
