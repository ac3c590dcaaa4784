"""The design's rules that a machine can check: import direction, cycles, package sizes, slim imports, file sizes, names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "dart_envs": ROOT / "dart_envs",
    "dart_agent": ROOT / "dart_agent",
    "dart_train": ROOT / "dart_train",
    "dart_server": ROOT / "server" / "dart_server",
    "vm_images": ROOT / "vm_images",
}
MAY_IMPORT = {
    "dart_train": {"dart_train", "dart_agent", "dart_envs", "dart_server.wire"},
    "dart_agent": {"dart_agent", "dart_envs", "dart_server.wire"},
    "dart_envs": {"dart_envs", "dart_server.wire"},
    "dart_server": {"dart_server"},
    "vm_images": {"vm_images"},
}
MAX_LINES = 420
"""Outside docstrings."""
MAX_TOP_LEVEL_MODULES = 12
MAX_MODULES = 16
COUNTED = (*(folder for name, folder in PACKAGES.items() if name != "vm_images"), ROOT / "benchmarks")
"""Packages whose sizes are bounded, with their subpackages."""
SHARED_CLASS_NAMES = frozenset({"SystemClock"})
"""Each package has its own implementation of the one protocol `dart_server.wire.Clock`."""
HEAVY = ("torch", "vllm", "transformers", "fastapi", "sqlalchemy")


def sources() -> list[Path]:
    """Every Python file of ours that is part of the product."""
    return [path for folder in PACKAGES.values() for path in sorted(folder.rglob("*.py"))]


def imported_modules(path: Path) -> set[str]:
    """Absolute names of all modules that a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name, packages by theirs; benchmarks included."""
    found: dict[str, Path] = {}
    for folder in COUNTED:
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def import_graph() -> dict[str, set[str]]:
    """By module: the modules that it imports, wherever in the file, with the packages that Python runs on the way to them."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        wanted: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                wanted |= {full if full in known else node.module for full in inner}
        reached: set[str] = set()
        for module in wanted & known.keys():
            parts = module.split(".")
            above = {".".join(parts[:count]) for count in range(1, len(parts))}
            reached |= {module} | {package for package in above & known.keys() if not name.startswith(f"{package}.")}
        graph[name] = reached - {name}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan's algorithm, iterative)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for root in graph:
        work = [(root, iter(graph[root]))] if root not in index else []
        if work:
            index[root] = low[root] = len(index)
            stack.append(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    work.append((target, iter(graph[target])))
                    break
                if target in stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    component, stack[at:] = sorted(stack[at:]), []
                    if len(component) > 1:
                        found.append(component)
    return found


def test_no_module_imports_itself_on_a_detour() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles(import_graph()) == []


@pytest.mark.parametrize("folder", COUNTED, ids=lambda folder: folder.name)
def test_packages_are_small_enough_to_read(folder: Path) -> None:
    for place in (folder, *(path for path in sorted(folder.rglob("*")) if path.is_dir())):
        names = [path.name for path in place.glob("*.py") if path.name != "__init__.py"]
        allowed = MAX_TOP_LEVEL_MODULES if place == folder else MAX_MODULES
        assert len(names) <= allowed, f"{place.relative_to(ROOT)} has {len(names)} modules, {allowed} are allowed"


def test_the_root_helper_imports_the_standard_library_and_itself_only() -> None:
    for path in sorted((PACKAGES["dart_server"] / "hostd").rglob("*.py")):
        for module in imported_modules(path):
            top = module.split(".")[0]
            assert (
                top in sys.stdlib_module_names or module == "dart_server" or module.startswith("dart_server.hostd")
            ), f"{path.relative_to(ROOT)} imports {module}"


def test_no_two_public_classes_share_a_name() -> None:
    seen: dict[str, str] = {}
    for name, path in modules().items():
        if name.startswith("benchmarks"):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert node.name not in seen or node.name in SHARED_CLASS_NAMES, (
                    f"{name} and {seen[node.name]} both define {node.name}"
                )
                seen[node.name] = name


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_imports_go_one_way(package: str) -> None:
    allowed = MAY_IMPORT[package]
    ours = tuple(PACKAGES)
    wrong = []
    for path in sorted(PACKAGES[package].rglob("*.py")):
        for module in imported_modules(path):
            if module.split(".")[0] not in ours or module in ours:
                continue
            if not any(module == name or module.startswith(name + ".") for name in allowed):
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "module", ["dart_envs", "dart_agent", "dart_agent.types", "dart_train.config", "dart_server.wire"]
)
def test_client_modules_import_without_heavy_packages(module: str) -> None:
    code = f"import sys, {module}; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def lines_of_code(path: Path) -> int:
    """Lines of a file outside its docstrings."""
    text = path.read_text(encoding="utf-8")
    documented = 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            first = node.body[0]
            documented += (first.end_lineno or first.lineno) - first.lineno + 1
    return text.count("\n") - documented


def test_no_file_outgrows_its_role() -> None:
    long = {str(path.relative_to(ROOT)): n for path in sources() if (n := lines_of_code(path)) > MAX_LINES}
    assert not long


def test_no_utils_modules() -> None:
    assert not [path for path in sources() if path.stem in {"utils", "util", "helpers", "common", "misc"}]


def test_every_module_states_its_role() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sources()
        if path.read_text(encoding="utf-8").strip()
        and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not silent
