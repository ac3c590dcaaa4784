"""`events`: the farm's history."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from dart_server.cli.session import farm_location, request_or_fail
from dart_server.cli.terminal import Json, fail, format_cell, show_rows

COLUMNS = ("id", "at", "kind", "desktop_id", "lease_id", "fencing_token", "data")
FOLLOW_S = 1.0
MAX_EVENT_ID = 2**62

After = Annotated[int, typer.Option(min=0, help="Only events after this number.")]
Limit = Annotated[int, typer.Option(min=1, max=5000, help="At most so many events.")]
Kind = Annotated[str | None, typer.Option(help="Only this kind, as `lease_granted`.")]

app = typer.Typer()


def show_events(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """A page of the history."""
    show_rows(rows, COLUMNS, as_json)


@app.command()
def events(
    after: After = 0,
    before: Annotated[int | None, typer.Option(min=1, help="The page that ends below this number.")] = None,
    limit: Limit = 500,
    latest: Annotated[bool, typer.Option("--latest", help="The newest page.")] = False,
    kind: Kind = None,
    desktop: Annotated[str | None, typer.Option(help="Only of this desktop.")] = None,
    lease: Annotated[str | None, typer.Option(help="Only of this lease.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="The latest ones, then each as it comes, one per line.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The history, oldest first, page by page: the next page begins `--after` the last number of this one.

    `--latest` shows the newest page.
    """
    if latest and before is not None:
        fail("--latest and --before do not go together.")
    if latest or follow:
        before = before or MAX_EVENT_ID
    location = farm_location()
    wanted: dict[str, Any] = {"limit": limit, "kind": kind, "desktop_id": desktop, "lease_id": lease}
    rows = request_or_fail("/v1/events", location=location, params={**wanted, "after": after, "before": before})
    if not follow:
        show_events(rows, as_json)
        return
    try:
        while True:
            for row in rows:
                line = "  ".join(format_cell(row.get(column)) for column in COLUMNS)
                typer.echo(json.dumps(row, ensure_ascii=False) if as_json else line)
                after = row["id"]
            sys.stdout.flush()
            time.sleep(FOLLOW_S)
            rows = request_or_fail("/v1/events", location=location, params={**wanted, "after": after})
    except KeyboardInterrupt:
        return
