from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_window_desktop import BOTTOM, LEFT, RIGHT, TOP, FakeWindow, FakeWindowDesktop, ManualClock, reply

from dart_envs.errors import DesktopFailedError, GuestError, SetupError
from dart_envs.setup import STEP_PARAMETERS, check_parameters, run_steps
from dart_envs.setup.protected import CAPTURE_GID, PROTECTED_GID, Seal, start_argv
from dart_envs.setup.runner import PERFORMERS
from dart_envs.setup.windows import newest_match, parse_list
from dart_envs.tasks import SetupStep
from dart_server.wire import A11yElement, FaultOwner


def step(type: str, **parameters: Any) -> SetupStep:
    return SetupStep(type=type, parameters=parameters)


async def run(
    desktop: FakeWindowDesktop, *steps: SetupStep, clock: ManualClock | None = None, **how: Any
) -> tuple[str, ...]:
    return await run_steps(desktop, steps, clock=clock or ManualClock(), **how)


def test_every_step_type_can_be_performed() -> None:
    assert set(STEP_PARAMETERS) == set(PERFORMERS)


@pytest.mark.parametrize(
    ("type", "parameters", "word"),
    [
        ("nonsense", {}, "unknown setup step"),
        ("sleep", {"seconds": -1}, "seconds"),
        ("sleep", {"seconds": 1, "minutes": 2}, "minutes"),
        ("execute", {"command": []}, "command"),
        ("place_window", {"window_name": "A", "x": 1.5, "y": 0}, "x"),
        ("launch_captured", {"command": ["a"], "name": "../x"}, "name"),
    ],
)
def test_bad_parameters_are_found_when_checked(type: str, parameters: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        check_parameters(type, parameters)


async def test_network_steps_load_but_do_not_run() -> None:
    with pytest.raises(SetupError, match=r"'googledrive' is not performed: .*test_nogdrive"):
        await run(FakeWindowDesktop(), step("googledrive", operation=["delete"]))


async def test_place_window_puts_the_whole_frame_at_its_share_of_the_free_room() -> None:
    desktop = FakeWindowDesktop((640, 400))
    desktop.fake_windows = [FakeWindow("Question", w=200, h=100)]
    await run(desktop, step("place_window", window_name="Question", x=1.0, y=0.5))
    frame_w, frame_h = 200 + LEFT + RIGHT, 100 + TOP + BOTTOM
    window = desktop.fake_windows[0]
    assert (window.x - LEFT, window.y - TOP) == (640 - frame_w, round(0.5 * (400 - frame_h)))


async def test_place_window_sizes_it_and_stays_in_its_area() -> None:
    desktop = FakeWindowDesktop((640, 400))
    desktop.fake_windows = [FakeWindow("Note")]
    await run(desktop, step("place_window", window_name="Note", x=0, y=1, width=900, height=100, area=[0, 0.5, 0.5, 1]))
    window = desktop.fake_windows[0]
    assert window.x - LEFT == 0
    assert window.w == 320 - LEFT - RIGHT, "cut to the area"
    assert window.y + window.h + BOTTOM == 400


async def test_place_window_keeps_clear_of_panels() -> None:
    desktop = FakeWindowDesktop((640, 400))
    desktop.work_area = (30, 28, 600, 350)
    desktop.fake_windows = [FakeWindow("Note", w=200, h=100), FakeWindow("Other", w=200, h=100)]
    await run(desktop, step("place_window", window_name="Note", x=0, y=0))
    await run(desktop, step("place_window", window_name="Other", x=1, y=1, area=[0, 0, 0.5, 1]))
    note, other = desktop.fake_windows
    assert (note.x - LEFT, note.y - TOP) == (30, 28)
    assert (other.x + other.w + RIGHT, other.y + other.h + BOTTOM) == (30 + 300, 28 + 350)


async def test_without_a_named_work_area_the_whole_screen_is_free() -> None:
    desktop = FakeWindowDesktop((640, 400))
    desktop.programs["xprop"] = lambda _desktop, _args, _stdin: reply("_NET_WORKAREA:  not found.\n")
    desktop.fake_windows = [FakeWindow("Note", w=200, h=100)]
    await run(desktop, step("place_window", window_name="Note", x=0, y=0))
    assert (desktop.fake_windows[0].x - LEFT, desktop.fake_windows[0].y - TOP) == (0, 0)


async def test_place_window_says_when_it_does_not_fit() -> None:
    desktop = FakeWindowDesktop((300, 100))
    desktop.fake_windows = [FakeWindow("Big", w=400)]
    with pytest.raises(SetupError, match=r"place_window.*does not fit.*300x100"):
        await run(desktop, step("place_window", window_name="Big", x=0, y=0))


async def test_a_window_that_does_not_obey_is_an_error_in_the_end() -> None:
    desktop, clock = FakeWindowDesktop(), ManualClock()
    desktop.fake_windows = [FakeWindow("Stuck", moves=False)]
    with pytest.raises(
        SetupError, match=r"'Stuck' did not take its place within 2 s; it is 202x136 at 9, 9, not 202x136 at 438, 264"
    ):
        await run(desktop, step("place_window", window_name="Stuck", x=1, y=1, timeout_s=2), clock=clock)


async def test_wait_window_waits_for_the_newest_of_its_title() -> None:
    desktop, clock = FakeWindowDesktop(), ManualClock()
    clock.on_sleep = lambda: desktop.fake_windows.append(FakeWindow("My Document")) if clock.now_s > 101 else None
    await run(desktop, step("wait_window", window_name="document"), clock=clock)
    assert 101 < clock.now_s < 102


async def test_a_window_that_does_not_come_is_waited_for_once_and_the_others_are_named() -> None:
    desktop, clock = FakeWindowDesktop(), ManualClock()
    desktop.fake_windows = [FakeWindow("~/receipt.txt - Mousepad", "mousepad.Mousepad")]
    missing = r"step 0 \(wait_window\) failed: no window 'Absent' appeared within 3 s; windows on the screen: "
    with pytest.raises(SetupError, match=missing + "'~/receipt.txt - Mousepad'$") as caught:
        await run(desktop, step("wait_window", window_name="Absent", timeout_s=3), clock=clock)
    assert clock.now_s - 100.0 == pytest.approx(3.0, abs=0.2)
    assert caught.value.failed_step == 0
    with pytest.raises(SetupError, match=missing + "'mousepad.Mousepad'$"):
        await run(desktop, step("wait_window", window_name="Absent", by_class=True, timeout_s=3), clock=clock)
    desktop.fake_windows = [FakeWindow(f"Note {n}") for n in range(20)]
    with pytest.raises(SetupError, match=missing + ".*'Note 19' and 12 more$"):
        await run(desktop, step("wait_window", window_name="Absent", timeout_s=3), clock=clock)
    desktop.fake_windows = []
    with pytest.raises(SetupError, match=missing + "none$"):
        await run(desktop, step("wait_window", window_name="Absent", timeout_s=3), clock=clock)


async def test_a_refusal_of_the_desktop_is_no_failed_step() -> None:
    desktop = FakeWindowDesktop()
    desktop.fail_next("exec", GuestError("busy"))
    with pytest.raises(SetupError) as caught:
        await run(desktop, step("launch", command=["mousepad"]))
    assert caught.value.failed_step is None


async def test_strict_and_class_tell_windows_apart() -> None:
    desktop = FakeWindowDesktop()
    desktop.fake_windows = [FakeWindow("Note", "a.Mousepad"), FakeWindow("Note 2", "b.Thunar")]
    await run(desktop, step("activate_window", window_name="Note", strict=True))
    await run(desktop, step("activate_window", window_name="thunar", by_class=True))
    assert desktop.state.typed == "[Note][Note 2]"


async def test_close_window_waits_until_it_is_gone_and_accepts_none() -> None:
    desktop = FakeWindowDesktop()
    desktop.fake_windows = [FakeWindow("A"), FakeWindow("B")]
    await run(desktop, step("close_window", window_name="A"), step("close_window", window_name="Absent"))
    assert [window.title for window in desktop.fake_windows] == ["B"]
    desktop.fake_windows = [FakeWindow("Stays", closes=False)]
    with pytest.raises(SetupError, match="did not close"):
        await run(desktop, step("close_window", window_name="Stays", timeout_s=1))


async def test_execute_reads_commands_like_osworld_does() -> None:
    desktop = FakeWindowDesktop()
    desktop.programs |= {"touch": lambda *_: reply(), "/bin/bash": lambda *_: reply()}
    await run(
        desktop,
        step("execute", command="touch '~/a b' ~/c"),
        step("command", command=["touch", "{SCREEN_WIDTH_HALF}", "{OTHER}"]),
        step("execute", command="echo {CLIENT_PASSWORD} | cat", shell=True),  # noqa: S604 - a parameter of the step
        step("execute", command=["touch", "x"], user="root"),
    )
    assert desktop.ran == [
        ("user", ["touch", "/home/user/a b", "/home/user/c"]),
        ("user", ["touch", "320", "{OTHER}"]),
        ("user", ["/bin/bash", "-c", "echo password | cat"]),
        ("root", ["touch", "x"]),
    ]


async def test_execute_checks_the_exit_code_only_where_asked() -> None:
    desktop = FakeWindowDesktop()
    await run(desktop, step("execute", command=["false"]))
    with pytest.raises(SetupError, match="false ended with 1"):
        await run(desktop, step("execute", command=["false"], expect_returncode=0))


async def test_execute_until_repeats_and_gives_up() -> None:
    desktop, clock = FakeWindowDesktop(), ManualClock()
    desktop.programs["date"] = lambda *_: reply("late" if clock.now_s > 100.3 else "early")
    await run(desktop, step("execute", command=["date"], until={"stdout": "late"}), clock=clock)
    assert len(desktop.ran) > 3
    with pytest.raises(SetupError, match="`until`"):
        await run(desktop, step("execute", command=["date"], until={"stdout": "never"}, timeout_s=1), clock=clock)


async def test_a_program_that_hangs_fails_the_step() -> None:
    desktop = FakeWindowDesktop()
    with pytest.raises(SetupError, match="sleep did not end within 2 s"):
        await run(desktop, step("execute", command=["sleep", "5"], timeout_s=2))


async def test_files_are_written_and_read_back(tmp_path: Path) -> None:
    (tmp_path / "gold.txt").write_bytes(b"gold")
    desktop = FakeWindowDesktop()
    await run(
        desktop,
        step("write_file", path="~/a.txt", content="é"),
        step("write_binary", path="~/b.bin", content_base64="AP/+"),
        step("upload_file", files=[{"local_path": "gold.txt", "path": "/home/user/g"}]),
        assets=tmp_path,
    )
    assert desktop.state.files == {
        "/home/user/a.txt": "é".encode(),
        "/home/user/b.bin": b"\x00\xff\xfe",
        "/home/user/g": b"gold",
    }
    with pytest.raises(SetupError, match=r"cannot read .*absent"):
        await run(desktop, step("upload_file", files=[{"local_path": "absent", "path": "/x"}]), assets=tmp_path)


async def test_a_file_that_reads_back_differently_fails() -> None:
    desktop = FakeWindowDesktop()

    async def lose(path: str, content: bytes, *, mode: int = 0o644) -> None:
        desktop.state.files[path] = content[:1]

    desktop.write_file = lose  # type: ignore[method-assign]
    with pytest.raises(SetupError, match="does not read back"):
        await run(desktop, step("write_file", path="/a", content="long"))


def test_bytes_that_are_no_base64_are_refused_when_the_task_is_loaded() -> None:
    with pytest.raises(ValueError, match="content_base64"):
        step("write_binary", path="~/b.bin", content_base64="A")


async def test_a_captured_program_runs_as_user_under_a_root_only_wrapper() -> None:
    desktop = FakeWindowDesktop()
    desktop.other_script = lambda: reply()
    await run(desktop, step("launch_captured", name="answer", command=["zenity", "--info", "; rm -rf /"]))
    user, argv = desktop.ran[0]
    assert (user, desktop.detached) == ("root", [argv])
    assert argv[4] == "/var/lib/dart/captured/answer"
    assert "umask 077" in argv[2]
    assert argv[5:] == start_argv(["zenity", "--info", "; rm -rf /"], CAPTURE_GID, "code")


@pytest.mark.parametrize("sealed", [None, "programs", "code"])
async def test_a_protected_program_is_sealed_as_the_step_says(sealed: Seal | None) -> None:
    desktop = FakeWindowDesktop()
    desktop.programs["/usr/bin/python3"] = lambda *_: reply()
    await run(desktop, step("launch", command=["thunar", "/a b"], protected=True, sealed=sealed))
    started = start_argv(["thunar", "/a b"], PROTECTED_GID, sealed)
    assert ("root", started) in desktop.ran
    assert desktop.detached == [started]


def test_what_cannot_be_sealed_is_refused_when_the_task_is_loaded() -> None:
    with pytest.raises(ValueError, match="only a protected program is sealed"):
        step("launch", command=["thunar"], sealed="code")
    with pytest.raises(ValueError, match="name the program itself, or set sealed to null"):
        step("launch_captured", name="answer", command=["/bin/sh", "-c", "zenity --info"])
    step("launch_captured", name="answer", command=["/bin/sh", "-c", "zenity --info"], sealed=None)


async def test_open_waits_for_a_window_that_names_the_file() -> None:
    desktop, clock = FakeWindowDesktop(), ManualClock()
    desktop.programs["xdg-open"] = lambda *_: reply()
    clock.on_sleep = lambda: desktop.fake_windows.append(FakeWindow("note.txt - Mousepad"))
    await run(desktop, step("open", path="~/note.txt"), clock=clock)
    assert desktop.detached == [["xdg-open", "/home/user/note.txt"]]


async def test_a_step_that_cannot_be_repeated_is_not() -> None:
    desktop = FakeWindowDesktop()
    desktop.fail_next("exec", GuestError("busy"))
    with pytest.raises(SetupError, match=r"step 0 \(launch\) failed: busy"):
        await run(desktop, step("launch", command=["mousepad"]))
    assert len(desktop.ran) == 1


async def test_a_repeatable_step_survives_one_refusal() -> None:
    desktop = FakeWindowDesktop()
    desktop.fail_next("write_file", GuestError("busy"))
    await run(desktop, step("write_file", path="/a", content="x"))
    assert desktop.state.files["/a"] == b"x"


async def test_a_dead_desktop_is_not_a_set_up_error() -> None:
    desktop = FakeWindowDesktop()
    desktop.kill(FaultOwner.HOST, "host_lost")
    with pytest.raises(DesktopFailedError):
        await run(desktop, step("execute", command=["true"]))


async def test_lenient_notes_failures_and_goes_on() -> None:
    desktop = FakeWindowDesktop()
    notes = await run(
        desktop,
        step("wait_window", window_name="X", timeout_s=1),
        step("write_file", path="/a", content=""),
        ignore_failures=True,
    )
    assert len(notes) == 1
    assert "'X'" in notes[0]
    assert "/a" in desktop.state.files


def test_window_list_lines_with_odd_titles() -> None:
    text = "0x00600007  0 zenity.Zenity         vm Two  words\nnonsense\n0x1 -1 a b.C  N/A \n"
    windows = parse_list(text)
    assert [(w.window_id, w.wm_class, w.title) for w in windows] == [
        ("0x00600007", "zenity.Zenity", "Two  words"),
        ("0x1", "a b.C", ""),
    ]


def test_a_terminal_is_found_by_its_program_whatever_runs_in_it() -> None:
    text = (
        "0x01  0 mousepad.Mousepad  desktop notes\n"
        "0x02  0 xfce4-terminal.Xfce4-terminal  desktop user@desktop: ~\n"
        "0x03  0 mousepad.Mousepad  desktop notes 2\n"
    )
    listed = parse_list(text)
    found = newest_match(listed, "Terminal", strict=False, by_class=False)
    assert found is not None
    assert found.window_id == "0x02"
    assert newest_match(listed, "Terminal", strict=True, by_class=False) is None
    assert newest_match(listed, "Mousepad", strict=False, by_class=False) is None, "any other name is a title"


async def test_wait_element_waits_for_the_element_and_then_for_rest() -> None:
    desktop, clock = FakeWindowDesktop(), ManualClock()
    heading = A11yElement(role="heading", name="Shop", x=0, y=0, w=9, h=9)
    wanted = step("wait_element", role="heading", name="Shop", timeout_s=1)
    desktop.state.elements = [heading.model_copy(update={"name": "Cart"})]
    with pytest.raises(SetupError, match="no heading 'Shop' appeared within 1 s"):
        await run(desktop, wanted, clock=clock)
    assert clock.monotonic() >= 1
    assert "step" not in desktop.calls
    desktop.state.elements.append(heading)
    desktop.fail_next("a11y", GuestError("still starting"))
    await run(desktop, wanted, step("wait_element", role="heading"), clock=clock)
    assert desktop.calls.count("step") == 2
