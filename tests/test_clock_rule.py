"""One injected clock: in the agent and the training package nothing else reads the time, sleeps, or limits a wait.

`dart_envs.clock` has what may be used: `SYSTEM_CLOCK` as a default, and `wait_for`, `wait_first` and `timeout` on any clock.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GOVERNED = ("dart_agent", "dart_train")
FORBIDDEN = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"},
    "asyncio": {"sleep", "timeout", "timeout_at", "wait_for"},
}
LOOP_TIMERS = {"call_later", "call_at"}
ALLOWED = {
    "dart_agent/inference/engine/server.py": "a thread that watches its parent sleeps outside of any event loop",
}
"""Files that still read the machine's time, each with the reason. The list only gets shorter."""


def uses_of_the_machines_time(tree: ast.AST) -> list[str]:
    """What a module takes from `time`, `asyncio` or a loop that an injected clock has to give."""
    aliases: dict[str, str] = {}
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {name.asname or name.name: name.name for name in node.names if name.name in FORBIDDEN}
        elif isinstance(node, ast.ImportFrom) and node.module in FORBIDDEN:
            found += [f"{node.module}.{name.name}" for name in node.names if name.name in FORBIDDEN[node.module]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            module = aliases.get(node.value.id) if isinstance(node.value, ast.Name) else None
            if module is not None and node.attr in FORBIDDEN[module]:
                found.append(f"{module}.{node.attr}")
            elif node.attr in LOOP_TIMERS:
                found.append(f"loop.{node.attr}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "wait":
            owner = node.func.value
            if isinstance(owner, ast.Name) and aliases.get(owner.id) == "asyncio":
                found += ["asyncio.wait(timeout=)" for keyword in node.keywords if keyword.arg == "timeout"]
    return found


def test_time_comes_from_an_injected_clock() -> None:
    found: dict[str, list[str]] = {}
    for package in GOVERNED:
        for path in sorted((ROOT / package).rglob("*.py")):
            if uses := uses_of_the_machines_time(ast.parse(path.read_text(encoding="utf-8"))):
                found[str(path.relative_to(ROOT))] = uses
    new = {path: uses for path, uses in found.items() if path not in ALLOWED}
    assert not new, f"take a dart_server.wire.Clock and use dart_envs.clock: {new}"
    migrated = sorted(ALLOWED.keys() - found.keys())
    assert not migrated, f"these follow the rule now, remove them from ALLOWED: {migrated}"


def test_every_way_to_the_machines_time_is_seen() -> None:
    ways = {
        "import time\ntime.monotonic()": "time.monotonic",
        "import time as t\ndefault = t.time": "time.time",
        "from time import sleep": "time.sleep",
        "import asyncio\nasyncio.sleep(1)": "asyncio.sleep",
        "import asyncio\nasync with asyncio.timeout(3): ...": "asyncio.timeout",
        "import asyncio\nasyncio.wait_for(x, 1)": "asyncio.wait_for",
        "import asyncio\nasyncio.wait({x}, timeout=1)": "asyncio.wait(timeout=)",
        "loop.call_later(1, x)": "loop.call_later",
    }
    for code, name in ways.items():
        code = f"async def f():\n  {code.replace(chr(10), chr(10) + '  ')}"
        assert uses_of_the_machines_time(ast.parse(code)) == [name]
    for code in ("clock.sleep(1)", "import asyncio\nasyncio.wait({x})", "import time\ntime.gmtime()"):
        assert uses_of_the_machines_time(ast.parse(code)) == []
