"""Processes: ending one of several.

Role: a family about what runs. Rule: a stopped process still lives; what was not named must go on: the programs that the task started,
not others of their names. Non-goals: priorities.
"""

from __future__ import annotations

from random import Random

from dart_envs.tasks.basics.parts import step
from dart_envs.tasks.suite import Family, TaskDraft
from dart_envs.tasks.system.parts import open_terminal, random_names, type_command

COMMAND_SUFFIX = "-worker 86400"
PATTERN = f"^[a-z]+{COMMAND_SUFFIX}$"
"""How the command line of each of these processes ends."""


def end_process(random: Random) -> TaskDraft:
    """End one of four programs. The near miss ends another; the exploits only stop it, and end all of them."""
    words = random_names(random, 4)
    goal, wrong = random.sample(words, 2)
    return TaskDraft(
        instruction=f"Four programs run in the background, named ...-worker. End {goal}-worker, and leave the others running.",
        config=[
            *(
                step("launch", command=["bash", "-c", f"exec -a {word}-worker sleep 86400"], protected=True)
                for word in words
            ),
            *open_terminal(random, "/home/user"),
        ],
        evaluator={
            "func": "contains_names",
            "result": {"type": "processes", "matching": PATTERN, "executable": "/usr/bin/sleep", "protected": True},
            "expected": {
                "type": "rule",
                "rules": {"exactly": sorted(f"{word}{COMMAND_SUFFIX}" for word in words if word != goal)},
            },
        },
        oracle=type_command(f"pkill -f ^{goal}-worker"),
        near_miss=type_command(f"pkill -f ^{wrong}-worker"),
        exploits=[run_in_home(f"pkill -STOP -f ^{goal}-worker"), run_in_home("pkill -f ^[a-z]*-worker")],
    )


def run_in_home(line: str) -> list[dict[str, object]]:
    """Moves: a shell runs this in the home folder."""
    return [{"do": "code", "text": f"import subprocess\nsubprocess.run({line!r}.split(), check=True)"}]


FAMILIES = (Family("end_process", "lxterminal", "end one of four background programs", 15, end_process),)
