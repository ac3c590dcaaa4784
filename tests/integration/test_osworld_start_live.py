"""What a desktop of OSWorld's tasks is like at the start of an episode: windows are open, sound works, menus and offices can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import live_host
import pytest
from served_farm import served_farm

from dart_envs.osworld import DesktopEnv

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(300)]

LEASE_S = 18.0
"""Longer than the accessibility bridge of a program holds the elements that it told a client: 15 s, rounded up."""


def example(*command: str) -> dict[str, Any]:
    """A task whose setup launches one program, as most of OSWorld's do."""
    return {
        "id": f"b2f9a3c4-0000-4000-8000-{len(command[0]):012d}",
        "snapshot": command[0],
        "instruction": "Look at the screen.",
        "config": [{"type": "launch", "parameters": {"command": list(command)}}],
        "related_apps": ["os"],
        "evaluator": {"func": "infeasible"},
    }


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    live_host.require_image("desktop")
    with served_farm(tmp_path_factory.mktemp("farm"), max_desktops=1) as url:
        yield url


@pytest.fixture
def env(url: str, tmp_path: Path) -> Iterator[DesktopEnv]:
    env = DesktopEnv(farm=url, screen_size=(1280, 800), cache_dir=str(tmp_path))
    yield env
    env.close()


def shell(env: DesktopEnv, command: str) -> str:
    said = env.controller.execute_python_command(
        f"import subprocess; print(subprocess.run({command!r}, shell=True, capture_output=True, text=True).stdout)"
    )
    assert said is not None
    return str(said["output"])


def places(tree: str, tag: str) -> dict[str, tuple[int, int]]:
    """Corners of the elements of a kind that have a place, by name."""
    heads = re.findall(rf"<{tag} ([^>]*)>", tree)
    found = {}
    for head in heads:
        name, corner = re.search(r'name="([^"]*)"', head), re.search(r'cp:screencoord="\((-?\d+), (-?\d+)\)"', head)
        if name and corner:
            found[name[1]] = (int(corner[1]), int(corner[2]))
    return found


def test_gimp_is_open_and_its_menus_have_places(env: DesktopEnv) -> None:
    observation = env.reset(task_config=example("gimp"))
    titles = shell(env, "wmctrl -l")
    assert "GNU Image Manipulation Program" in titles
    assert "GIMP Startup" not in titles
    assert "New..." not in places(observation["accessibility_tree"], "menu-item")
    observation, *_ = env.step("pyautogui.hotkey('alt', 'f')", pause=1)
    items = places(observation["accessibility_tree"], "menu-item")
    assert items["New..."][1] < items["Open..."][1] < items["Quit"][1]
    assert "Undo" not in items
    env.step(f"pyautogui.click({items['New...'][0] + 20}, {items['New...'][1] + 10})", pause=1)
    assert "Create a New Image" in shell(env, "wmctrl -l")


def test_a_question_of_calc_beside_its_splash_screen_ends_the_setup(
    env: DesktopEnv, caplog: pytest.LogCaptureFixture
) -> None:
    task = example("libreoffice", "--calc", "/home/user/sums.csv")
    table = ["bash", "-c", "printf 'Name,Sum\\nAda,12\\n' > /home/user/sums.csv"]
    task["config"].insert(0, {"type": "execute", "parameters": {"command": table}})
    env.reset(task_config=task)
    assert "Text Import - [sums.csv]" in shell(env, "wmctrl -l")
    assert "not all opened a window" not in caplog.text


def test_impress_survives_that_its_tree_is_read(env: DesktopEnv) -> None:
    """OSWorld's impress/2cd43775. A client that fills the cache of the accessibility bridge crashes LibreOffice here: the cache keeps
    elements of the closed dialog whose widgets are freed. Trees read by libatspi crash it every time.
    """
    observation = env.reset(task_config=example("libreoffice", "--impress"))
    assert '<dialog name="Select a Template"' in observation["accessibility_tree"]
    before = shell(env, "pgrep soffice.bin")
    env.step("WAIT", pause=LEASE_S)
    for action in ("pyautogui.press('escape')", "pyautogui.hotkey('alt', 'f12')", "WAIT"):
        observation, *_ = env.step(action, pause=1)
        assert "Document Recovery" not in shell(env, "wmctrl -l"), action
    assert re.search(r'<dialog name="Options - ', observation["accessibility_tree"])
    assert shell(env, "pgrep soffice.bin") == before


def test_autorecovery_is_on_as_in_osworld(env: DesktopEnv) -> None:
    env.reset(task_config=example("libreoffice", "--calc"))
    env.step("pyautogui.hotkey('alt', 'f12')", pause=1)
    for name in ("Load/Save", "General"):
        tree = env.controller.get_accessibility_tree()
        assert tree is not None
        x, y = last_place(tree, name)
        env.step(f"pyautogui.doubleClick({x + 10}, {y + 8})", pause=1)
    tree = env.controller.get_accessibility_tree()
    assert tree is not None
    (box,) = re.findall(r'<check-box name="Save AutoRecovery information every:" ([^>]*)>', tree)
    assert 'st:checked="true"' in box


def last_place(tree: str, name: str) -> tuple[int, int]:
    """The corner of the lowest showing element of this name."""
    found = re.findall(rf'name="{name}" [^>]*cp:screencoord="\((\d+), (\d+)\)"', tree)
    return max(((int(x), int(y)) for x, y in found), key=lambda place: place[1])


def test_sound_works(env: DesktopEnv) -> None:
    env.reset(task_config=example("mousepad"))
    assert "40%" in shell(env, "pactl get-sink-volume @DEFAULT_SINK@")
    assert "100%" in shell(env, "pactl set-sink-volume @DEFAULT_SINK@ 100% && pactl get-sink-volume @DEFAULT_SINK@")
