"""The judge of chaos must be able to say no: good histories pass, each kind of broken one is named."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.chaos.history import Use, conflicts, overdue, violations

Event = dict[str, Any]


def history(*lines: str) -> list[Event]:
    """Events from lines `kind desktop lease fencing_token`, `-` for none."""
    events = []
    for number, line in enumerate(lines, start=1):
        kind, desktop, lease, fencing_token = line.split()
        names = {"desktop_id": desktop, "lease_id": lease}
        event: Event = {
            "id": number,
            "kind": kind,
            **{key: None if name == "-" else name for key, name in names.items()},
        }
        events.append({**event, "fencing_token": None if fencing_token == "-" else int(fencing_token)})
    return events


GOOD = [
    "desktop_creating d1 - -",
    "lease_granted d1 a 1",
    "lease_granted d2 b 1",
    "desktop_reset d1 a 2",
    "desktop_failed d1 a 2",
    "desktop_reset d1 a 3",
    "lease_released d1 a 4",
    "lease_granted d1 c 5",
    "lease_moved d3 b 2",
    "desktop_gone d2 - -",
    "desktop_reset d3 b 2",
    "lease_expired d1 c 6",
    "lease_released d3 b 3",
    "farm_stopped - - -",
]


def test_a_good_history_has_no_breach() -> None:
    assert violations(history(*GOOD)) == []


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        (["lease_granted d1 a 1", "lease_granted d1 b 2"], "belongs to a, b gets it"),
        (["lease_granted d1 a 1", "lease_granted d2 b 1", "lease_moved d1 b 2"], "belongs to a, b gets it"),
        (["lease_granted d1 a 1", "lease_granted d2 b 1", "desktop_reset d1 b 2"], "belongs to a, b gets it"),
        (["lease_granted d1 a 1", "lease_granted d2 a 1"], "was granted before"),
        (["lease_granted d1 a 2", "lease_released d1 a 3", "lease_granted d1 b 3"], "went from 3 to 3"),
        (["lease_granted d1 a 5", "desktop_reset d1 a 4"], "went from 5 to 4"),
        (["lease_granted d1 a 5", "lease_expired d1 a 4"], "went from 5 to 4"),
        (["lease_granted d1 a 1", "lease_released d1 a 2", "lease_expired d1 a 2"], "ended before"),
        (["lease_granted d1 a 1", "lease_released d1 a 2", "desktop_reset d1 a 3"], "has ended"),
        (["desktop_reset d1 a 3"], "was never granted"),
        (["lease_released d1 a 3"], "was never granted"),
        (["desktop_gone d1 - -", "lease_granted d1 a 1"], "is gone"),
        (["lease_granted d1 a 1", "lease_granted d2 b 1", "lease_released d1 b 2"], "belongs to a, not to b"),
        (["lease_granted - a 1"], "has no desktop"),
        (["lease_granted d1 a -"], "has no fencing_token"),
    ],
)
def test_each_broken_history_is_named(planted: list[str], said: str) -> None:
    assert any(said in breach for breach in violations(history(*planted), all_ended=False)), planted


def test_a_lease_without_an_end_is_a_breach_only_at_the_end() -> None:
    running = history("lease_granted d1 a 1")
    assert violations(running) == ["lease a never ended"]
    assert violations(running, all_ended=False) == []


@pytest.mark.parametrize("dropped", [line for line in GOOD if line.split()[0] in ("lease_released", "lease_expired")])
def test_a_good_history_that_lost_an_end_is_broken(dropped: str) -> None:
    assert violations(history(*(line for line in GOOD if line != dropped)))


def test_calls_of_one_lease_after_the_other_are_no_conflict() -> None:
    assert (
        conflicts([Use("a", "d1", 0.0, 1.0), Use("a", "d1", 1.0, 2.0), Use("b", "d1", 2.5, 3.0), Use("b", "d1", 4, 5)])
        == []
    )


def test_calls_on_different_desktops_are_no_conflict() -> None:
    assert conflicts([Use("a", "d1", 0.0, 1.0), Use("b", "d2", 0.5, 1.0), Use("a", "d1", 2.0, 3.0)]) == []


def test_a_call_that_began_before_the_other_lease_was_answered_is_no_conflict() -> None:
    assert conflicts([Use("a", "d1", 0.0, 5.0), Use("b", "d1", 2.0, 3.0)]) == []


def test_two_leases_answered_in_turns_are_a_conflict() -> None:
    uses = [Use("a", "d1", 0.0, 1.0), Use("b", "d1", 2.0, 3.0), Use("a", "d1", 4.0, 5.0), Use("b", "d1", 6.0, 7.0)]
    assert conflicts(uses) == ["desktop d1 answered a and b in turns"]


def test_an_old_owner_answered_again_is_a_conflict() -> None:
    uses = [Use("a", "d1", 0.0, 1.0), Use("b", "d1", 2.0, 3.0), Use("b", "d1", 3.0, 3.5), Use("a", "d1", 4.0, 5.0)]
    assert conflicts(uses) == ["desktop d1 answered a and b in turns"]


@pytest.mark.parametrize(
    ("answered_s", "outages", "fine"),
    [
        (107.9, [], True),
        (108.1, [], False),
        (116.9, [(104.0, 109.0)], True),
        (117.1, [(104.0, 109.0)], False),
        (109.5, [(108.5, 109.0)], False),
        (122.0, [(104.0, 109.0), (112.0, 115.0)], True),
        (112.0, [(90.0, 91.0)], False),
    ],
)
def test_only_a_restart_gives_a_lease_that_nobody_renews_more_time(
    answered_s: float, outages: list[tuple[float, float]], fine: bool
) -> None:
    found = overdue("lease_1", 100.0, answered_s, 6.0, 2.0, outages)
    assert (found is None) is fine
    assert fine or f"answered {answered_s - 100:.1f} s after its last word" in str(found)
