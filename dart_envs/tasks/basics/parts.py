"""Building blocks of the families: steps, evaluators and moves as plain data.

Role: one short function per thing that several families need. Rule: no randomness here except where a `Random` is
passed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from dart_envs.setup.steps import NOTE_PROGRAMS_SCRIPT

JsonDict = dict[str, Any]

SAVE = ("ctrl", "s")
SAVE_WAIT_S = 0.5

WAIT_UNTIL_IDLE_SCRIPT = """pid=$(pidof PROCESS) || exit 0
polls=0
still=0
last=
while [ "$polls" -lt 100 ] && [ "$still" -lt 3 ]; do
  now=$(cut -d ' ' -f 3,14,15 "/proc/$pid/stat") || exit 0
  case $now in
    S*) [ "$now" = "$last" ] && still=$((still + 1)) || still=0 ;;
    *) still=0 ;;
  esac
  last=$now
  polls=$((polls + 1))
  sleep 0.1
done
"""
"""Waits, ten seconds at most, until a process rests."""


def step(type: str, **parameters: Any) -> JsonDict:
    """A setup step."""
    return {"type": type, "parameters": parameters}


def wait_until_idle(process: str) -> JsonDict:
    """A step that waits, ten seconds at most, until a program rests: what it opens is open then, what it saves is saved."""
    return step(
        "execute", command=["/bin/sh", "-c", WAIT_UNTIL_IDLE_SCRIPT.replace("PROCESS", process, 1)], timeout_s=30
    )


def captured_dialog(name: str, title: str, arguments: Sequence[str]) -> JsonDict:
    """Start a zenity dialog whose answer only root can read."""
    return step("launch_captured", name=name, command=["zenity", *arguments, "--title", title])


def note_programs() -> JsonDict:
    """Step: root notes which programs run at the end of the setup; a verdict about what is shown ends all others."""
    return step("execute", command=["/bin/sh", "-c", NOTE_PROGRAMS_SCRIPT], user="root", expect_returncode=0)


def place_window_randomly(
    random: Random,
    window_name: str,
    *,
    size: tuple[int, int] | None = None,
    area: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0),
) -> JsonDict:
    """Put a window anywhere inside an area of the screen."""
    place: JsonDict = {"window_name": window_name, "x": round(random.random(), 3), "y": round(random.random(), 3)}
    if size is not None:
        place |= {"width": size[0], "height": size[1]}
    return step("place_window", **place, area=list(area))


def answer_is(expected: str, *, name: str = "answer", window_name: str) -> JsonDict:
    """Evaluator: a captured dialog printed exactly this."""
    return {
        "func": "exact_match",
        "result": {"type": "captured", "name": name, "window_name": window_name},
        "expected": {"type": "rule", "rules": {"expected": expected}},
    }


def answers_are(**answers: tuple[str, str]) -> JsonDict:
    """Evaluator: several captured dialogs were answered in this order; by name: the title of each and what it printed."""
    captures = [{"name": name, "window_name": title} for name, (title, _) in answers.items()]
    return {
        "func": "exact_match",
        "result": {"type": "captured_in_turn", "captures": captures},
        "expected": {"type": "rule", "rules": {"expected": [[name, said] for name, (_, said) in answers.items()]}},
    }


def file_content_is(path: str, expected: str) -> JsonDict:
    """Evaluator: a file holds exactly this text (a line end at its end does not count)."""
    return {
        "func": "compare_text_file",
        "result": {"type": "vm_file", "path": path},
        "expected": {"type": "rule", "rules": {"expected": expected}},
    }


def folder_names_are(path: str, names: Sequence[str]) -> JsonDict:
    """Evaluator: exactly these names are directly inside a folder (folders with a closing slash)."""
    return {
        "func": "contains_names",
        "result": {"type": "file_names", "path": path},
        "expected": {"type": "rule", "rules": {"exactly": sorted(names)}},
    }


def contents_are_only_in(digests: Sequence[str], paths: Sequence[str] = ()) -> JsonDict:
    """Evaluator: files with these contents (sha256) are nowhere where the user can write but in the trash and at these paths."""
    return {
        "func": "exact_match",
        "result": {"type": "copies", "sha256": list(digests), "below": ["/home/user", "/tmp", "/var/tmp"]},
        "expected": {"type": "rule", "rules": {"expected": sorted(paths)}},
    }


def text_sha256(text: str) -> str:
    """sha256 of a file with this text."""
    return hashlib.sha256(text.encode()).hexdigest()


def all_of(*evaluators: Mapping[str, Any]) -> JsonDict:
    """Evaluator: every one of these single ones."""
    return {
        "func": [one["func"] for one in evaluators],
        "result": [one["result"] for one in evaluators],
        "expected": [one["expected"] for one in evaluators],
        "conj": "and",
    }


def click(role: str, name: str, *, do: str = "click", deferred: bool = False, **target: Any) -> JsonDict:
    """Point at an element and click."""
    return {"do": do, "target": {"role": role, "name": name, **target}, "deferred": deferred}


def click_button(name: str, *, window: str | None = None, deferred: bool = False) -> JsonDict:
    """Click a push button."""
    return click("push button", name, window=window, deferred=deferred)


def type_text(text: str) -> JsonDict:
    """Type with the keyboard."""
    return {"do": "type", "text": text}


def key(*keys: str) -> JsonDict:
    """Press keys together."""
    return {"do": "key", "keys": list(keys)}


def pause(seconds: float = SAVE_WAIT_S) -> JsonDict:
    """Wait, as one action."""
    return {"do": "wait", "duration_s": seconds}


DONE: JsonDict = {"do": "done"}
