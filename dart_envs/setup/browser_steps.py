"""Setup steps about the browser, downloads and the look of the desktop.

Role: one coroutine per step type, and `PERFORMERS` of this module. Rule: as in `dart_envs.setup.steps`. Non-goals: how the browser is
spoken to (`dart_envs.setup.browser`), the asset cache (`dart_envs.assets`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

from dart_envs import assets
from dart_envs.setup import browser, params, windows
from dart_envs.setup.steps import Performer, SetupContext, StepFailedError, command_argv, write_and_verify


async def download(context: SetupContext, step: params.DownloadParameters) -> None:
    """Put files from the asset cache, fetched first where it has them not, into the desktop."""
    for file in step.files:
        name = f"{context.task_id or 'tasks'}/{assets.download_name(file.url, file.path)}"
        path = await asyncio.to_thread(assets.fetch_asset, file.url, name, task_id=context.task_id, sha256=file.sha256)
        await write_and_verify(context, file.path, await asyncio.to_thread(path.read_bytes), 0o644)


async def chrome_open_tabs(context: SetupContext, step: params.OpenTabsParameters) -> None:
    """Open addresses in tabs."""
    try:
        async with browser.connect_browser(context.desktop, context.clock, step.timeout_s) as reached:
            await browser.open_tabs(reached, step.urls_to_open)
    except browser.BrowserError as error:
        raise StepFailedError(str(error)) from error


async def chrome_close_tabs(context: SetupContext, step: params.CloseTabsParameters) -> None:
    """Close the tabs of addresses."""
    try:
        async with browser.connect_browser(context.desktop, context.clock, step.timeout_s) as reached:
            await browser.close_tabs(reached, step.urls_to_close, context.clock, step.timeout_s)
    except browser.BrowserError as error:
        raise StepFailedError(str(error)) from error


async def login(context: SetupContext, step: params.LoginParameters) -> None:
    """Log in to a site with an account from a file on this side."""
    path = Path(step.settings_file)
    if not path.is_absolute() and context.assets is not None:
        path = context.assets / path
    try:
        account = json.loads(await asyncio.to_thread(path.read_text, encoding="utf-8"))
        email, password = str(account["email"]), str(account["password"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StepFailedError(
            f'{path} must hold {{"email": …, "password": …}} of an account: {type(error).__name__}: {error}'
        ) from error
    try:
        async with browser.connect_browser(context.desktop, context.clock, step.timeout_s) as reached:
            await browser.log_in_to_google_drive(reached, email, password)
    except browser.BrowserError as error:
        raise StepFailedError(str(error)) from error


async def update_browse_history(context: SetupContext, step: params.HistoryParameters) -> None:
    """Give the browser a history of these visits and no others, in a file of its own making or else of OSWorld's."""
    base = await context.desktop.read_file(browser.HISTORY)
    if base is None:
        path = await asyncio.to_thread(
            assets.fetch_asset, browser.BASE_HISTORY_URL, browser.BASE_HISTORY_NAME, task_id=context.task_id
        )
        base = await asyncio.to_thread(path.read_bytes)
    said = await context.desktop.exec(["date", "+%s.%N"])
    try:
        now_s = float(said.stdout)
    except ValueError:
        raise StepFailedError(f"the desktop does not tell its time: {said.stderr.strip()[:200]}") from None
    visits = [(visit.url, visit.title, now_s - visit.visit_time_from_now_in_seconds) for visit in step.history]
    try:
        content = await asyncio.to_thread(browser.build_history, base, visits)
    except browser.BrowserError as error:
        raise StepFailedError(str(error)) from error
    await write_and_verify(context, browser.HISTORY, content, 0o600)


async def change_wallpaper(context: SetupContext, step: params.WallpaperParameters) -> None:
    """Show a picture of the desktop as its background."""
    ask = getattr(context.desktop, "guest", None)
    if ask is None:
        raise StepFailedError("this desktop's own server cannot be asked; lease one from a farm")
    reply = await ask("POST", "/setup/change_wallpaper", json={"path": step.path})
    if reply.status != 200:
        raise StepFailedError(
            f"the desktop did not take {step.path} as its wallpaper: {reply.content[:300].decode(errors='replace')}"
        )


async def execute_with_verification(context: SetupContext, step: params.ExecuteWithVerificationParameters) -> None:
    """Run a program and wait until the window is there and the command succeeds that prove it."""
    argv = command_argv(step.command, shell=step.shell, resolution=context.desktop.resolution)
    reply = await context.desktop.exec(argv, timeout_s=step.timeout_s)
    if reply.timed_out:
        raise StepFailedError(f"{argv[0]} did not end within {step.timeout_s:g} s")
    wanted = step.verification

    async def verified() -> bool:
        if (
            wanted.window_exists is not None
            and await windows.find_window(context.desktop, wanted.window_exists) is None
        ):
            return False
        if wanted.command_success is None:
            return True
        tried = await context.desktop.exec(["/bin/bash", "-c", wanted.command_success], timeout_s=step.timeout_s)
        return tried.returncode == 0 and not tried.timed_out

    await context.wait_until(verified, step.max_wait_time, f"what {argv[0]} should bring about was not there")


PERFORMERS: Mapping[str, Performer] = {
    "download": download,
    "chrome_open_tabs": chrome_open_tabs,
    "chrome_close_tabs": chrome_close_tabs,
    "login": login,
    "update_browse_history": update_browse_history,
    "change_wallpaper": change_wallpaper,
    "execute_with_verification": execute_with_verification,
}
