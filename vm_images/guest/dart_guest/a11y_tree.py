"""Reads the AT-SPI tree of every program into elements.

Role: `read_tree` asks the programs on the accessibility bus; `Element` is what each told about itself.
Rule: the elements of one level are asked together, in batches (`dbus_client`), and nothing is remembered between two walks. A program that
does not answer costs its own subtree only. A limit or a failure sets `truncated`.
Source of the interfaces: the XML of at-spi2-core 2.46, `xml/*.xml`.
Non-goals: the forms of the answer; acting through AT-SPI.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from dart_guest.a11y_roles import TABLE_CELL, role_name
from dart_guest.dbus_client import (
    BusConnection,
    BusSilent,
    Call,
    Reader,
    Reply,
    pack_ints,
    read_property,
)

MAX_ELEMENTS = 4000
MAX_DEPTH = 60
MAX_TEXT = 20_000
MAX_ACTIONS = 20
SILENCE_S = 0.8
"""How long a program may not answer anything before the walk goes on without it."""
REGISTRY_SILENCE_S = 10.0
"""The same for the registry of programs. The first question starts it, which takes over a second on an emulated processor; there is no tree
without it."""
LARGE = 1000
"""Children above which only the showing cells of a table are looked for, and other children are asked for one by one."""
CORNER_INSETS = (2, 20, 40)
"""Pixels from a table's corner to its first cell: there may be headers."""
CELLS_AT_ONCE = 64
"""Rows or columns that are looked at together for the end of what is showing; so many hidden ones end it too."""
SCREEN = 0
"""The coordinate type of AT-SPI that counts from the corner of the screen."""
PREFIX = "org.a11y.atspi."
ACCESSIBLE, COMPONENT, TEXT, VALUE, TABLE, ACTION = (
    PREFIX + name for name in ("Accessible", "Component", "Text", "Value", "Table", "Action")
)
ROOT = ("org.a11y.atspi.Registry", "/org/a11y/atspi/accessible/root")
NO_OBJECT = "/org/a11y/atspi/null"
STATES = (
    "invalid",
    "active",
    "armed",
    "busy",
    "checked",
    "collapsed",
    "defunct",
    "editable",
    "enabled",
    "expandable",
    "expanded",
    "focusable",
    "focused",
    "has-tooltip",
    "horizontal",
    "iconified",
    "modal",
    "multi-line",
    "multiselectable",
    "opaque",
    "pressed",
    "resizable",
    "selectable",
    "selected",
    "sensitive",
    "showing",
    "single-line",
    "stale",
    "transient",
    "vertical",
    "visible",
    "manages-descendants",
    "indeterminate",
    "required",
    "truncated",
    "animated",
    "invalid-entry",
    "supports-autocompletion",
    "selectable-text",
    "is-default",
    "visited",
    "checkable",
    "has-popup",
    "read-only",
)
"""Names of AT-SPI's states by their bit (`AtspiStateType`)."""
OFF_SCREEN_PX = -10_000
"""Left of this is what has no place: ATK gives the smallest number there is."""
UNMARKED_MENUS = "GAIL"
"""The toolkit of GTK 2, which does not mark the items of an open menu as showing; only those of open menus have a place."""

Reference = tuple[str, str]
"""(bus name, object path) of an element."""
Questions = Generator[list[Call], list[Reply], None]


class Unanswered(Exception):
    """An element told nothing: it is gone, or its program does not know the answer."""


@dataclass(slots=True)
class Element:
    """One element; its box is (x, y, width, height) in screen pixels, zeros when it has no place. `told` once it has answered."""

    reference: Reference
    depth: int
    in_menu: bool = False
    told: bool = False
    role: str = ""
    name: str = ""
    text: str = ""
    states: list[str] = field(default_factory=list)
    interfaces: list[str] = field(default_factory=list)
    box: tuple[int, int, int, int] = (0, 0, 0, 0)
    attributes: dict[str, str] = field(default_factory=dict)
    values: tuple[float, ...] = ()
    """Of a slider or number: current, minimum, maximum, smallest step."""
    actions: list[tuple[str, str, str]] = field(default_factory=list)
    """(name, description, keys)."""
    children: list[Element] = field(default_factory=list)


