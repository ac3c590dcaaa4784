"""OSWorld's paths that run programs or act on windows.

Role: execute, launch, open, activate, close, run_python, run_bash_script, in OSWorld's forms; all as `user`.
Rule: a program's failure is an answer, not an error; only what could not be tried at all is a 500, as OSWorld's client
expects. `shell` runs the caller's own string with sh: that is what these paths are for.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from dart_guest import windows
from dart_guest.agent import Agent
from dart_guest.http import agent_of, json_body
from dart_guest.osworld import expand, guest_path
from dart_guest.processes import Finished

EXECUTE_LIMIT_S = 120.0
PYTHON_LIMIT_S = 30.0
OPEN_LIMIT_S = 1800.0
WINDOW_POLL_S = 0.1
TOOL_LIMIT_S = 10.0
ACTIVE_LIMIT_S = 1.0
ACTIVE_POLL_S = 0.01
TAKEN_WINDOW = re.compile(rb"Using window: (0x[0-9a-f]+)")
"""What `wmctrl -v` writes of the window that it takes."""
TITLE_ALIAS = ("Google Chrome", "Chromium")
"""Chromium stands in for Google's browser, under whose name OSWorld's tasks look for its windows."""

routes = web.RouteTableDef()


class BadCommand(ValueError):
    """A command that is neither a string nor a list of strings."""


def command_argv(command: object, shell: bool) -> list[str]:
    """OSWorld's command field as an argument list."""
    if isinstance(command, str):
        return ["/bin/sh", "-c", command] if shell else [expand_home(part) for part in shlex.split(command)]
    if isinstance(command, list) and command and all(isinstance(part, str | int | float) for part in command):
        parts = [str(part) for part in command]
        if shell:
            return ["/bin/sh", "-c", *parts]
        return [expand_home(part) for part in parts]
    raise BadCommand("command must be a non-empty string or list")


def expand_home(part: str) -> str:
    """A leading ~/ only: the rest of an argument belongs to the program."""
    return expand(part) if part.startswith("~/") else part


def refused(message: str) -> web.Response:
    """OSWorld's error form."""
    return web.json_response({"status": "error", "message": message}, status=500)


def outcome(ended: Finished) -> dict[str, Any]:
    """OSWorld's success form."""
    return {
        "status": "success",
        "output": ended.stdout.decode(errors="replace"),
        "error": ended.stderr.decode(errors="replace"),
        "returncode": ended.returncode,
    }


async def run_command(agent: Agent, body: Mapping[str, Any]) -> Finished:
    """Run what an execute request asks for."""
    argv = command_argv(body.get("command", ""), bool(body.get("shell", False)))
    return await agent.runner.run(argv, timeout_s=EXECUTE_LIMIT_S)


@routes.post("/execute")
@routes.post("/setup/execute")
async def execute(request: web.Request) -> web.Response:
    """Run a command and return its output."""
    try:
        ended = await run_command(agent_of(request), await json_body(request))
    except ValueError as error:
        return refused(str(error))
    if ended.timed_out:
        return refused(f"Command timed out after {EXECUTE_LIMIT_S:g} seconds")
    if ended.pid is None:
        return refused(ended.stderr.decode(errors="replace"))
    return web.json_response(outcome(ended))


async def verified(agent: Agent, wanted: Mapping[str, Any]) -> dict[str, bool]:
    """Each condition of a verification, and whether it holds now."""
    found: dict[str, bool] = {}
    if "window_exists" in wanted:
        listed = await agent.on_desktop(lambda: windows.listed(agent.desktop.connection()))
        found["window_exists"] = any(str(wanted["window_exists"]) in window.title for window in listed)
    if "command_success" in wanted:
        argv = ["/bin/sh", "-c", str(wanted["command_success"])]
        ended = await agent.runner.run(argv, timeout_s=TOOL_LIMIT_S)
        found["command_success"] = ended.returncode == 0
    return found


@routes.post("/execute_with_verification")
@routes.post("/setup/execute_with_verification")
async def execute_with_verification(request: web.Request) -> web.Response:
    """Run a command, then wait until its conditions hold."""
    agent = agent_of(request)
    body = await json_body(request)
    try:
        ended = await run_command(agent, body)
        limit_s = float(body.get("max_wait_time", 10))
        interval_s = max(0.05, float(body.get("check_interval", 1)))
    except (ValueError, TypeError) as error:
        return refused(str(error))
    start_s = time.monotonic()
    while True:
        conditions = await verified(agent, body.get("verification") or {})
        waited_s = time.monotonic() - start_s
        report = outcome(ended) | {"verification": conditions, "wait_time": waited_s}
        if all(conditions.values()):
            return web.json_response(report)
        if waited_s >= limit_s:
            failed = {"status": "error", "message": f"Verification failed within {limit_s:g} seconds"}
            return web.json_response(report | failed, status=500)
        await asyncio.sleep(min(interval_s, max(0.01, limit_s - waited_s)))


@routes.post("/setup/launch")
async def launch(request: web.Request) -> web.Response:
    """Start a program and leave it running."""
    body = await json_body(request)
    try:
        argv = command_argv(body.get("command", ""), bool(body.get("shell", False)))
        await agent_of(request).runner.launch(argv)
    except (OSError, ValueError) as error:
        return refused(str(error))
    command = body["command"]
    shown = command if isinstance(command, str) else " ".join(str(part) for part in command)
    return web.Response(text=f"{shown} launched successfully")


