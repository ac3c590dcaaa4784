"""What agents call on `env.controller` and `env.setup_controller`, over the desktop's own HTTP server.

Role: `PythonController` and `SetupController` with the methods and answers of OSWorld's. Rule: as there, what cannot be had is None and is
logged; nothing is tried three times with pauses, because the way to the desktop is a tunnel on this machine. Non-goals: OSWorld's own
controllers, which work on `env.vm_ip` and `env.server_port` unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from dart_envs.envs.core import CODE_PREAMBLE

log = logging.getLogger(__name__)

TIMEOUT_S = 150.0


class PythonController:
    """One desktop's server. `address`: host and port of the tunnel that leads there now."""

    def __init__(self, address: Callable[[], tuple[str, int]]) -> None:
        self._address = address

    def _request(self, method: str, path: str, *, timeout_s: float = TIMEOUT_S, **how: Any) -> httpx.Response | None:
        host, port = self._address()
        try:
            reply = httpx.request(method, f"http://{host}:{port}{path}", timeout=timeout_s, **how)
        except httpx.HTTPError as error:
            log.error("%s %s: %s", method, path, error)
            return None
        if reply.is_success:
            return reply
        log.error("%s %s: status %d: %s", method, path, reply.status_code, reply.text[:300])
        return None

    def _json(self, method: str, path: str, **how: Any) -> Any:
        reply = self._request(method, path, **how)
        return None if reply is None else reply.json()

    def get_screenshot(self) -> bytes | None:
        """PNG bytes, with the pointer drawn in."""
        reply = self._request("GET", "/screenshot")
        return None if reply is None else reply.content

    def get_accessibility_tree(self) -> str | None:
        """The accessibility tree, XML."""
        answer = self._json("GET", "/accessibility")
        return None if answer is None else str(answer["AT"])

    def get_terminal_output(self) -> str | None:
        """Text of the focused terminal."""
        answer = self._json("GET", "/terminal")
        return None if answer is None else answer["output"]

    def get_file(self, file_path: str) -> bytes | None:
        """Content of a file inside the desktop."""
        reply = self._request("POST", "/file", data={"file_path": file_path})
        return None if reply is None else reply.content

    def execute_python_command(self, command: str) -> dict[str, Any] | None:
        """Run Python after an import of pyautogui; output, error, returncode, status."""
        body = {"command": ["python", "-c", CODE_PREAMBLE + command], "shell": False}
        answer: dict[str, Any] | None = self._json("POST", "/execute", json=body)
        return answer

    def run_python_script(self, script: str) -> dict[str, Any] | None:
        """Run a script; status, output, error, return_code."""
        answer: dict[str, Any] | None = self._json("POST", "/run_python", json={"code": script})
        return answer

    def run_bash_script(self, script: str, timeout: int = 30, working_dir: str | None = None) -> dict[str, Any] | None:
        """Run a shell script; status, output, returncode. timeout: seconds."""
        body = {"script": script, "timeout": timeout, "working_dir": working_dir}
        answer: dict[str, Any] | None = self._json("POST", "/run_bash_script", json=body, timeout_s=timeout + 30.0)
        return answer

    def start_recording(self) -> None:
        """Begin a film of the screen."""
        self._request("POST", "/start_recording")

    def end_recording(self, dest: str) -> None:
        """End the film and write it (MP4) to `dest`."""
        reply = self._request("POST", "/end_recording")
        if reply is not None:
            with open(dest, "wb") as file:
                file.write(reply.content)

    def get_vm_platform(self) -> str:
        """`Linux`."""
        reply = self._request("GET", "/platform")
        return "" if reply is None else reply.text

    def get_vm_screen_size(self) -> dict[str, int] | None:
        """`width` and `height`, pixels."""
        size: dict[str, int] | None = self._json("POST", "/screen_size")
        return size

    def get_vm_window_size(self, app_class_name: str) -> dict[str, int] | None:
        """`width` and `height` of a window, pixels."""
        size: dict[str, int] | None = self._json("POST", "/window_size", data={"app_class_name": app_class_name})
        return size

    def get_vm_wallpaper(self) -> bytes | None:
        """The picture behind the windows."""
        reply = self._request("POST", "/wallpaper")
        return None if reply is None else reply.content

    def get_vm_desktop_path(self) -> str | None:
        """The folder whose files lie on the desktop."""
        answer = self._json("POST", "/desktop_path")
        return None if answer is None else answer["desktop_path"]

    def get_vm_directory_tree(self, path: str) -> dict[str, Any] | None:
        """Type, name and children, to the leaves."""
        answer = self._json("POST", "/list_directory", json={"path": path})
        return None if answer is None else answer["directory_tree"]


class SetupController:
    """Setup steps on the running desktop."""

    def __init__(self, perform: Callable[[Sequence[Mapping[str, Any]]], None]) -> None:
        self._perform = perform

    def setup(self, config: Sequence[Mapping[str, Any]], use_proxy: bool = False) -> bool:
        """Perform steps in order; True when all came through. Raises SetupError, where OSWorld raises what its step raised."""
        if use_proxy:
            raise ValueError("Desktops here have no proxy; use_proxy is False.")
        self._perform(config)
        return True
