"""Parameters of every setup step type, as pydantic models.

Role: the closed list of step types. Rule: a wrong or unknown parameter is found when the task is loaded, not on the
desktop. OSWorld's own types keep OSWorld's names and meanings; `wait_window`, `wait_element`, `place_window`,
`write_file`, `write_binary` and `launch_captured` are ours. Non-goals: performing steps (`dart_envs.setup.steps`).

`NETWORK_STEPS` are OSWorld's types that speak to the internet and never to a desktop: tasks that use them load, but do not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from dart_envs.setup.protected import Seal

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
GuestPath = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
CaptureName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,40}$")]
STARTERS = frozenset({"sh", "bash", "dash", "env", "nohup", "setsid", "sudo", "timeout", "xargs"})
Command = Annotated[str, Field(min_length=1)] | Annotated[tuple[str, ...], Field(min_length=1)]


class StepParameters(BaseModel):
    """Base of all: unknown parameters are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class UntilCondition(StepParameters):
    """Repeat the command until all that is given here holds; `stdout` and `stderr` are looked for inside the output."""

    returncode: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class ExecuteParameters(StepParameters):
    """Run a program and wait for it.

    Success: it ended in time, and `until` and `expect_returncode` hold where they are given.
    """

    command: Command
    shell: bool = False
    stdout: str | None = Field(default=None, description="OSWorld: the getter cache_file's name for the output")
    stderr: str | None = None
    until: UntilCondition | None = None
    expect_returncode: int | None = None
    user: Literal["user", "root"] = "user"
    timeout_s: float = Field(default=120.0, gt=0, le=600)


class LaunchParameters(StepParameters):
    """Start a program and do not wait. Follow it with `wait_window`.

    protected: the program runs as the user in a group of its own, by which the verdict knows it again: no other program of the user can
    trace it, read its memory or take its files. For the program that a task is about; never for a shell, whose children would be
    protected, too.
    sealed: what a protected program must not do: start other `programs`, which would be protected, too, or load any more `code`, which
    also forbids starting programs.
    """

    command: Command
    shell: bool = False
    protected: bool = False
    sealed: Seal | None = None

    @model_validator(mode="after")
    def _only_protected_programs_are_sealed(self) -> LaunchParameters:
        if self.sealed is not None and not self.protected:
            raise ValueError("only a protected program is sealed; set protected, or leave sealed out")
        return self


class LaunchCapturedParameters(StepParameters):
    """Start a program as the desktop's user; what it prints and its exit code go to files that only root can read or write.

    The getter `captured` reads them. Use it for dialogs whose answer is the verdict. It is sealed as with `launch`; a command that must
    start others takes `sealed` null.
    """

    command: tuple[str, ...] = Field(min_length=1)
    name: CaptureName
    sealed: Seal | None = "code"

    @model_validator(mode="after")
    def _programs_that_start_others_are_not_sealed(self) -> LaunchCapturedParameters:
        if self.sealed is not None and PurePosixPath(self.command[0]).name in STARTERS:
            raise ValueError(
                f"{self.command[0]} starts other programs, which a sealed program must not; name the program itself, or set sealed to null"
            )
        return self


class OpenParameters(StepParameters):
    """Open a file or folder with its default application. Success: a window title contains its name."""

    path: GuestPath
    timeout_s: float = Field(default=60.0, gt=0, le=600)


class SleepParameters(StepParameters):
    """A fixed pause. Prefer waiting for a window."""

    seconds: float = Field(ge=0, le=120)


class WindowParameters(StepParameters):
    """A window by title: a part of it, whatever the case, or with `strict` the whole title with its case.

    by_class: WM_CLASS is compared in place of the title.
    """

    window_name: str = Field(min_length=1)
    strict: bool = False
    by_class: bool = False
    timeout_s: float = Field(default=20.0, gt=0, le=600)


class ActivateWindowParameters(WindowParameters):
    """Raise and focus a window, named as with `wait_window`. OSWorld's tasks have no other step that waits for a program to start."""

    timeout_s: float = Field(default=40.0, gt=0, le=600)


class WaitElementParameters(StepParameters):
    """An element of the accessibility tree, by its role and, where it is given, its name, and then a screen that has come to rest.

    A window's title is there before its content; use this before a prepared state is kept. Success: the element is showing.
    """

    role: str = Field(min_length=1)
    name: str | None = None
    timeout_s: float = Field(default=60.0, gt=0, le=600)


class PlaceWindowParameters(WindowParameters):
    """Move a window, named as with `wait_window`, and resize it where `width` and `height` are given, in pixels, cut to the area.

    x, y: 0 puts the frame at the left or upper edge of `area`, 1 at the right or lower edge. area: left, top, right,
    bottom as shares of the screen between its panels. Success: the whole frame is there, where it was asked to be.
    """

    x: Fraction
    y: Fraction
    width: int | None = Field(default=None, ge=50)
    height: int | None = Field(default=None, ge=50)
    area: tuple[Fraction, Fraction, Fraction, Fraction] = (0.0, 0.0, 1.0, 1.0)


