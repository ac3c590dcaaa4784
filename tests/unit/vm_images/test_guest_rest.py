"""When a program is at rest, told from a /proc of files, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
from dart_guest.rest import await_rest


class Proc:
    """A fake: writes process 7 as it is at a time; `busy_s` are the times until which it works or waits for a processor."""

    def __init__(self, place: Path, *busy_s: tuple[float, float]) -> None:
        self.now_s = 0.0
        self.place = place
        self.busy_s = busy_s
        self.gone_at_s = 1e9
        self.show()

    def show(self) -> None:
        home = self.place / "7"
        if self.now_s >= self.gone_at_s:
            for file in home.iterdir():
                file.unlink()
            home.rmdir()
            self.gone_at_s = 1e9
            return
        home.mkdir(exist_ok=True)
        busy = any(begin <= self.now_s < end for begin, end in self.busy_s)
        used = sum(min(self.now_s, end) - begin for begin, end in self.busy_s if self.now_s > begin)
        (home / "stat").write_text(f"7 (a (b) c) {'R' if busy else 'S'} 1 2 3")
        (home / "schedstat").write_text(f"{used:.6f} 0 1\n")

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.show()

    def rest(self, still_s: float = 0.03, limit_s: float = 2.0) -> tuple[bool, float]:
        rested = await_rest(7, still_s, limit_s, self.sleep, lambda: self.now_s, self.place)
        return rested, self.now_s


@pytest.mark.parametrize(
    ("busy_s", "expected_s"),
    [((), 0.03), (((0.0, 0.5),), 0.53), (((0.01, 0.011),), 0.042), (((0.0, 0.1), (0.12, 0.2)), 0.23)],
    ids=["idle", "works", "worked between two looks", "wakes up once more"],
)
def test_rest_is_a_while_without_work(
    tmp_path: Path, busy_s: tuple[tuple[float, float], ...], expected_s: float
) -> None:
    rested, after_s = Proc(tmp_path, *busy_s).rest()
    assert rested
    assert after_s == pytest.approx(expected_s, abs=0.009)


def test_a_program_that_never_rests_is_waited_for_up_to_the_limit(tmp_path: Path) -> None:
    rested, after_s = Proc(tmp_path, (0.0, 9.0)).rest(limit_s=0.5)
    assert not rested
    assert after_s == pytest.approx(0.5, abs=0.005)


def test_a_program_that_is_gone_rests(tmp_path: Path) -> None:
    proc = Proc(tmp_path, (0.0, 9.0))
    proc.gone_at_s = 0.1
    assert proc.rest()[0]
    assert proc.now_s < 0.2
