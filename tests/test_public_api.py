"""What packages export is documented in Google style: arguments, results, attributes."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

PACKAGES = ("dart_envs", "dart_envs.farm")
SELF_EXPLAINING = frozenset({"close", "aclose"})


def exported(package: str) -> Iterator[tuple[str, Any]]:
    """(dotted name, function or method) of everything that a package exports."""
    module = importlib.import_module(package)
    for name in module.__all__:
        found = getattr(module, name)
        if inspect.isfunction(found):
            yield f"{package}.{name}", found
        elif inspect.isclass(found) and not issubclass(found, BaseException | BaseModel):
            for attribute, value in vars(found).items():
                value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                if inspect.isfunction(value) and not attribute.startswith("_") and attribute not in SELF_EXPLAINING:
                    yield f"{package}.{name}.{attribute}", value


def gaps(function: Any) -> list[str]:
    """The sections that a docstring lacks."""
    text = inspect.getdoc(function) or ""
    signature = inspect.signature(function)
    parameters = [name for name in signature.parameters if name not in ("self", "cls")]
    lacking = [] if text else ["a docstring"]
    if parameters and "Args:" not in text:
        lacking.append("Args:")
    lacking += [f"argument {name}" for name in parameters if "Args:" in text and f"{name}:" not in text]
    result = str(signature.return_annotation)
    documented = ("Returns:", "Yields:", "Return ", "Iterate")
    if result not in ("None", "Self") and "empty" not in result and not any(word in text for word in documented):
        lacking.append("Returns:")
    return lacking


@pytest.mark.parametrize("package", PACKAGES)
def test_exported_functions_and_methods_are_documented(package: str) -> None:
    found = {name: lacking for name, function in exported(package) if (lacking := gaps(function))}
    assert not found, "\n".join(f"{name}: {', '.join(lacking)}" for name, lacking in found.items())


@pytest.mark.parametrize("package", PACKAGES)
def test_exported_data_types_describe_their_fields(package: str) -> None:
    module = importlib.import_module(package)
    silent = [
        name
        for name in module.__all__
        if inspect.isclass(found := getattr(module, name))
        and (dataclasses.is_dataclass(found) or issubclass(found, BaseModel))
        and "Attributes:" not in (inspect.getdoc(found) or "")
    ]
    assert not silent