@dataclass(slots=True)
class Tree:
    """The applications with what is below them."""

    applications: list[Element]
    truncated: bool


def read_tree(bus: BusConnection, deadline_s: float, *, everything: bool) -> Tree:
    """Walk every program on the bus.

    Args:
        bus: The accessibility bus.
        deadline_s: When the walk ends at the latest, in seconds of the monotonic clock.
        everything: Whether hidden elements, attributes, values and actions are read too.

    Raises:
        BusError: If the registry of programs does not answer.
    """
    walk = _Walk(bus, deadline_s, everything=everything)
    (listed,) = bus.ask([Call(*ROOT, ACCESSIBLE, "GetChildren")], REGISTRY_SILENCE_S, deadline_s)
    applications = [Element(reference, 0) for reference in _references(listed)]
    for application in applications:
        walk.read(application)
    return Tree([one for one in applications if one.told], walk.truncated)


class _Walk:
    """One pass; `count` elements were found so far."""

    def __init__(self, bus: BusConnection, deadline_s: float, *, everything: bool) -> None:
        self._bus = bus
        self._deadline_s = deadline_s
        self._everything = everything
        self.truncated = False
        self._count = 0
        self._toolkit = ""

    def read(self, application: Element) -> None:
        """Read a program's subtree, as far as it answers."""
        under_way = [(application, self._questions(application))]
        try:
            asked = [read_property(*application.reference, PREFIX + "Application", "ToolkitName")]
            (toolkit,) = self._bus.ask(asked, SILENCE_S, self._deadline_s)
            self._toolkit = "" if toolkit.failed else str(toolkit.reader().variant())
            batches = [next(questions) for _, questions in under_way]
            while under_way:
                replies = iter(
                    self._bus.ask([call for calls in batches for call in calls], SILENCE_S, self._deadline_s)
                )
                going, found, batches_next = [], [], []
                for (element, questions), calls in zip(under_way, batches, strict=True):
                    try:
                        batches_next.append(questions.send([next(replies) for _ in calls]))
                        going.append((element, questions))
                    except StopIteration:
                        found += element.children
                    except Unanswered:
                        self.truncated = True
                for child in found:
                    questions = self._questions(child)
                    batches_next.append(next(questions))
                    going.append((child, questions))
                under_way, batches = going, batches_next
        except BusSilent:
            self.truncated = True

    def _questions(self, element: Element) -> Questions:
        """Ask an element for itself and its children, one batch of calls after another."""
        asked = [_call(element, ACCESSIBLE, "GetState"), _call(element, ACCESSIBLE, "GetInterfaces")]
        states, interfaces, count = yield [*asked, _get(element, ACCESSIBLE, "ChildCount")]
        element.states = _state_names(_read(states))
        element.interfaces = [name.removeprefix(PREFIX) for name in _strings(_read(interfaces))]
        if "showing" not in element.states and self._toolkit == UNMARKED_MENUS and element.in_menu:
            yield from self._mark_open(element)
        if not (self._everything or element.depth == 0 or "showing" in element.states):
            return
        readers: list[tuple[Call, Callable[[Reader], None]]] = [*self._properties(element)]
        replies = yield [call for call, _ in readers]
        for (_, take), reply in zip(readers, replies, strict=True):
            take(_read(reply))
        if not element.role:
            (own_name,) = yield [_call(element, ACCESSIBLE, "GetRoleName")]
            element.role = _read(own_name).string()
        if "Text" in element.interfaces:
            yield from self._text(element)
        if element.actions:
            names = yield [_call(element, ACTION, "GetName", "i", index) for index in range(len(element.actions))]
            told = zip(names, element.actions, strict=True)
            element.actions = [(_read(name).string(), description, keys) for name, (_, description, keys) in told]
        element.told = True
        if element.depth < MAX_DEPTH:
            yield from self._children(element, int(_read(count).variant()))

    def _properties(self, element: Element) -> Generator[tuple[Call, Callable[[Reader], None]]]:
        def role(reader: Reader) -> None:
            element.role = role_name(reader.unsigned())

        def name(reader: Reader) -> None:
            element.name = str(reader.variant())

        def box(reader: Reader) -> None:
            element.box = (reader.signed(), reader.signed(), reader.signed(), reader.signed())

        def attributes(reader: Reader) -> None:
            element.attributes = _pairs(reader)

        def value(reader: Reader) -> None:
            element.values += (float(reader.variant()),)

        def actions(reader: Reader) -> None:
            element.actions = _triples(reader)[:MAX_ACTIONS]

        yield _call(element, ACCESSIBLE, "GetRole"), role
        yield _get(element, ACCESSIBLE, "Name"), name
        if "Component" in element.interfaces:
            yield _call(element, COMPONENT, "GetExtents", "u", SCREEN), box
        if self._everything:
            yield _call(element, ACCESSIBLE, "GetAttributes"), attributes
            if "Value" in element.interfaces:
                for one in ("CurrentValue", "MinimumValue", "MaximumValue", "MinimumIncrement"):
                    yield _get(element, VALUE, one), value
            if "Action" in element.interfaces:
                yield _call(element, ACTION, "GetActions"), actions

    def _mark_open(self, item: Element) -> Questions:
        """Mark an item of a menu as showing where it has a place on the screen."""
        if "visible" in item.states and "Component" in item.interfaces:
            (extents,) = yield [_call(item, COMPONENT, "GetExtents", "u", SCREEN)]
            if _read(extents).signed() > OFF_SCREEN_PX:
                item.states = [state for state in STATES if state in {*item.states, "showing"}]

    def _text(self, element: Element) -> Questions:
        (length,) = yield [_get(element, TEXT, "CharacterCount")]
        count = int(_read(length).variant())
        if count > 0:
            (text,) = yield [_call(element, TEXT, "GetText", "ii", 0, min(count, MAX_TEXT))]
            element.text = _read(text).string()

    def _children(self, element: Element, count: int) -> Questions:
        if count <= 0:
            return
        if count > LARGE and "Table" in element.interfaces:
            yield from self._cells(element)
            return
        found: list[Reference] = []
        if count <= LARGE:
            (listed,) = yield [_call(element, ACCESSIBLE, "GetChildren")]
            found = _references(listed)
        if len(found) < count:  # also a socket: GetChildren leaves out the plug of another program that it holds
            wanted = range(min(count, MAX_ELEMENTS - self._count))
            self.truncated = self.truncated or len(wanted) < count
            replies = yield [_call(element, ACCESSIBLE, "GetChildAtIndex", "i", index) for index in wanted]
            found = [_reference(_read(reply)) for reply in replies]
        self._add(element, found)

    def _cells(self, table: Element) -> Questions:
        """Find the showing cells of a table (a spreadsheet has a thousand million), row by row."""
        x, y, _, _ = table.box
        replies = yield [
            _call(table, COMPONENT, "GetAccessibleAtPoint", "iiu", x + inset, y + inset, SCREEN)
            for inset in CORNER_INSETS
        ]
        corners = [reference for reply in replies if (reference := _reference(_read(reply)))[1] != NO_OBJECT]
        replies = yield [Call(*corner, ACCESSIBLE, "GetRole") for corner in corners]
        first = next(
            (one for one, reply in zip(corners, replies, strict=True) if _read(reply).unsigned() == TABLE_CELL), None
        )
        if first is None:
            return
        (place,) = yield [Call(*first, ACCESSIBLE, "GetIndexInParent")]
        index = _read(place).signed()
        top, left, rows, columns = yield [
            _call(table, TABLE, "GetRowAtIndex", "i", index),
            _call(table, TABLE, "GetColumnAtIndex", "i", index),
            _get(table, TABLE, "NRows"),
            _get(table, TABLE, "NColumns"),
        ]
        row, column = _read(top).signed(), _read(left).signed()
        bottom = yield from self._last_showing(table, row, int(_read(rows).variant()), lambda at: (at, column))
        right = yield from self._last_showing(table, column, int(_read(columns).variant()), lambda at: (row, at))
        places = [(at, one) for at in range(row, bottom) for one in range(column, right)]
        replies = yield [_call(table, TABLE, "GetAccessibleAt", "ii", *place) for place in places[:MAX_ELEMENTS]]
        self._add(table, [_reference(_read(reply)) for reply in replies])

    def _last_showing(
        self, table: Element, start: int, limit: int, place: Callable[[int], tuple[int, int]]
    ) -> Generator[list[Call], list[Reply], int]:
        """The row or column behind the last one that is showing; hidden ones may lie between."""
        end = start
        while end - start < MAX_ELEMENTS:
            ahead = range(end, min(end + CELLS_AT_ONCE, limit))
            replies = yield [_call(table, TABLE, "GetAccessibleAt", "ii", *place(at)) for at in ahead]
            found = [(at, _reference(_read(reply))) for at, reply in zip(ahead, replies, strict=True)]
            cells = [(at, reference) for at, reference in found if reference[1] != NO_OBJECT]
            replies = yield [Call(*reference, ACCESSIBLE, "GetState") for _, reference in cells]
            showing = [
                at for (at, _), reply in zip(cells, replies, strict=True) if "showing" in _state_names(_read(reply))
            ]
            if not showing:
                break
            end = showing[-1] + 1
        return end

    def _add(self, parent: Element, references: list[Reference]) -> None:
        """Take the children, as many as the limit allows."""
        real = [reference for reference in references if reference[1] != NO_OBJECT]
        taken = real[: MAX_ELEMENTS - self._count]
        self.truncated = self.truncated or len(taken) < len(real) or time.monotonic() > self._deadline_s
        self._count += len(taken)
        in_menu = parent.role == "menu"
        parent.children = [Element(reference, parent.depth + 1, in_menu) for reference in taken]