class UploadedFile(StepParameters):
    """One host file, relative to the task file's folder, and where it goes inside the desktop."""

    local_path: str = Field(min_length=1)
    path: GuestPath


class UploadFileParameters(StepParameters):
    """Copy host files into the desktop. Success: they read back with their own size."""

    files: tuple[UploadedFile, ...] = Field(min_length=1)


class WriteFileParameters(StepParameters):
    """Write a text file inside the desktop as its user. Success: it reads back the same."""

    path: GuestPath
    content: str
    mode: int = Field(default=0o644, ge=0, le=0o777)


class WriteBinaryParameters(StepParameters):
    """Write a file of any bytes, given in base64, inside the desktop as its user. Success: it reads back the same."""

    path: GuestPath
    content_base64: Base64Bytes
    mode: int = Field(default=0o644, ge=0, le=0o777)


class DownloadedFile(StepParameters):
    """One address and where its file goes inside the desktop. sha256: the digest (hex) that the file must have."""

    url: str = Field(min_length=1)
    path: GuestPath
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")


class DownloadParameters(StepParameters):
    """Put files from the internet, out of the asset cache, into the desktop. Success: they read back the same."""

    files: tuple[DownloadedFile, ...]


class OpenTabsParameters(StepParameters):
    """Open addresses in the browser, which the tasks start with its debugging port led to 9222. Success: each page came."""

    urls_to_open: tuple[str, ...] = Field(min_length=1)
    timeout_s: float = Field(default=75.0, gt=0, le=600)


class CloseTabsParameters(StepParameters):
    """Close the tabs of addresses. Success: each was there."""

    urls_to_close: tuple[str, ...] = Field(min_length=1)
    timeout_s: float = Field(default=75.0, gt=0, le=600)


class LoginParameters(StepParameters):
    """Log in with the account in a host file `{"email", "password"}`, relative to the task file's folder. Success: the forms came."""

    settings_file: str = Field(min_length=1)
    platform: Literal["googledrive"]
    timeout_s: float = Field(default=75.0, gt=0, le=600)


class Visit(StepParameters):
    """One page that was visited."""

    url: str
    title: str
    visit_time_from_now_in_seconds: float = Field(ge=0)


class HistoryParameters(StepParameters):
    """Give the browser, which must not run yet, a history. Success: the file reads back the same."""

    history: tuple[Visit, ...]


class WallpaperParameters(StepParameters):
    """Show a picture that is in the desktop as its background."""

    path: GuestPath


class Verification(StepParameters):
    """What proves that a command worked: a window with this in its title, a shell command that succeeds."""

    window_exists: str | None = None
    command_success: str | None = None


class ExecuteWithVerificationParameters(StepParameters):
    """Run a program and wait for it. Success: what `verification` asks for holds within `max_wait_time` seconds."""

    command: Command
    verification: Verification = Verification()
    max_wait_time: float = Field(default=10.0, gt=0, le=600)
    check_interval: float = Field(default=1.0, gt=0, description="OSWorld's; conditions are polled as everywhere here")
    shell: bool = False
    timeout_s: float = Field(default=120.0, gt=0, le=600)


STEP_PARAMETERS: Mapping[str, type[StepParameters]] = {
    "execute": ExecuteParameters,
    "command": ExecuteParameters,
    "launch": LaunchParameters,
    "launch_captured": LaunchCapturedParameters,
    "open": OpenParameters,
    "sleep": SleepParameters,
    "activate_window": ActivateWindowParameters,
    "close_window": WindowParameters,
    "wait_window": WindowParameters,
    "wait_element": WaitElementParameters,
    "place_window": PlaceWindowParameters,
    "upload_file": UploadFileParameters,
    "write_file": WriteFileParameters,
    "write_binary": WriteBinaryParameters,
    "download": DownloadParameters,
    "chrome_open_tabs": OpenTabsParameters,
    "chrome_close_tabs": CloseTabsParameters,
    "login": LoginParameters,
    "update_browse_history": HistoryParameters,
    "change_wallpaper": WallpaperParameters,
    "execute_with_verification": ExecuteWithVerificationParameters,
}

NETWORK_STEPS = frozenset({"googledrive"})
NETWORK_STEP_HINT = (
    "it speaks to Google Drive alone and needs an account; leave its 8 tasks out, as OSWorld's test_nogdrive.json does"
)


def check_parameters(step_type: str, parameters: Mapping[str, Any]) -> StepParameters | None:
    """Parse the parameters of one step; None for `NETWORK_STEPS`, which are not looked into.

    Raises ValueError for an unknown step type, and pydantic's ValidationError (a ValueError too) for a bad parameter.
    """
    if step_type in NETWORK_STEPS:
        return None
    model = STEP_PARAMETERS.get(step_type)
    if model is None:
        known = ", ".join(sorted(STEP_PARAMETERS))
        raise ValueError(f"unknown setup step {step_type!r}; known are {known}")
    return model.model_validate(dict(parameters))
