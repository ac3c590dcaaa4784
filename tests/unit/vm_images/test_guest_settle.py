"""The settling rule, in virtual time."""

import pytest
from dart_guest.events import Settle
from dart_guest.settle import wait_until_settled


class Screen:
    """A fake: draws and has read the input at set times (ms), and owns the clock."""

    def __init__(self, *draws_ms: float, read_ms: float = 0.0) -> None:
        self.now_ms = 0.0
        self.read_ms = read_ms
        self.draws_ms = sorted(draws_ms)

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def input_read(self) -> bool:
        return self.now_ms >= self.read_ms

    def wait_for_damage(self, timeout_s: float) -> bool:
        until_ms = self.now_ms + timeout_s * 1000
        if not self.input_read():
            until_ms = min(until_ms, self.read_ms)
        if self.draws_ms and self.draws_ms[0] <= until_ms:
            self.now_ms = max(self.now_ms, self.draws_ms.pop(0))
            return True
        self.now_ms = until_ms
        return False


@pytest.mark.parametrize(
    ("draws_ms", "settle", "expected"),
    [
        ((), Settle(60, 1500), (True, 60)),
        ((10, 50), Settle(60, 1500), (True, 110)),
        ((10, 80), Settle(60, 1500), (True, 70)),
        (tuple(range(0, 5000, 20)), Settle(60, 1500), (False, 1500)),
        ((), Settle(60, 40), (False, 40)),
        ((), Settle(0, 1500), (True, 0)),
        ((), Settle(60, 1500, min_ms=300), (True, 300)),
        ((280,), Settle(60, 1500, min_ms=300), (True, 340)),
    ],
    ids=["nothing drawn", "drawn twice", "late drawing is not waited for", "never quiet", "cap below quiet", "no quiet asked",
         "minimum", "drawn before the minimum"],
)  # fmt: skip
def test_settling(draws_ms: tuple[float, ...], settle: Settle, expected: tuple[bool, float]) -> None:
    screen = Screen(*draws_ms)
    settled, waited_ms = wait_until_settled(screen, settle, screen.monotonic)
    assert (settled, pytest.approx(waited_ms)) == expected


@pytest.mark.parametrize(
    ("read_ms", "draws_ms", "expected"),
    [
        (300.0, (), (True, 360)),
        (300.0, (310,), (True, 370)),
        (300.0, (10,), (True, 360)),
        (9999.0, (), (False, 1500)),
    ],
    ids=["a busy program", "draws when it has read", "drawn before it has read", "never reads"],
)
def test_quiet_counts_from_when_the_input_was_read(
    read_ms: float, draws_ms: tuple[float, ...], expected: tuple[bool, float]
) -> None:
    screen = Screen(*draws_ms, read_ms=read_ms)
    settled, waited_ms = wait_until_settled(screen, Settle(60, 1500), screen.monotonic)
    assert (settled, pytest.approx(waited_ms)) == expected


class Picture:
    """A fake: taking costs time on the screen's clock; remembers when it was taken and whether it still counts."""

    def __init__(self, screen: Screen, cost_ms: float) -> None:
        self.screen = screen
        self.cost_ms = cost_ms
        self.taken_ms: list[float] = []
        self.current = False

    def cost_s(self) -> float:
        return self.cost_ms / 1000

    def take(self) -> None:
        self.taken_ms.append(self.screen.now_ms)
        self.screen.now_ms += self.cost_ms
        self.current = True

    def spoil(self) -> None:
        self.current = False


@pytest.mark.parametrize(
    ("draws_ms", "read_ms", "cost_ms", "settled_ms", "taken_ms", "current"),
    [
        ((), 0.0, 10.0, 60, [30], True),
        ((20,), 5.0, 10.0, 80, [50], True),
        ((20, 55), 5.0, 10.0, 120, [50, 90], True),
        ((20, 79), 5.0, 10.0, 139, [50, 109], True),
        ((20,), 5.0, 30.0, 80, [35], True),
        ((20,), 5.0, 37.0, 80, [], False),
        ((), 9999.0, 10.0, 1500, [], False),
        (tuple(range(0, 5000, 20)), 0.0, 10.0, 1500, [], False),
    ],
    ids=["nothing drawn", "drawn once", "drawn while it is taken", "drawn after it was taken", "dear", "too dear", "input never read",
         "never quiet"],
)  # fmt: skip
def test_the_picture_is_taken_within_the_quiet_time_and_again_when_something_is_drawn(
    draws_ms: tuple[float, ...], read_ms: float, cost_ms: float, settled_ms: float, taken_ms: list[float], current: bool
) -> None:
    screen = Screen(*draws_ms, read_ms=read_ms)
    picture = Picture(screen, cost_ms)
    _, waited_ms = wait_until_settled(screen, Settle(60, 1500), screen.monotonic, picture)
    assert waited_ms == pytest.approx(settled_ms)
    assert picture.taken_ms == pytest.approx(taken_ms)
    assert picture.current is current


def test_what_is_drawn_while_a_picture_outlasts_the_quiet_time_spoils_it() -> None:
    screen = Screen(70)
    picture = Picture(screen, 60.0)
    picture.cost_s = lambda: 0.01  # type: ignore[method-assign]
    settled, waited_ms = wait_until_settled(screen, Settle(60, 1500), screen.monotonic, picture)
    assert settled
    assert picture.taken_ms == pytest.approx([30, 120])
    assert waited_ms == pytest.approx(180)
