"""Recipes: what an image holds.

Role: read and check `recipes/NAME.toml`.
Rule: frozen; unknown keys and wrong types are errors that name the file and the field.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from imagebuild.errors import UsageError

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
SESSION_USER = re.compile("user")
"""The account that the guest agent starts the session as."""
OPTIONAL = ("warm", "applications")
PLACES = {
    "above the first [section], beside the first `name`": ("name", "suite", "mirror", "security_mirror", "warm"),
    "in [exclude]": ("paths", "except"),
    "in [user]": ("name", "uid", "password", "groups"),
    "in [[applications]]": ("command", "role", "name"),
}
"""Where a recipe has its keys."""


@dataclass(frozen=True, slots=True)
class User:
    """The account that the desktop belongs to."""

    name: str
    uid: int
    password: str
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Application:
    """A program that `verify` starts, and role and name of an accessible element that shows that it is up."""

    command: tuple[str, ...]
    role: str
    name: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """One image: Debian suite, packages (sorted, each once), paths left out, user.

    `warm` are commands that the user runs once while the image is made, so that programs find their profiles. `applications` are what
    `verify` starts in a desktop of the image.
    """

    name: str
    suite: str
    mirror: str
    security_mirror: str
    packages: tuple[str, ...]
    exclude_paths: tuple[str, ...]
    include_paths: tuple[str, ...]
    user: User
    warm: tuple[tuple[str, ...], ...] = ()
    applications: tuple[Application, ...] = ()

    def canonical(self) -> str:
        """The recipe as text in which equal recipes are equal."""
        fields = asdict(self)
        return json.dumps({key: fields[key] for key in fields if fields[key] or key not in OPTIONAL}, sort_keys=True)

    def packages_canonical(self) -> str:
        """What decides the packages layer, as text."""
        return replace(self, user=User("", 0, "", ()), warm=(), applications=()).canonical()

    def sources(self, keyring: Path) -> list[str]:
        """APT source lines: the suite, its updates, its security fixes."""
        options = f"deb [signed-by={keyring}]"
        return [
            f"{options} {self.mirror} {self.suite} main",
            f"{options} {self.mirror} {self.suite}-updates main",
            f"{options} {self.security_mirror} {self.suite}-security main",
        ]


class Fields:
    """One TOML table, read key by key; what is left unread is an error."""

    def __init__(self, file: Path, where: str, table: Mapping[str, Any]) -> None:
        self.file = file
        self.where = where
        self.table = dict(table)

    def fail(self, key: str, expected: str) -> UsageError:
        """The error for a field; in [packages], where every key is a group, a key of another place is told its place."""
        place = place_of(key) if self.where == "packages." else ""
        return UsageError(f"{self.file}: {self.where}{key} must be {expected}{place}")

    def take(self, key: str, kind: type, expected: str) -> Any:
        """A required field of a type."""
        value = self.table.pop(key, None)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.fail(key, expected)
        return value

    def text(self, key: str, pattern: re.Pattern[str] | None = None) -> str:
        """A required non-empty string."""
        value: str = self.take(key, str, "a string")
        if not value or (pattern is not None and not pattern.fullmatch(value)):
            raise self.fail(key, f"like {pattern.pattern}" if pattern is not None else "a non-empty string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A required list of strings."""
        value = self.take(key, list, "a list of strings")
        if not all(isinstance(item, str) and item for item in value):
            raise self.fail(key, "a list of strings")
        return tuple(value)

    def commands(self, key: str) -> tuple[tuple[str, ...], ...]:
        """A list of commands, or nothing."""
        if key not in self.table:
            return ()
        expected = 'a list of commands, each a list of words, like [["touch", "/home/user/made"]]'
        value = self.take(key, list, expected)
        if not all(isinstance(one, list) and one and all(isinstance(word, str) for word in one) for one in value):
            raise self.fail(key, expected)
        return tuple(tuple(one) for one in value)

    def applications(self, key: str) -> tuple[Application, ...]:
        """A list of tables with command, role and name, or nothing."""
        if key not in self.table:
            return ()
        tables = self.take(key, list, "a list of tables")
        if not all(isinstance(one, dict) for one in tables):
            raise self.fail(key, "a list of tables")
        found = []
        for index, table in enumerate(tables):
            fields = Fields(self.file, f"{self.where}{key}.{index}.", table)
            command = fields.texts("command")
            if not command:
                raise fields.fail("command", "a list of strings that begins with a program")
            found.append(Application(command, fields.text("role"), fields.text("name")))
            fields.finish()
        return tuple(found)

    def inner(self, key: str) -> Fields:
        """A required table."""
        return Fields(self.file, f"{self.where}{key}.", self.take(key, dict, "a table"))

    def finish(self) -> None:
        """Everything was known; raises UsageError, which tells the place of a key that belongs elsewhere."""
        if self.table:
            key = min(self.table)
            base = "; a recipe has no base: list all packages in [packages]" if key == "base" else ""
            raise UsageError(f"{self.file}: unknown key {self.where}{key}{base or place_of(key)}")


def place_of(key: str) -> str:
    """The end of an error about a key that stands where it does not belong; empty where no place has it."""
    places = [place for place, keys in PLACES.items() if key in keys]
    return f"; `{key}` belongs {' or '.join(places)}" if places else ""


def read_recipe(file: Path) -> Recipe:
    """Read and check a recipe; raises UsageError."""
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        known = ", ".join(sorted(other.stem for other in file.parent.glob("*.toml"))) or "none"
        raise UsageError(f"there is no recipe {file.stem!r}; known recipes: {known}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: {error}") from error
    top = Fields(file, "", raw)
    name = top.text("name", NAME)
    if name != file.stem:
        raise UsageError(f"{file}: name must be {file.stem!r}, as the file is called")
    groups = top.inner("packages")
    packages: set[str] = set()
    for group in sorted(groups.table):
        for package in groups.texts(group):
            if not PACKAGE.fullmatch(package):
                raise groups.fail(group, f"a list of package names, and {package!r} is none")
            packages.add(package)
    exclude = top.inner("exclude")
    account = top.inner("user")
    user = User(
        account.text("name", SESSION_USER),
        account.take("uid", int, "a number"),
        account.text("password"),
        account.texts("groups"),
    )
    recipe = Recipe(
        name=name,
        suite=top.text("suite", NAME),
        mirror=top.text("mirror"),
        security_mirror=top.text("security_mirror"),
        packages=tuple(sorted(packages)),
        exclude_paths=exclude.texts("paths"),
        include_paths=exclude.texts("except"),
        user=user,
        warm=top.commands("warm"),
        applications=top.applications("applications"),
    )
    for fields in (account, exclude, groups, top):
        fields.finish()
    return recipe
