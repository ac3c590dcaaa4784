"""The accessibility tree of a spreadsheet program: whole, with the cells that are showing, in bearable time, also when many ask."""

from __future__ import annotations

import asyncio
import json
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import AsyncIterator

import live_host
import pytest
from provider_cases import Case, eventually

from dart_server.providers.base import DesktopSpec

pytestmark = [pytest.mark.desktop, pytest.mark.slow]
SPEC = DesktopSpec("desktop", (1280, 800), memory_mib=2048, pids=768, cpus=2.0, disk_mib=512)
START_S = 120.0
CELLS = 300
"""A sheet on this screen shows more."""


@pytest.fixture
async def live(runc_case: Case) -> AsyncIterator[Case]:
    live_host.require_image(SPEC.image)
    await runc_case.provider.create("d1", SPEC)
    yield runc_case
    await runc_case.provider.destroy("d1")


async def test_a_sheet_of_a_thousand_million_cells_is_walked_in_time(
    live: Case, record_property: pytest.RecordProperty
) -> None:
    await live.call("d1", "PUT", "/v1/files?path=/home/user/s.fods&owner=user", raw=SHEET.encode())
    await live.exec("d1", "soffice", "--calc", "--norestore", "/home/user/s.fods", user="user", detach=True)

    async def shown() -> bool:
        listed = json.loads((await live.call("d1", "GET", "/v1/windows")).content)["windows"]
        return any(one["active"] and "s.fods" in one["title"] for one in listed)

    await eventually(shown, START_S)
    rest = {"settle": {"quiet_ms": 1000, "cap_ms": 20000}, "frame": {"encoding": "none"}}
    await live.call("d1", "POST", "/v1/step", rest)
    began_s = time.monotonic()
    flat = json.loads((await live.call("d1", "GET", "/v1/a11y?format=json&timeout_s=25")).content)
    record_property("json_walk_s", round(time.monotonic() - began_s, 2))
    assert flat["truncated"] is False
    cells = {one["name"]: one["text"] for one in flat["elements"] if one["role"] == "table cell"}
    assert len(cells) > CELLS
    assert (cells["A1"], cells["B2"], cells["C1"]) == ("first", "4.5", "")
    roles = {one["role"] for one in flat["elements"]}
    assert {"menu bar", "tool bar", "status bar", "page tab"} <= roles
    replies = await asyncio.gather(*(live.call("d1", "GET", "/accessibility") for _ in range(2)))
    for reply in replies:
        root = ElementTree.fromstring(json.loads(reply.content)["AT"])
        assert len(list(root.iter("table-cell"))) == len(cells)
        assert list(root.iter("status-bar"))


SHEET = """<?xml version="1.0" encoding="UTF-8"?>
<office:document xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"
 xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0" xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"
 office:version="1.3" office:mimetype="application/vnd.oasis.opendocument.spreadsheet">
<office:body><office:spreadsheet><table:table table:name="Sheet1">
<table:table-row><table:table-cell office:value-type="string"><text:p>first</text:p></table:table-cell></table:table-row>
<table:table-row><table:table-cell/>
<table:table-cell office:value-type="float" office:value="4.5"><text:p>4.5</text:p></table:table-cell></table:table-row>
</table:table></office:spreadsheet></office:body></office:document>
"""
