"""The attack book: which ways to fake success there are, which tasks each applies to, and the Python that a policy would run for it.

Role: read `tests/adversarial/attacks`. Rule: an attack knows the task and its evaluator, as whoever wrote them does; it runs inside the
desktop through the env's own code action. Non-goals: running (`replay`).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dart_envs.tasks import Task

FOLDER = Path(__file__).parents[2] / "tests" / "adversarial" / "attacks"
SHARED_MODULE = "guest_side"
MAX_PARAMETER_CHARS = 2_000
"""Longer parameters of setup steps (documents, pictures) stay out: the program finds them in the desktop."""

LOADER = """import json, sys, types
for name, source in json.loads({modules!r}).items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
getattr(sys.modules[{module!r}], {function!r})(json.loads({task!r}), *{args!r})
"""


@dataclass(frozen=True, slots=True)
class Attack:
    """One way to be rewarded for nothing; empty lists of conditions fit every task.

    Attributes:
        attack_id: Its name in the book.
        program: Module and function in the folder of programs.
        fakes: What it pretends, in one sentence.
        sudo: Whether it takes root inside the desktop.
        outsider: Whether its author had read only the task and the evaluator.
        args: Further arguments of the function.
        getters: It fits tasks whose evaluator reads with one of these.
        metrics: It fits tasks whose evaluator compares with one of these.
        families: It fits tasks of these families.
        suites: It fits tasks of these suites.
    """

    attack_id: str
    program: str
    fakes: str
    sudo: bool = False
    outsider: bool = False
    args: tuple[str, ...] = ()
    getters: frozenset[str] = frozenset()
    metrics: frozenset[str] = frozenset()
    families: frozenset[str] = frozenset()
    suites: frozenset[str] = frozenset()

    def applies(self, task: Task) -> bool:
        """Whether the attack is about tasks of this kind."""
        getters = {str(config["type"]) for config in task.evaluator.result_configs if config}
        conditions = (
            (self.getters, getters),
            (self.metrics, set(task.evaluator.functions)),
            (self.families, {task.family}),
            (self.suites, {task.suite}),
        )
        return all(not wanted or wanted & held for wanted, held in conditions)

    def code(self, task: Task) -> str:
        """Return the Python that a policy would run inside the desktop."""
        module, _, function = self.program.partition(".")
        sources = program_sources()
        others = [name for name in sources if name == SHARED_MODULE or f"from {name} import" in sources[module]]
        modules = {name: sources[name] for name in dict.fromkeys([*others, module])}
        return LOADER.format(
            modules=json.dumps(modules),
            module=module,
            function=function,
            task=json.dumps(public_task(task)),
            args=self.args,
        )


@cache
def program_sources() -> Mapping[str, str]:
    """Sources of the programs by module, the shared one first."""
    folder = FOLDER / "programs"
    named = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.py")}
    order = sorted(named, key=lambda name: (name != SHARED_MODULE, name))
    return {name: named[name].read_text(encoding="utf-8") for name in order}


def public_task(task: Task) -> dict[str, Any]:
    """The task as its file has it, without its scripts and without long parameters."""
    data = task.model_dump(mode="json", by_alias=True, include={"id", "instruction", "evaluator", "family", "suite"})
    steps = [
        {
            "type": step.type,
            "parameters": {k: v for k, v in step.parameters.items() if len(str(v)) <= MAX_PARAMETER_CHARS},
        }
        for step in task.config
    ]
    return {**data, "config": json.loads(json.dumps(steps, default=list))}


def load_book(folder: Path = FOLDER) -> Sequence[Attack]:
    """Read the book.

    Args:
        folder: The folder with `book.toml`.

    Returns:
        The attacks, in the book's order.
    """
    entries = tomllib.loads((folder / "book.toml").read_text(encoding="utf-8"))["attacks"]
    return [
        Attack(
            attack_id=entry["id"],
            program=entry["program"],
            fakes=entry["fakes"],
            sudo=entry.get("sudo", False),
            outsider=entry.get("outsider", False),
            args=tuple(entry.get("args", ())),
            **{name: frozenset(entry[name]) for name in ("getters", "metrics", "families", "suites") if name in entry},
        )
        for entry in entries
    ]
