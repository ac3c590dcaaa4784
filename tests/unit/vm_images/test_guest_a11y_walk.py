"""The accessibility walk on a fake bus: what is read, in which order, and how little is asked."""

from __future__ import annotations

import struct
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

import pytest
from dart_guest import a11y_tree
from dart_guest.a11y_tree import Element, Tree, read_tree
from dart_guest.a11y_walk import NAMESPACES, flat, xml
from dart_guest.dbus_client import Call, Reader, Reply, pack_strings
from fake_accessibility_bus import FakeAccessibilityBus, FakeElement

ROWS, COLUMNS = 1_048_576, 1_024
TOP, LEFT, HIGH, WIDE = 20, 3, 90, 15
"""The part of the sheet that is showing."""
HIDDEN_ROWS = range(40, 60)


def read(bus: FakeAccessibilityBus, *, everything: bool = False, limit_s: float = 20.0) -> Tree:
    return read_tree(bus, time.monotonic() + limit_s, everything=everything)


def names(application: Element) -> list[str]:
    return [one["name"] for one in flat(application)]


class FakeSheetBus(FakeAccessibilityBus):
    """A table of a spreadsheet's size whose corner has a header; `cells` were asked for so far."""

    def __init__(self) -> None:
        size = {"NRows": ROWS, "NColumns": COLUMNS}
        self.sheet = FakeElement("table", "Sheet1", interfaces=("Component", "Table"), values=size)
        self.sheet.child_count = lambda: ROWS * COLUMNS  # type: ignore[method-assign]
        window = FakeElement("frame", "s.ods", children=[self.sheet])
        super().__init__({":1.1": FakeElement("application", "soffice", children=[window])})
        self.cells: dict[tuple[int, int], FakeElement] = {}
        self.header = FakeElement("column header", "D")
        self.corner: FakeElement | None = self.cell(TOP, LEFT)

    def cell(self, row: int, column: int) -> FakeElement:
        if (row, column) not in self.cells:
            seen = TOP <= row < TOP + HIGH and LEFT <= column < LEFT + WIDE and row not in HIDDEN_ROWS
            found = FakeElement("table cell", f"R{row}C{column}", states=("visible", "showing") if seen else ())
            self.cells[row, column] = found
        return self.cells[row, column]

    def table_value(self, call: Call, element: FakeElement, arguments: Reader) -> bytes:
        if call.member == "GetAccessibleAtPoint":
            found = self.corner if arguments.signed() - self.sheet.box[0] >= 20 else self.header
            return self.reference(call.destination, found)
        if call.member == "GetIndexInParent":
            row, column = next(place for place, cell in self.cells.items() if cell is element)
            return struct.pack("<i", row * COLUMNS + column)
        if call.member == "GetRowAtIndex":
            return struct.pack("<i", arguments.signed() // COLUMNS)
        if call.member == "GetColumnAtIndex":
            return struct.pack("<i", arguments.signed() % COLUMNS)
        assert call.member == "GetAccessibleAt"
        return self.reference(call.destination, self.cell(arguments.signed(), arguments.signed()))


def test_of_a_spreadsheet_the_showing_cells_are_walked() -> None:
    bus = FakeSheetBus()
    tree = read(bus)
    found = list(flat(tree.applications[0]))
    assert [one["role"] for one in found[:2]] == ["frame", "table"]
    rows = [row for row in range(TOP, TOP + HIGH) if row not in HIDDEN_ROWS]
    cells = [one["name"] for one in found[2:]]
    assert cells == [f"R{row}C{column}" for row in rows for column in range(LEFT, LEFT + WIDE)]
    assert not tree.truncated
    assert bus.asked < 10 * len(cells)


def test_a_table_that_shows_no_cell_has_none() -> None:
    bus = FakeSheetBus()
    bus.corner = None
    (application,) = read(bus).applications
    assert names(application) == ["s.ods", "Sheet1"]


def window(*children: FakeElement) -> FakeElement:
    return FakeElement("application", "app", children=[FakeElement("frame", "window", children=list(children))])


def test_showing_elements_come_in_the_order_of_the_tree() -> None:
    hidden = FakeElement("menu", "hidden", states=("visible",), children=[FakeElement("menu item", "below it")])
    left = FakeElement("panel", "left", children=[FakeElement("label", "a"), FakeElement("label", "b")])
    unplaced = FakeElement("filler", "no size", box=(0, 0, 0, 0), children=[FakeElement("label", "inside")])
    bus = FakeAccessibilityBus({":1.1": window(left, hidden, unplaced, FakeElement("label", "right"))})
    (application,) = read(bus).applications
    found = list(flat(application))
    assert [one["name"] for one in found] == ["window", "left", "a", "b", "inside", "right"]
    assert {(one["app"], one["window"]) for one in found} == {("app", "window")}
    assert "below it" not in str(found)


def test_a_window_that_another_program_embeds_is_walked() -> None:
    class FakeSocketBus(FakeAccessibilityBus):
        """A socket does not list the plug of the other program, and has it by its index."""

        def table_value(self, call: Call, element: FakeElement, arguments: Reader) -> bytes:
            assert (element, call.member) == (socket, "GetChildren")
            return struct.pack("<II", 0, 0)

        def _value(self, call: Call, element: FakeElement) -> bytes:
            if element is socket and call.member == "GetChildren":
                return self.table_value(call, element, Reader(call.body))
            if element is socket and call.member == "GetChildAtIndex":
                return self.reference(":1.2", plug)
            return super()._value(call, element)

    plug = FakeElement("filler", "plug", children=[FakeElement("button", "volume")])
    socket = FakeElement("filler", "socket", children=[plug])
    bus = FakeSocketBus({":1.1": window(socket), ":1.2": FakeElement("application", "plugin")})
    assert names(read(bus).applications[0]) == ["window", "socket", "plug", "volume"]


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize(("toolkit", "marked"), [("GAIL", ["File", "Edit", "New", "Quit"]), ("gtk", ["File", "Edit"])])
def test_the_items_of_an_open_menu_of_gtk_2_are_showing(everything: bool, toolkit: str, marked: list[str]) -> None:
    nowhere = (-(2**31), -(2**31), 10, 10)
    items = [FakeElement("menu item", name, states=("visible",)) for name in ("New", "Quit")]
    closed = [FakeElement("menu item", "Undo", states=("visible",), box=nowhere)]
    gone = FakeElement("menu item", "Hidden", states=())
    bar = [FakeElement("menu", "File", children=[*items, gone]), FakeElement("menu", "Edit", children=closed)]
    bus = FakeAccessibilityBus({":1.1": window(*bar)})
    bus.toolkit = toolkit
    (application,) = read(bus, everything=everything).applications
    below = [application]
    for element in below:
        below += element.children
    found = [one.name for one in below if "showing" in one.states and one.role.startswith("menu")]
    assert found == marked


def test_what_an_element_tells_is_in_osworlds_form() -> None:
    entry = FakeElement(
        "text", "Name", interfaces=("Component", "Text"), text="a <b> & c", attributes={"tool kit": "gtk"}
    )
    bar = FakeElement(
        "slider", "Size", interfaces=("Value", "Action"), actions=[("press", "Drücken", "does it", "<Alt>x")]
    )
    bar.values = {"CurrentValue": 3.0, "MinimumValue": 0.0, "MaximumValue": 10.0, "MinimumIncrement": 0.5}
    hidden = FakeElement("status bar", "hidden", states=(), interfaces=("Component", "Image"))
    bus = FakeAccessibilityBus({":1.1": window(entry, bar, hidden)})
    (application,) = read(bus, everything=True).applications
    prefixes = " ".join(f'xmlns:{prefix}="{address}"' for prefix, address in NAMESPACES.items())
    (root,) = ElementTree.fromstring(f"<desktop-frame {prefixes}>{xml(application)}</desktop-frame>")

    def told(tag: str) -> dict[str, str]:
        (element,) = root.iter(tag)
        short = {f"{{{address}}}": f"{prefix}:" for prefix, address in NAMESPACES.items()}
        return {
            short.get(key[: key.find("}") + 1], "") + key[key.find("}") + 1 :]: value for key, value in element.items()
        }

    assert [one.tag for one in root.iter()] == ["application", "frame", "text", "slider", "status-bar"]
    assert next(root.iter("text")).text == "a <b> & c"
    assert told("text")["attr:tool-kit"] == "gtk"
    assert (told("text")["cp:screencoord"], told("text")["cp:size"]) == ("(100, 200)", "(50, 20)")
    assert {key: value for key, value in told("slider").items() if key[:3] in ("val", "act")} == {
        "val:value": "3.0",
        "val:min": "0.0",
        "val:max": "10.0",
        "val:step": "0.5",
        "act:press_desc": "does it",
        "act:press_kb": "<Alt>x",
    }
    assert told("status-bar") == {"name": "hidden", "image": "true"}


def test_a_role_is_named_by_its_number_and_by_the_program_only_where_there_is_none() -> None:
    """Qt calls the cell of a tree "tree item", and its number is that of a table cell; the fake refuses to tell such a name."""
    shown = [FakeElement("table cell", "Qt"), FakeElement("x-knob", "Volume")]
    window = FakeElement("frame", "Preferences", children=shown)
    tree = read(FakeAccessibilityBus({":1.1": FakeElement("application", "vlc", children=[window])}))
    assert [one["role"] for one in flat(tree.applications[0])] == ["frame", "table cell", "x-knob"]


def test_a_silent_program_costs_its_own_subtree_only() -> None:
    bus = FakeAccessibilityBus({":1.1": window(FakeElement("label", "a")), ":1.2": window(), ":1.3": window()})
    bus.silent = {":1.2"}
    tree = read(bus)
    assert [names(one) for one in tree.applications] == [["window", "a"], ["window"]]
    assert tree.truncated


def test_the_registry_may_take_the_seconds_of_its_start() -> None:
    """On an emulated processor the first question of a session was answered after more than a second, and no tree came."""
    bus = FakeAccessibilityBus({":1.1": window(FakeElement("label", "a")), ":1.2": window()})
    bus.delays_s = {a11y_tree.ROOT[0]: 5.0, ":1.2": 5.0}
    tree = read(bus)
    assert [names(one) for one in tree.applications] == [["window", "a"]], "a program that is as slow is left out"
    assert tree.truncated
    bus.delays_s = {a11y_tree.ROOT[0]: 30.0}
    with pytest.raises(a11y_tree.BusSilent):
        read(bus)


def test_an_element_that_is_gone_costs_its_own_subtree_only() -> None:
    gone = FakeElement("panel", "gone", vanished=True, children=[FakeElement("label", "below")])
    bus = FakeAccessibilityBus({":1.1": window(FakeElement("label", "a"), gone, FakeElement("label", "z"))})
    tree = read(bus)
    assert names(tree.applications[0]) == ["window", "a", "z"]
    assert tree.truncated


def test_the_limits_of_elements_and_time_truncate(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = {":1.1": window(*(FakeElement("label", str(number)) for number in range(50)))}
    monkeypatch.setattr(a11y_tree, "MAX_ELEMENTS", 11)
    tree = read(FakeAccessibilityBus(programs))
    assert names(tree.applications[0]) == ["window", *map(str, range(10))]
    assert tree.truncated
    monkeypatch.setattr(a11y_tree, "LARGE", 20)
    tree = read(FakeAccessibilityBus(programs))
    assert names(tree.applications[0]) == ["window", *map(str, range(10))]
    assert tree.truncated
    with pytest.raises(a11y_tree.BusSilent):
        read(FakeAccessibilityBus(programs), limit_s=-1.0)


def test_strings_of_other_programs_survive_packing() -> None:
    reader = Reader(pack_strings("é", "", "日本"))
    assert [reader.string() for _ in range(3)] == ["é", "", "日本"]


class FakeRecordingBus(FakeAccessibilityBus):
    """Remembers the calls, and counts how often it was waited for."""

    def __init__(self, programs: dict[str, FakeElement]) -> None:
        super().__init__(programs)
        self.calls: list[Call] = []
        self.round_trips = 0

    def ask(self, calls: Sequence[Call], silence_s: float, deadline_s: float) -> list[Reply]:
        self.calls += calls
        self.round_trips += 1
        return super().ask(calls, silence_s, deadline_s)


@pytest.mark.parametrize("everything", [False, True])
def test_all_elements_of_a_level_cost_the_round_trips_of_one(everything: bool) -> None:
    """A round trip costs 0.3 ms; one for each question made the tree of a spreadsheet take seconds."""

    def round_trips(count: int) -> int:
        cells = [FakeElement("table cell", str(at), interfaces=("Component", "Text"), text="x") for at in range(count)]
        bus = FakeRecordingBus({":1.1": window(*cells)})
        assert len(names(read(bus, everything=everything).applications[0])) == count + 1
        return bus.round_trips

    assert round_trips(50) == round_trips(1)


@pytest.mark.parametrize("everything", [False, True])
def test_the_walk_does_not_start_the_cache_of_a_program(everything: bool) -> None:
    """A client that asks for a program's own address, as libatspi does, starts its cache; LibreOffice 7.4 crashes when that is read."""
    field = FakeElement("text", "Title", interfaces=("Component", "Text"), text="typed")
    slider = dict.fromkeys(("CurrentValue", "MinimumValue", "MaximumValue", "MinimumIncrement"), 1.0)
    bar = FakeElement("slider", "Zoom", interfaces=("Component", "Value"), values=slider)
    button = FakeElement("push button", "OK", interfaces=("Component", "Action"), actions=[("press", "press", "", "")])
    window = FakeElement("frame", "w", children=[field, bar, button])
    bus = FakeRecordingBus({":1.1": FakeElement("application", "soffice", children=[window])})
    assert not read(bus, everything=everything).truncated
    asked = {(call.interface.removeprefix(a11y_tree.PREFIX), call.member) for call in bus.calls}
    assert ("Accessible", "GetChildren") in asked
    assert "Cache" not in {interface for interface, _ in asked}
    assert not {"GetApplicationBusAddress", "GetItems", "RegisterEvent", "Embed"} & {member for _, member in asked}
