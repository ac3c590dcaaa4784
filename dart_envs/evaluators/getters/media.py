"""Getters of media programs.

Role: one coroutine per getter, and `GETTERS` of this module; ours. Rule: a player that does not run or does not answer is the policy's
doing. Non-goals: comparing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dart_envs.evaluators.artifacts import InvalidArtifact
from dart_envs.evaluators.getters.base import Getter, GetterConfig, GetterContext

VLC_STATUS_URL = "http://127.0.0.1:8080/requests/status.json"
VLC_PASSWORD = "password"
TIMEOUT_S = 10.0


async def vlc_state(context: GetterContext, config: GetterConfig) -> Any:
    """What VLC says of itself by its web interface (state, loop, repeat, random, rate, …), and `file`: the name of what it plays.

    Raises InvalidArtifact where no player answers.
    """
    argv = ["curl", "--silent", "--fail", "--max-time", "5", "--user", f":{VLC_PASSWORD}", VLC_STATUS_URL]
    reply = await context.desktop.exec(argv, timeout_s=TIMEOUT_S)
    try:
        said = json.loads(reply.stdout)
        meta = said.get("information", {}).get("category", {}).get("meta", {})
        return said | {"file": meta.get("filename", "")}
    except (json.JSONDecodeError, AttributeError, TypeError) as error:
        raise InvalidArtifact(f"VLC does not answer (curl ended with {reply.returncode})") from error


GETTERS: Mapping[str, Getter] = {"vlc_state": vlc_state}
