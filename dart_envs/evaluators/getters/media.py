"""Getters of media programs.

Role: one coroutine per getter, and `GETTERS` of this module; ours. Rule: a player that does not run or does not answer is the policy's
doing. Non-goals: comparing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dart_envs.evaluators.artifacts import InvalidArtifact, load_json
from dart_envs.evaluators.evidence import look, require_listener, run_program
from dart_envs.evaluators.getters.base import Getter, GetterConfig, GetterContext
from dart_envs.evaluators.getters.protected import check_listener
from dart_envs.types import Desktop
from dart_server.wire import StatQuery

VLC_PORT = 8080
VLC_PROGRAM = "/usr/bin/vlc"
VLC_USER_SCRIPTS = "/home/user/.local/share/vlc/lua"
VLC_STATUS_URL = f"http://127.0.0.1:{VLC_PORT}/requests/status.json"
VLC_PASSWORD = "password"
TIMEOUT_S = 10.0


async def vlc_state(context: GetterContext, config: GetterConfig) -> Any:
    """{[protected]}: what VLC says of itself by its web interface (state, loop, repeat, …), and `file`: the name of what it plays.

    Where the host can look, `file` is "" unless the player has a file of that name open, not only a link of that name to another one.

    Raises InvalidArtifact where no player answers, or something else does: another program, VLC with scripts of the user's, which can
    answer anything, and, with `protected`, another player than the one that the task started in the protected group.
    """
    desktop = context.desktop
    if config.get("protected"):
        await check_listener(context, VLC_PORT, VLC_PROGRAM)
    player = await require_listener(desktop, VLC_PORT, VLC_PROGRAM)
    if player is not None:
        await _require_own_scripts(desktop)
    argv = ["/usr/bin/curl", "--disable", "--silent", "--fail", "--max-time", "5", "--user", f":{VLC_PASSWORD}"]
    reply = await run_program(desktop, [*argv, VLC_STATUS_URL], timeout_s=TIMEOUT_S)
    try:
        said = load_json(reply.stdout)
        meta = said.get("information", {}).get("category", {}).get("meta", {})
        name = meta.get("filename", "")
        is_open = player is None or any(path.rpartition("/")[2] == name for path in player.open_files)
        return said | {"file": name if is_open else ""}
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidArtifact(f"VLC does not answer (curl ended with {reply.returncode})") from error


async def _require_own_scripts(desktop: Desktop) -> None:
    seen = await look(desktop, StatQuery(path=VLC_USER_SCRIPTS, follow=False))
    if seen is not None and seen.answers[0].error != "not_found":
        raise InvalidArtifact("the player has scripts of its user's that answer for it")


GETTERS: Mapping[str, Getter] = {"vlc_state": vlc_state}
