"""What a person or a program sees of a command.

Rule: answers go to standard output: tables for people, with colour where it is a terminal, and with `--json` one JSON document.
Refusals go to standard error: one sentence, or with `--json` one object `{"error", "detail", "hint"}`, also where the command line
itself is wrong (`JsonErrorGroup`). Exit code 2 is wrong input, 1 that the command itself failed. What the farm tells is shown without its
control characters: names and descriptions are other people's texts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rich.table import Table

Row = Mapping[str, Any]

_as_json: ContextVar[bool] = ContextVar("dart_cli_json", default=False)
USAGE = cast("type[Exception]", typer.BadParameter.__mro__[2])
"""What is raised for a wrong command line (`ClickException`), wherever this version of Typer has it from."""


def _remember(as_json: bool) -> bool:
    _as_json.set(as_json)
    return as_json


Json = Annotated[bool, typer.Option("--json", help="Machine-readable output, errors too.", callback=_remember)]


class JsonErrorGroup(TyperGroup):
    """The whole command line: an unknown command, option or value is told as JSON, too, where `--json` stands on it."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """As of every group. Exit code 2 for a wrong command line."""
        given = list(sys.argv[1:] if args is None else args)
        told_as_json = standalone_mode and "--json" in given
        run = partial(super().main, given, prog_name, complete_var, windows_expand_args=windows_expand_args, **extra)
        if not told_as_json:
            return run(standalone_mode=standalone_mode)
        try:
            sys.exit(run(standalone_mode=False))
        except typer.Abort:
            sys.exit(1)
        except USAGE as error:
            context = getattr(error, "ctx", None)
            where = "dart-farm" if context is None else context.command_path
            _refuse("invalid", error.format_message(), f"See `{where} --help`.")  # type: ignore[attr-defined]
            sys.exit(2)


def _tell_version(asked: bool) -> None:
    if asked:
        from dart_server.wire.extras import show_version

        show_version(asked)


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Tell the installed version, and end.")
]


def reset_output_mode(version: Version = False) -> None:
    """A new command line: nothing of an earlier one in this process holds."""
    _as_json.set(False)


def fail(message: str, code: int = 2, *, error: str | None = None, hint: str | None = None) -> NoReturn:
    """One sentence, then the end. `error` is the farm's code, or what stands for it: by default `invalid` for 2, `failed` for 1."""
    if _as_json.get():
        _refuse(error or ("invalid" if code == 2 else "failed"), message, hint)
    else:
        typer.echo(f"dart-farm: {printable(f'{message} {hint}' if hint else message)}", err=True)
    raise typer.Exit(code)


def _refuse(error: str, detail: str, hint: str | None) -> None:
    typer.echo(json.dumps({"error": error, "detail": detail, "hint": hint}, ensure_ascii=False), err=True)


def plain(message: str) -> str:
    """A sentence about a wrong value without the name that the validator puts before it."""
    return printable(message.removeprefix("Value error, "))


def show(document: Any, text: str, as_json: bool) -> None:
    """The document for programs, the text for people."""
    typer.echo(json.dumps(document, ensure_ascii=False) if as_json else printable(text))


def show_rows(rows: Sequence[Row], columns: Sequence[str], as_json: bool, *, empty: str = "") -> None:
    """All of the rows for programs; for people the columns, as a table. `empty` is said instead of a table without rows."""
    if as_json:
        typer.echo(json.dumps(list(rows), ensure_ascii=False))
    elif not rows and empty:
        typer.echo(empty)
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(table(rows, columns))
    else:
        print_table(rows, columns)


def show_fields(document: Row, as_json: bool) -> None:
    """One thing: its fields, one per line for people."""
    if as_json:
        typer.echo(json.dumps(document, ensure_ascii=False))
        return
    width = max(map(len, document), default=0)
    for name, value in document.items():
        typer.echo(f"{name:<{width}}  {format_cell(value)}")


def table(rows: Sequence[Row], columns: Sequence[str], title: str | None = None) -> Table:
    """For a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(*(column.replace("_", " ") for column in columns), title=title, title_justify="left", box=SIMPLE_HEAD)
    for row in rows:
        made.add_row(*(Text(_short(format_cell(row.get(column)))) for column in columns))
    return made


def print_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Columns under their names, for pipes."""
    cells = [list(columns), *([format_cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def format_cell(value: Any) -> str:
    """A value in a cell: `-` for nothing, `name=value` for what has names."""
    if value is None or value == {} or value == []:
        return "-"
    if isinstance(value, Mapping):
        return ",".join(f"{printable(str(name))}={format_cell(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ",".join(format_cell(inner) for inner in value)
    return printable(str(value))


def printable(text: str) -> str:
    """Without characters that a terminal would obey."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "?" for sign in text)


def _short(text: str) -> str:
    """A moment without its fractions; everything else as it is."""
    if len(text) < 19 or text[4:5] != "-" or text[10:11] != "T":
        return text
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%SZ")
    except ValueError:
        return text
