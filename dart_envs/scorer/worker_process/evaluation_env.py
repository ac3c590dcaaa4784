"""The `env` that official getters are given: addresses, ports, a cache folder and OSWorld's own controller.

Role: `EvaluationEnv`, with the attributes of `DesktopEnv` that getters of releases up to 2026 touch. Rule: the desktop is reached through
its HTTP paths only; a call to them that got no answer is remembered, since controllers swallow it. Non-goals: setup, stepping.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

RETRY_PAUSE_S = 0.5
"""Between the three tries of OSWorld's controller; a file that does not exist is asked for three times."""


class EvaluationEnv:
    """A desktop, as far as getters look at it."""

    def __init__(self, said: Mapping[str, Any], cache_dir: str) -> None:
        controllers = importlib.import_module("desktop_env.controllers.python")
        self.vm_ip = str(said["host"])
        self.server_port = int(said["server_port"])
        self.chromium_port = int(said.get("chromium_port", 9222))
        self.vlc_port = int(said.get("vlc_port", 8080))
        self.vnc_port = 8006
        self.screen_width, self.screen_height = said.get("screen", (1920, 1080))
        self.client_password = self.vlc_password = str(said.get("password", "password"))
        self.cache_dir = cache_dir
        self.current_use_proxy = self.enable_proxy = False
        self.action_history: list[str] = []
        self.vm_machine = "x86_64"
        self.controller = controllers.PythonController(self.vm_ip, self.server_port)
        self.controller.retry_interval = RETRY_PAUSE_S

    @property
    def vm_platform(self) -> Any:
        """What `platform.system()` says in the desktop."""
        return self.controller.get_vm_platform()

    @property
    def vm_screen_size(self) -> Any:
        """Width and height in pixels."""
        return self.controller.get_vm_screen_size()


class SingleFileEnv:
    """A desktop that holds one file at every path, for comparing what getters make of it."""

    def __init__(self, content: bytes | None) -> None:
        self.vm_platform = "Linux"
        self.controller = self
        self._content = content

    def execute_python_command(self, _command: str) -> dict[str, str]:
        """Every path is the same."""
        return {"output": "/file"}

    def get_file(self, _path: str) -> bytes | None:
        """The file."""
        return self._content


class RequestMonitor:
    """Remembers which requests to the desktop's server got no answer at their last try, and keeps requests to the desktop there.

    A program in the desktop may listen on a port that a getter asks. Its answer must not lead the getter to services of this host.
    """

    def __init__(self) -> None:
        self.unanswered: dict[str, str] = {}
        self.address = ""
        self.host = ""

    def install(self) -> None:
        """Look at every request that `requests` sends from now on."""
        sessions = importlib.import_module("requests.sessions")
        send = sessions.Session.send

        def monitored_send(session: Any, request: Any, **options: Any) -> Any:
            ours = bool(self.address) and str(request.url).startswith(self.address)
            if self.host and urlsplit(str(request.url)).hostname == self.host:
                options["allow_redirects"] = False
            try:
                answer = send(session, request, **options)
            except Exception as error:
                if ours:
                    self.unanswered[request.url] = f"{type(error).__name__}: {error}"
                raise
            if ours:
                self.unanswered.pop(request.url, None)
            return answer

        sessions.Session.send = monitored_send

    def start(self, env: EvaluationEnv) -> None:
        """Forget what was, and look at this desktop."""
        self.unanswered = {}
        self.host = env.vm_ip
        self.address = f"http://{env.vm_ip}:{env.server_port}/"


def ensure_cache_dir(cache_dir: str) -> None:
    """See that the cache folder is there."""
    Path(cache_dir).mkdir(parents=True, exist_ok=True)
