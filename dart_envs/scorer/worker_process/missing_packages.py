"""Packages that are not installed, so that only the metrics that use them fail.

Role: an import finder that gives a hollow module for each name in `OPTIONAL_PACKAGES`. Rule: using anything of a hollow module raises
`MissingPackageError` (no `Exception`, so that no metric can swallow it into a score) and is remembered, in case something swallowed it
all the same. Non-goals: installing anything.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

OPTIONAL_PACKAGES = {
    "acoustid": "pyacoustid",
    "borb": "borb",
    "easyocr": "easyocr",
    "fastdtw": "fastdtw",
    "librosa": "librosa",
    "pydrive": "pydrive",
}
"""Import name and the name on PyPI of what evaluators import, but few use."""

used_placeholders: set[str] = set()
"""Names on PyPI of absent packages that were used since this was last cleared."""


class MissingPackageError(BaseException):
    """A metric used a package that is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(f"the package {package} is not installed")
        self.package = package


class _PlaceholderAttribute:
    """A name of an absent package."""

    def __init__(self, package: str) -> None:
        object.__setattr__(self, "_package", package)

    def _fail(self) -> Any:
        package = object.__getattribute__(self, "_package")
        used_placeholders.add(package)
        raise MissingPackageError(package)

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        return self._fail()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._fail()


class _PlaceholderModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _PlaceholderAttribute(OPTIONAL_PACKAGES[self.__name__.partition(".")[0]])


class _PlaceholderFinder:
    """Finds hollow modules; asked last."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in OPTIONAL_PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _PlaceholderModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def find_missing_packages() -> list[str]:
    """Names on PyPI of what is not installed."""
    return sorted(package for name, package in OPTIONAL_PACKAGES.items() if importlib.util.find_spec(name) is None)


def install() -> list[str]:
    """Put the finder in place; returns `find_missing_packages`."""
    missing = find_missing_packages()
    sys.meta_path.append(_PlaceholderFinder())
    return missing
