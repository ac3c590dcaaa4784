"""Getters of applications' settings, and of what the post-configuration printed.

Role: one coroutine per getter, and `GETTERS` of this module. Names and parameters are OSWorld's. Non-goals: comparing.
"""

from __future__ import annotations

from collections.abc import Mapping

from dart_envs.errors import EvaluatorError
from dart_envs.evaluators.artifacts import GuestFile
from dart_envs.evaluators.getters.base import Config, Getter, Probe, read_guest_file, text_of

HOME = "/home/user"


async def vlc_config(probe: Probe, config: Config) -> GuestFile:
    """VLC's settings file, vlcrc."""
    return await read_guest_file(probe, f"{HOME}/.config/vlc/vlcrc")


async def gimp_config_file(probe: Probe, config: Config) -> GuestFile:
    """{file_name}: a settings file of GIMP 2.10."""
    return await read_guest_file(probe, f"{HOME}/.config/GIMP/2.10/{text_of(config, 'file_name')}")


async def cache_file(probe: Probe, config: Config) -> GuestFile:
    """{path}: what a step of the post-configuration printed, under the name that the step gave it. Raises EvaluatorError where none did."""
    name = text_of(config, "path")
    if name not in probe.kept:
        raise EvaluatorError(f"No step of the post-configuration printed a file {name!r}.")
    return GuestFile(name, probe.kept[name].encode())


GETTERS: Mapping[str, Getter] = {
    "vlc_config": vlc_config,
    "gimp_config_file": gimp_config_file,
    "cache_file": cache_file,
}
