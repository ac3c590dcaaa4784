"""A hundred thousand model outputs through every action format: none raises, none clicks outside the screen, none takes long."""

from __future__ import annotations

import statistics
import time
from collections import Counter

import pytest
from action_format_cases import point_map
from hostile_answers import check_reading, hostile_answers

from dart_envs.action_formats import FORMATS, make_format

ANSWERS = 100_000
SEED = 20261125
MEDIAN_S = 0.005
LONGEST_S = 2.0
"""Of process time, on a host that does other things too."""


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_hostile_outputs_are_read_without_an_exception() -> None:
    formats = {name: make_format(name) for name in FORMATS}
    times_s: list[float] = []
    results: Counter[str] = Counter()
    for name, screen_wh, pointer, answer in hostile_answers(ANSWERS, SEED):
        points = point_map(formats[name], screen_wh)
        started_s = time.process_time()
        try:
            parsed = formats[name].parse(answer, points, pointer)
        except Exception as error:
            raise AssertionError(f"{name} raised on {answer!r}") from error
        times_s.append(time.process_time() - started_s)
        fault = check_reading(parsed, screen_wh)
        results["performed" if fault is None else fault.value] += 1
    print(
        f"{ANSWERS} outputs, {len(FORMATS)} formats: {dict(results.most_common())}; median {statistics.median(times_s) * 1e6:.0f} us, "
        f"longest {max(times_s) * 1e3:.1f} ms"
    )
    assert statistics.median(times_s) <= MEDIAN_S
    assert max(times_s) <= LONGEST_S