def _call(element: Element, interface: str, member: str, signature: str = "", *numbers: int) -> Call:
    return Call(*element.reference, interface, member, signature, pack_ints(*numbers))


def _get(element: Element, interface: str, name: str) -> Call:
    return read_property(*element.reference, interface, name)


def _read(reply: Reply) -> Reader:
    """The reader of a reply. Raises `Unanswered` when it is an error."""
    if reply.failed:
        raise Unanswered
    return reply.reader()


def _state_names(reader: Reader) -> list[str]:
    """Names of the bits in an array of two numbers of 32 bits."""
    reader.array_end(4)
    bits = reader.unsigned() | reader.unsigned() << 32
    return [name for bit, name in enumerate(STATES) if bits >> bit & 1]


def _reference(reader: Reader) -> Reference:
    return (reader.string(), reader.string())


def _references(reply: Reply) -> list[Reference]:
    reader = _read(reply)
    end, found = reader.array_end(8), []
    while reader.position < end:
        reader.align(8)
        found.append(_reference(reader))
    return found


def _strings(reader: Reader) -> list[str]:
    end, found = reader.array_end(4), []
    while reader.position < end:
        found.append(reader.string())
    return found


def _pairs(reader: Reader) -> dict[str, str]:
    end, found = reader.array_end(8), {}
    while reader.position < end:
        reader.align(8)
        key = reader.string()
        found[key] = reader.string()
    return found


def _triples(reader: Reader) -> list[tuple[str, str, str]]:
    end, found = reader.array_end(8), []
    while reader.position < end:
        reader.align(8)
        found.append((reader.string(), reader.string(), reader.string()))
    return found
