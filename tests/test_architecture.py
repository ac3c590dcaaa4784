"""The design's rules that a machine can check: import direction, slim imports, file sizes, generic names."""

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


def test_no_file_outgrows_its_role() -> None:
    long = {
        str(path.relative_to(ROOT)): n
        for path in sources()
        if (n := path.read_text(encoding="utf-8").count("\n")) > MAX_LINES
    }
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
