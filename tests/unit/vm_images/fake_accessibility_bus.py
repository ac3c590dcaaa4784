"""A fake accessibility bus: programs are trees of `FakeElement`, and every question is counted."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from dart_guest.a11y_roles import EXTENDED, ROLES
from dart_guest.a11y_tree import ACCESSIBLE, ACTION, COMPONENT, NO_OBJECT, PREFIX, ROOT, STATES, TABLE, TEXT, VALUE
from dart_guest.dbus_client import PROPERTIES, BusConnection, BusSilent, Call, Reader, Reply, pack_strings

SHOWN = ("visible", "showing")


@dataclass
class FakeElement:
    """One element of a fake program; `vanished` answers every question with an error."""

    role: str
    name: str = ""
    states: Sequence[str] = SHOWN
    interfaces: Sequence[str] = ("Component",)
    box: tuple[int, int, int, int] = (100, 200, 50, 20)
    text: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    actions: Sequence[tuple[str, str, str, str]] = ()
    """(name, localized name, description, keys)."""
    children: list[FakeElement] = field(default_factory=list)
    vanished: bool = False

    def child_count(self) -> int:
        return len(self.children)


class FakeAccessibilityBus(BusConnection):
    """Answers for programs by their bus names, after `delays_s`; one whose name is in `silent` never answers."""

    def __init__(self, programs: dict[str, FakeElement]) -> None:
        self.programs = programs
        self.toolkit = "gtk"
        self.silent: set[str] = set()
        self.delays_s: dict[str, float] = {}
        self.asked = 0
        self._elements: dict[tuple[str, str], FakeElement] = {}
        self._references: dict[int, tuple[str, str]] = {}

    def reference(self, program: str, element: FakeElement | None) -> bytes:
        if element is None:
            return pack_strings(program, NO_OBJECT)
        if id(element) not in self._references:
            self._references[id(element)] = (program, f"/{len(self._elements)}")
            self._elements[self._references[id(element)]] = element
        return pack_strings(*self._references[id(element)])

    def ask(self, calls: Sequence[Call], silence_s: float, deadline_s: float) -> list[Reply]:
        if time.monotonic() > deadline_s or any(call.destination in self.silent for call in calls):
            raise BusSilent("silent")
        if any(self.delays_s.get(call.destination, 0.0) > silence_s for call in calls):
            raise BusSilent("slow")
        self.asked += len(calls)
        return [self._reply(call) for call in calls]

    def _reply(self, call: Call) -> Reply:
        if (call.destination, call.path) == ROOT:
            return Reply(False, _array(8, [self.reference(name, root) for name, root in self.programs.items()]))
        element = self._elements[call.destination, call.path]
        if element.vanished:
            return Reply(True, pack_strings("org.freedesktop.DBus.Error.UnknownObject"))
        return Reply(False, self._value(call, element))

    def _value(self, call: Call, element: FakeElement) -> bytes:
        arguments = Reader(call.body)
        if call.interface == PROPERTIES:
            return self._property(element, arguments.string(), arguments.string())
        match call.interface, call.member:
            case (_, "GetState") if call.interface == ACCESSIBLE:
                bits = sum(1 << STATES.index(state) for state in element.states)
                return struct.pack("<III", 8, bits & 0xFFFF_FFFF, bits >> 32)
            case (_, "GetInterfaces") if call.interface == ACCESSIBLE:
                return _array(4, [pack_strings(PREFIX + name) for name in element.interfaces])
            case (_, "GetRole") if call.interface == ACCESSIBLE:
                return struct.pack("<I", ROLES.index(element.role) if element.role in ROLES else EXTENDED)
            case (_, "GetRoleName") if call.interface == ACCESSIBLE:
                assert element.role not in ROLES, "the number says it, and a program's own name may be another"
                return pack_strings(element.role)
            case (_, "GetAttributes") if call.interface == ACCESSIBLE:
                return _array(8, [pack_strings(*pair) for pair in element.attributes.items()])
            case (_, "GetChildren") if call.interface == ACCESSIBLE:
                return _array(8, [self.reference(call.destination, child) for child in element.children])
            case (_, "GetChildAtIndex") if call.interface == ACCESSIBLE:
                return self.reference(call.destination, element.children[arguments.signed()])
            case (_, "GetExtents") if call.interface == COMPONENT:
                return struct.pack("<iiii", *element.box)
            case (_, "GetText") if call.interface == TEXT:
                return pack_strings(element.text[arguments.signed() : arguments.signed()])
            case (_, "GetActions") if call.interface == ACTION:
                return _array(8, [pack_strings(*told) for _, *told in element.actions])
            case (_, "GetName") if call.interface == ACTION:
                return pack_strings(element.actions[arguments.signed()][0])
        return self.table_value(call, element, arguments)

    def table_value(self, call: Call, element: FakeElement, arguments: Reader) -> bytes:
        """What a table alone answers; for a subclass to say."""
        raise AssertionError(f"nobody should ask a {element.role} for {call.interface}.{call.member}")

    def _property(self, element: FakeElement, interface: str, name: str) -> bytes:
        if (interface, name) == (ACCESSIBLE, "ChildCount"):
            return _variant("i", struct.pack("<i", element.child_count()))
        if (interface, name) == (ACCESSIBLE, "Name"):
            return _variant("s", pack_strings(element.name))
        if (interface, name) == (TEXT, "CharacterCount"):
            return _variant("i", struct.pack("<i", len(element.text)))
        if (interface, name) == (PREFIX + "Application", "ToolkitName"):
            return _variant("s", pack_strings(self.toolkit))
        if interface == VALUE:
            return _variant("d", struct.pack("<d", element.values[name]))
        assert interface == TABLE, (interface, name)
        return _variant("i", struct.pack("<i", int(element.values[name])))


def _variant(kind: str, value: bytes) -> bytes:
    head = bytes((1,)) + kind.encode() + b"\0"
    return head + bytes(-len(head) % (8 if kind == "d" else 4)) + value


def _array(alignment: int, values: list[bytes]) -> bytes:
    body = bytearray()
    for value in values:
        body += bytes(-len(body) % alignment) + value
    return struct.pack("<I", len(body)) + bytes(-4 % alignment) + bytes(body)
