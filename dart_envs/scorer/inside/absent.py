"""Packages that are not installed, so that only the metrics that use them fail.

Role: an import finder that gives a hollow module for each name in `MAY_BE_ABSENT`. Rule: using anything of a hollow module raises `Absent`
(no `Exception`, so that no metric can swallow it into a score) and is remembered, in case something swallowed it all the same.
Non-goals: installing anything.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

MAY_BE_ABSENT = {
    "acoustid": "pyacoustid",
    "borb": "borb",
    "easyocr": "easyocr",
    "fastdtw": "fastdtw",
    "librosa": "librosa",
    "pydrive": "pydrive",
}
"""Import name and the name on PyPI of what evaluators import, but few use."""

touched: set[str] = set()
"""Names on PyPI of absent packages that were used since this was last cleared."""


class Absent(BaseException):
    """A metric used a package that is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(f"the package {package} is not installed")
        self.package = package


class _Hollow:
    """A name of an absent package."""

    def __init__(self, package: str) -> None:
        object.__setattr__(self, "_package", package)

    def _fail(self) -> Any:
        package = object.__getattribute__(self, "_package")
        touched.add(package)
        raise Absent(package)

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        return self._fail()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._fail()


class _HollowModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Hollow(MAY_BE_ABSENT[self.__name__.partition(".")[0]])


class _Finder:
    """Finds hollow modules; asked last."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in MAY_BE_ABSENT:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _HollowModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def absent_packages() -> list[str]:
    """Names on PyPI of what is not installed."""
    return sorted(package for name, package in MAY_BE_ABSENT.items() if importlib.util.find_spec(name) is None)


def install() -> list[str]:
    """Put the finder in place; returns `absent_packages`."""
    missing = absent_packages()
    sys.meta_path.append(_Finder())
    return missing
