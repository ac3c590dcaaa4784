"""What agents call on `env.controller` and `env.setup_controller`, over the desktop's own HTTP server.

`PythonController` and `SetupController` have the methods and answers of OSWorld's classes. As there, a result that is
not available is None and is logged. Requests are not repeated with pauses, because a tunnel on this host leads to the
desktop. OSWorld's own controllers also work, unchanged, on `env.vm_ip` and `env.server_port`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from dart_envs.envs.agent_code import CODE_PREAMBLE

log = logging.getLogger(__name__)

TIMEOUT_S = 150.0


class PythonController:
    """The HTTP server of one desktop.

    Args:
        address: Returns host and port of the tunnel that leads to the desktop now.
    """

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
        """Return the screen as PNG bytes, with the pointer drawn in."""
        reply = self._request("GET", "/screenshot")
        return None if reply is None else reply.content

    def get_accessibility_tree(self) -> str | None:
        """Return the accessibility tree as XML."""
        answer = self._json("GET", "/accessibility")
        return None if answer is None else str(answer["AT"])

    def get_terminal_output(self) -> str | None:
        """Return the text of the focused terminal."""
        answer = self._json("GET", "/terminal")
        return None if answer is None else answer["output"]

    def get_file(self, file_path: str) -> bytes | None:
        """Read a file inside the desktop.

        Args:
            file_path: Path inside the desktop.

        Returns:
            The content, or None when there is no such file.
        """
        reply = self._request("POST", "/file", data={"file_path": file_path})
        return None if reply is None else reply.content

    def execute_python_command(self, command: str) -> dict[str, Any] | None:
        """Run Python after an import of pyautogui.

        Args:
            command: The code.

        Returns:
            `output`, `error`, `returncode` and `status`, or None when the request failed.
        """
        body = {"command": ["python", "-c", CODE_PREAMBLE + command], "shell": False}
        answer: dict[str, Any] | None = self._json("POST", "/execute", json=body)
        return answer

    def run_python_script(self, script: str) -> dict[str, Any] | None:
        """Run a Python script.

        Args:
            script: The code.

        Returns:
            `status`, `output`, `error` and `return_code`, or None when the request failed.
        """
        answer: dict[str, Any] | None = self._json("POST", "/run_python", json={"code": script})
        return answer

    def run_bash_script(self, script: str, timeout: int = 30, working_dir: str | None = None) -> dict[str, Any] | None:
        """Run a shell script.

        Args:
            script: The code.
            timeout: Seconds until it is stopped.
            working_dir: Directory inside the desktop; None is the server's own.

        Returns:
            `status`, `output` and `returncode`, or None when the request failed.
        """
        body = {"script": script, "timeout": timeout, "working_dir": working_dir}
        answer: dict[str, Any] | None = self._json("POST", "/run_bash_script", json=body, timeout_s=timeout + 30.0)
        return answer

    def start_recording(self) -> None:
        """Begin a recording of the screen."""
        self._request("POST", "/start_recording")

    def end_recording(self, dest: str) -> None:
        """End the recording and write it.

        Args:
            dest: Path of the MP4 file on this host.
        """
        reply = self._request("POST", "/end_recording")
        if reply is not None:
            with open(dest, "wb") as file:
                file.write(reply.content)

    def get_vm_platform(self) -> str:
        """Return `Linux`."""
        reply = self._request("GET", "/platform")
        return "" if reply is None else reply.text

    def get_vm_screen_size(self) -> dict[str, int] | None:
        """Return `width` and `height` of the screen in pixels."""
        size: dict[str, int] | None = self._json("POST", "/screen_size")
        return size

    def get_vm_window_size(self, app_class_name: str) -> dict[str, int] | None:
        """Return the size of a window.

        Args:
            app_class_name: Class of the window.

        Returns:
            `width` and `height` in pixels, or None when the request failed.
        """
        size: dict[str, int] | None = self._json("POST", "/window_size", data={"app_class_name": app_class_name})
        return size

    def get_vm_wallpaper(self) -> bytes | None:
        """Return the picture behind the windows."""
        reply = self._request("POST", "/wallpaper")
        return None if reply is None else reply.content

    def get_vm_desktop_path(self) -> str | None:
        """Return the directory whose files are shown on the desktop."""
        answer = self._json("POST", "/desktop_path")
        return None if answer is None else answer["desktop_path"]

    def get_vm_directory_tree(self, path: str) -> dict[str, Any] | None:
        """Return a directory with everything in it.

        Args:
            path: Path inside the desktop.

        Returns:
            Type, name and children, recursively, or None when the request failed.
        """
        answer = self._json("POST", "/list_directory", json={"path": path})
        return None if answer is None else answer["directory_tree"]


class SetupController:
    """Setup steps on the running desktop.

    Args:
        perform: Performs the steps.
    """

    def __init__(self, perform: Callable[[Sequence[Mapping[str, Any]]], None]) -> None:
        self._perform = perform

    def setup(self, config: Sequence[Mapping[str, Any]], use_proxy: bool = False) -> bool:
        """Perform setup steps in order.

        Args:
            config: The steps, as in a task file.
            use_proxy: Must be False.

        Returns:
            True when all steps succeeded.

        Raises:
            SetupError: If a step failed; OSWorld raises the step's own error.
            ValueError: If a proxy is asked for.
        """
        if use_proxy:
            raise ValueError("Desktops here have no proxy; use_proxy is False.")
        self._perform(config)
        return True
