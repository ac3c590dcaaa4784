"""What a person or a program sees of a command. Rule: answers on standard output, refusals in one sentence on standard error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NoReturn

import typer

Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def fail(message: str, code: int = 2) -> NoReturn:
    """One sentence, then the end."""
    typer.echo(f"dart-farm: {message}", err=True)
    raise typer.Exit(code)


def print_table(rows: Sequence[Mapping[str, Any]], columns: tuple[str, ...]) -> None:
    """Columns under their names."""
    cells = [
        list(columns),
        *(["-" if row.get(column) is None else str(row[column]) for column in columns] for row in rows),
    ]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