@routes.post("/setup/open_file")
async def open_file(request: web.Request) -> web.Response:
    """Open a file with its program, or start a program, and wait for its window."""
    agent = agent_of(request)
    named = (await json_body(request)).get("path")
    if not isinstance(named, str) or not named:
        return web.Response(text="Path not supplied!", status=400)
    path = guest_path(named)
    is_file = await asyncio.to_thread(path.exists)
    before = {window.id for window in await agent.on_desktop(lambda: windows.listed(agent.desktop.connection()))}
    try:
        await agent.runner.launch(["xdg-open", str(path)] if is_file else [named])
    except OSError:
        return web.Response(text=f"Application/file not found: {named}", status=404)
    deadline_s = time.monotonic() + OPEN_LIMIT_S
    while time.monotonic() < deadline_s:
        for window in await agent.on_desktop(lambda: windows.listed(agent.desktop.connection())):
            matches = path.name in window.title or path.stem in window.title
            if matches or (not is_file and window.id not in before):
                await activate_id(agent, window.id)
                return web.Response(text="File opened and window activated successfully")
        await asyncio.sleep(WINDOW_POLL_S)
    return web.Response(text=f"No window for {named} appeared within {OPEN_LIMIT_S:g} s", status=500)


async def activate_id(agent: Agent, window: int) -> None:
    """Raise and focus a window by id."""
    await agent.runner.run(["wmctrl", "-i", "-a", hex(window)], timeout_s=TOOL_LIMIT_S)
    await wait_active(agent, window)


async def wait_active(agent: Agent, window: int) -> None:
    """Wait until the window manager made a window the active one, for at most ACTIVE_LIMIT_S: a modal dialog above it keeps the focus."""
    deadline_s = time.monotonic() + ACTIVE_LIMIT_S
    while time.monotonic() < deadline_s:
        if window in await agent.on_desktop(lambda: windows.active(agent.desktop.connection())):
            return
        await asyncio.sleep(ACTIVE_POLL_S)


def wmctrl_argv(action: str, body: Mapping[str, Any]) -> list[str]:
    """wmctrl's arguments for a window by title, exact title (`strict`) or class (`by_class`); it says which window it took."""
    options = ["-v", "-F"] if body.get("strict", False) else ["-v"]
    name = str(body.get("window_name", ""))
    if body.get("by_class", False):
        return ["wmctrl", *options, "-x", action, name]
    return ["wmctrl", *options, action, name.replace(*TITLE_ALIAS)]


async def act_on_window(request: web.Request, action: str, done: str) -> web.Response:
    """Activate, and wait until it is done, or close; as OSWorld on Linux, no match is not told apart."""
    body = await json_body(request)
    if not body.get("window_name"):
        return web.Response(text="window_name is required", status=400)
    agent = agent_of(request)
    said = await agent.runner.run(wmctrl_argv(action, body), timeout_s=TOOL_LIMIT_S)
    taken = TAKEN_WINDOW.search(said.stderr)
    if action == "-a" and taken is not None:
        await wait_active(agent, int(taken[1], 16))
    return web.Response(text=done)


@routes.post("/setup/activate_window")
async def activate_window(request: web.Request) -> web.Response:
    """Raise and focus a window."""
    return await act_on_window(request, "-a", "Window activated successfully")


@routes.post("/setup/close_window")
async def close_window(request: web.Request) -> web.Response:
    """Ask a window to close."""
    return await act_on_window(request, "-c", "Window closed successfully.")


@routes.post("/run_python")
async def run_python(request: web.Request) -> web.Response:
    """Run a Python program."""
    code = (await json_body(request)).get("code")
    if not isinstance(code, str) or not code:
        return web.json_response({"status": "error", "message": "Code not supplied!"}, status=400)
    ended = await agent_of(request).runner.run(["/usr/bin/python3", "-"], timeout_s=PYTHON_LIMIT_S, stdin=code.encode())
    good = ended.returncode == 0
    stderr = ended.stderr.decode(errors="replace")
    stdout = ended.stdout.decode(errors="replace")
    message = f"timed out after {PYTHON_LIMIT_S:g} s" if ended.timed_out else stdout + stderr
    report = {
        "status": "success" if good else "error",
        "message": message,
        "need_more": False,
        "output": stdout,
        "error": stderr,
        "return_code": ended.returncode,
    }
    return web.json_response(report, status=200 if good else 500)


@routes.post("/run_bash_script")
async def run_bash_script(request: web.Request) -> web.Response:
    """Run a bash script; both streams come back as one."""
    body = await json_body(request)
    script, working_dir = body.get("script"), body.get("working_dir")
    if not isinstance(script, str) or not script:
        return web.json_response({"status": "error", "output": "", "error": "", "returncode": -1}, status=400)
    cwd = expand(working_dir) if isinstance(working_dir, str) and working_dir else None
    if cwd is not None and not await asyncio.to_thread(Path(cwd).is_dir):
        message = f"Working directory does not exist: {cwd}"
        report = {"status": "error", "output": message, "error": "", "returncode": -1}
        return web.json_response(report, status=400)
    limit_s = float(body.get("timeout", 100))
    ended = await agent_of(request).runner.run(["/bin/bash", "-c", f"exec 2>&1\n{script}"], timeout_s=limit_s, cwd=cwd)
    if ended.timed_out:
        message = f"Script execution timed out after {limit_s:g} seconds"
        report = {"status": "error", "output": message, "error": "", "returncode": -1}
        return web.json_response(report, status=500)
    report = {
        "status": "success" if ended.returncode == 0 else "error",
        "output": ended.stdout.decode(errors="replace"),
        "error": "",
        "returncode": ended.returncode,
    }
    return web.json_response(report)
