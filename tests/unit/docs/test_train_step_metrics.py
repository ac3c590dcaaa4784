"""The page of metrics defines every figure of a train step that the trainer writes, and no other one."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, TypeGuard

ROOT = Path(__file__).resolve().parents[3]
WRITERS = {
    "dart_train/objectives/policy_loss.py": ("policy_loss",),
    "dart_train/metrics.py": ("summarize_step", "_rollout_rewards"),
    "dart_train/trainer/trainer.py": ("_train", "_accumulate_gradients"),
    "dart_train/trainer/process.py": ("train_step", "_lag"),
}
"""Functions that give the figures of a line of kind `update` their names."""
NOT_WRITTEN = {
    "kind": "it tells lines of metrics.jsonl apart",
    "tis_weight_squared": "`summarize_step` makes `ess_fraction` of it",
    "imitated_tokens": "`summarize_step` divides by it",
}


def written_names() -> set[str]:
    """Names that the writers give figures, from their source: the functions themselves need torch."""
    names: set[str] = set()
    for path, functions in WRITERS.items():
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        found = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in functions
        ]
        assert {node.name for node in found} == set(functions), f"{path} has another function that names figures"
        for function in found:
            names |= {name for node in ast.walk(function) for name in _keys(node)}
    names -= NOT_WRITTEN.keys()
    return names | {f"target_{name}" for name in _target_metrics()}


def _keys(node: ast.AST) -> list[str]:
    """Keys of a literal dictionary, and what is assigned by a key; of the rewards by family the placeholder of the page."""
    if isinstance(node, ast.Dict):
        keys = [key for key in node.keys if key is not None]
    elif isinstance(node, ast.Assign):
        keys = [target.slice for target in node.targets if isinstance(target, ast.Subscript)]
    elif isinstance(node, ast.DictComp):
        keys = [node.key]
    else:
        return []
    found = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    return found + [f"{key.values[0].value}FAMILY" for key in keys if _is_of_family(key)]


def _is_of_family(key: ast.AST) -> TypeGuard[Any]:
    """Whether a key is a reward with the name of a family behind it."""
    return (
        isinstance(key, ast.JoinedStr)
        and isinstance(key.values[0], ast.Constant)
        and str(key.values[0].value).endswith("reward/")
    )


def _target_metrics() -> tuple[str, ...]:
    tree = ast.parse((ROOT / "dart_train/objectives/policy_loss.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TARGET_METRICS":
            return tuple(ast.literal_eval(node.value))
    raise AssertionError("policy_loss.py has no TARGET_METRICS")


def defined_names() -> set[str]:
    """Names in the first column of the tables of the section."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    section = page.split("## The train step\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_figure_of_a_train_step_is_defined_and_no_other() -> None:
    written = written_names()
    assert "clip_fraction" in written
    assert written == defined_names()
