"""Does a desktop keep the requirements of `dart_envs.types.Desktop`?

The suite that our own and users' desktops pass.

Role: `check_desktop`, for tests of providers, leases and fakes. Rule: uses only the protocol; leaves files
under `/tmp/dart-conformance` and nothing else; every failure is one sentence that names the requirement. Non-goals: what
is on the screen, applications, speed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from dart_envs.types import Desktop, Frame, RgbImage
from dart_server.wire import ButtonEvent, FrameSpec, InputEvent, MoveEvent, SettleSpec, TextEvent, WaitEvent

CHECK_DIR = PurePosixPath("/tmp/dart-conformance")
SETTLE = SettleSpec(quiet_ms=50, cap_ms=1_000)
LOSSLESS = (FrameSpec(encoding="png"), FrameSpec(encoding="webp", quality=100))
LOSSY = FrameSpec(encoding="jpeg", quality=90)
MAX_MEAN_DIFFERENCE = 6.0
"""Mean difference of a channel, of 255, that a picture with losses may have."""
CURSOR_PX = 128
"""No cursor reaches farther from where it points."""
MAX_ATTEMPTS = 20
"""A screen may change between two looks at it, as a clock and a caret do."""
Check = Callable[[Desktop], Awaitable[None]]


class ConformanceError(AssertionError):
    """Promises that a desktop broke, one per line."""


async def check_desktop(desktop: Desktop, *, programs: bool = True) -> None:
    """Run every check; raises `ConformanceError` with all requirements that were broken.

    programs: whether programs can run inside (a desktop without processes, such as a simulated one, says
    False).
    """
    broken = [f"{requirement}: {how}" async for requirement, how in run_checks(desktop, programs=programs) if how]
    if broken:
        raise ConformanceError("\n".join(broken))


async def run_checks(desktop: Desktop, *, programs: bool = True) -> AsyncIterator[tuple[str, str]]:
    """Every requirement, in order, and how it was broken; empty where it was kept."""
    for check in CHECKS + (PROGRAM_CHECKS if programs else ()):
        requirement = check.__name__.removeprefix("_")
        try:
            await check(desktop)
        except AssertionError as failure:
            yield requirement, str(failure)
        else:
            yield requirement, ""


def _require(kept: bool, sentence: str) -> None:
    if not kept:
        raise AssertionError(sentence)


def _check_frame(desktop: Desktop, frame: Frame) -> None:
    width, height = desktop.resolution
    _require(frame.image.shape == (height, width, 3), f"a frame is [{height}, {width}, 3], not {frame.image.shape}")
    _require(frame.image.dtype == np.uint8, f"a frame is uint8, not {frame.image.dtype}")
    _require((frame.header.width, frame.header.height) == (width, height), "the header says another size")


async def _frames_have_the_screen_size(desktop: Desktop) -> None:
    _check_frame(desktop, await desktop.step([], SETTLE))
    _check_frame(desktop, await desktop.step([]))


async def _frames_share_no_memory(desktop: Desktop) -> None:
    first, second = await desktop.step([]), await desktop.step([])
    _require(not np.shares_memory(first.image, second.image), "two frames share memory")
    _require(first.image.flags.writeable, "a frame cannot be written to")


async def _center_pointer(desktop: Desktop) -> tuple[int, int]:
    """Send the pointer there; where that is."""
    width, height = desktop.resolution
    await desktop.step([MoveEvent(x=width // 2, y=height // 2)], SETTLE)
    return width // 2, height // 2


async def _check_encoding(
    desktop: Desktop, spec: FrameSpec, describe_mismatch: Callable[[RgbImage, RgbImage], str]
) -> None:
    """`describe_mismatch` is given the screen as raw rows and the picture of it that `spec` asks for, of moments between which nothing
    was seen to change; what it says is how the requirement is broken."""
    how = f"the screen changed between every two of {MAX_ATTEMPTS} looks"
    before = await desktop.step([])
    for _ in range(MAX_ATTEMPTS):
        shown = await desktop.step([], frame=spec)
        _check_frame(desktop, shown)
        _require(shown.header.encoding == spec.encoding, f"asked for {spec.encoding}, it is {shown.header.encoding}")
        after = await desktop.step([])
        if np.array_equal(before.image, after.image):
            how = describe_mismatch(after.image, shown.image)
            if not how:
                return
        before = after
    raise AssertionError(how)


def _pixel_difference(one: RgbImage, other: RgbImage) -> NDArray[np.bool_]:
    """Which pixels of two pictures are not the same, [H, W]."""
    return np.asarray((one != other).any(axis=2), dtype=np.bool_)


async def _a_format_without_loss_shows_the_very_pixels(desktop: Desktop) -> None:
    def describe_mismatch(raw: RgbImage, shown: RgbImage) -> str:
        count = int(_pixel_difference(raw, shown).sum())
        return f"{count} pixels of a {spec.encoding} are not those of the raw frame" if count else ""

    await _center_pointer(desktop)
    for spec in LOSSLESS:
        await _check_encoding(desktop, spec, describe_mismatch)


async def _a_format_with_losses_shows_nearly_the_pixels(desktop: Desktop) -> None:
    def describe_mismatch(raw: RgbImage, shown: RgbImage) -> str:
        loss = float(np.abs(raw.astype(np.int16) - shown).mean())
        return f"a {LOSSY.encoding} is {loss:.1f} of 255 from the raw frame" if loss > MAX_MEAN_DIFFERENCE else ""

    await _center_pointer(desktop)
    await _check_encoding(desktop, LOSSY, describe_mismatch)


async def _no_picture_comes_when_none_is_asked_for(desktop: Desktop) -> None:
    frame = await desktop.step([], frame=FrameSpec(encoding="none"))
    _require(frame.image.size == 0 and frame.header.nbytes == 0, f"{frame.header.nbytes} bytes came")
    _require((frame.header.width, frame.header.height) == desktop.resolution, "the header says another size")


async def _the_cursor_is_drawn_only_when_it_is_asked_for(desktop: Desktop) -> None:
    x, y = await _center_pointer(desktop)
    around = np.s_[max(0, y - CURSOR_PX) : y + CURSOR_PX, max(0, x - CURSOR_PX) : x + CURSOR_PX]

    def describe_mismatch(without: RgbImage, with_cursor: RgbImage) -> str:
        drawn = _pixel_difference(without, with_cursor)
        elsewhere = int(drawn.sum()) - int(drawn[around].sum())
        if not drawn.any():
            return "asked for, it is not in the picture"
        return f"asked for, it changes {elsewhere} pixels far from the pointer" if elsewhere else ""

    await _check_encoding(desktop, FrameSpec(cursor=True), describe_mismatch)
    here = (await desktop.step([])).image
    gone = (await desktop.step([MoveEvent(x=2, y=2)], SETTLE)).image
    _require(np.array_equal(here[around], gone[around]), "not asked for, it is in the picture all the same")


async def _the_pointer_goes_where_it_is_sent(desktop: Desktop) -> None:
    width, height = desktop.resolution
    for x, y in ((width // 2, height // 2), (3, 5), (width - 1, height - 1)):
        frame = await desktop.step([MoveEvent(x=x, y=y)], SETTLE)
        _require(frame.header.cursor == (x, y), f"sent to {(x, y)}, the pointer is at {frame.header.cursor}")


async def _every_kind_of_event_is_taken(desktop: Desktop) -> None:
    events: list[InputEvent] = [
        MoveEvent(x=1, y=1),
        ButtonEvent(type="down", button=2),
        ButtonEvent(type="up", button=2),
        TextEvent(text="é"),
        WaitEvent(ms=1),
    ]
    _check_frame(desktop, await desktop.step(events, SETTLE))


async def _files_come_back_as_they_went(desktop: Desktop) -> None:
    contents: Sequence[bytes] = (b"", b"line\n", bytes(range(256)) * 300, "žluťoučký kůň 🐎".encode())
    for index, content in enumerate(contents):
        path = str(CHECK_DIR / "deep" / f"file {index} ü.bin")
        await desktop.write_file(path, content)
        back = await desktop.read_file(path)
        _require(back == content, f"{len(content)} bytes written to {path!r} came back different")
    await desktop.write_file(str(CHECK_DIR / "twice"), b"a longer first content")
    await desktop.write_file(str(CHECK_DIR / "twice"), b"second")
    _require(await desktop.read_file(str(CHECK_DIR / "twice")) == b"second", "a second write did not replace the first")


async def _a_missing_file_is_none(desktop: Desktop) -> None:
    _require(await desktop.read_file(str(CHECK_DIR / "nowhere" / "none")) is None, "a missing file is not None")


async def _the_tree_is_a_list_of_elements(desktop: Desktop) -> None:
    for element in await desktop.a11y():
        _require(element.w >= 0 and element.h >= 0, f"{element.role} {element.name!r} has a negative size")


async def _an_unknown_window_is_not_activated(desktop: Desktop) -> None:
    found = await desktop.activate_window("no window has this title: 7c1f", strict=False)
    _require(found is False, "a window that does not exist was activated")


async def _a_program_answers(desktop: Desktop) -> None:
    said = await desktop.exec(["printf", "caf\u00e9 'quoted' $HOME"])
    _require(said.returncode == 0, f"printf ended with {said.returncode}: {said.stderr}")
    _require(said.stdout == "caf\u00e9 'quoted' $HOME", f"arguments went through a shell or changed: {said.stdout!r}")


async def _a_failing_program_is_data(desktop: Desktop) -> None:
    _require((await desktop.exec(["false"])).returncode == 1, "`false` does not answer 1")
    missing = await desktop.exec(["dart-no-such-program"])
    _require(missing.returncode not in {0, None}, "a program that does not exist seems to have run")


async def _standard_input_arrives(desktop: Desktop) -> None:
    _require((await desktop.exec(["cat"], stdin="in\n")).stdout == "in\n", "`cat` did not get its standard input")


async def _a_slow_program_times_out(desktop: Desktop) -> None:
    _require((await desktop.exec(["sleep", "30"], timeout_s=0.5)).timed_out, "a 30 s sleep outlived its 0.5 s")


async def _a_detached_program_is_not_waited_for(desktop: Desktop) -> None:
    reply = await desktop.exec(["sleep", "1"], detach=True)
    _require(reply.returncode is None and not reply.timed_out, "a detached program was waited for")


CHECKS: tuple[Check, ...] = (
    _frames_have_the_screen_size,
    _frames_share_no_memory,
    _a_format_without_loss_shows_the_very_pixels,
    _a_format_with_losses_shows_nearly_the_pixels,
    _no_picture_comes_when_none_is_asked_for,
    _the_cursor_is_drawn_only_when_it_is_asked_for,
    _the_pointer_goes_where_it_is_sent,
    _every_kind_of_event_is_taken,
    _files_come_back_as_they_went,
    _a_missing_file_is_none,
    _the_tree_is_a_list_of_elements,
    _an_unknown_window_is_not_activated,
)
PROGRAM_CHECKS: tuple[Check, ...] = (
    _a_program_answers,
    _a_failing_program_is_data,
    _standard_input_arrives,
    _a_slow_program_times_out,
    _a_detached_program_is_not_waited_for,
)
