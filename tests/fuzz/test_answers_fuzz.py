"""A hundred thousand model outputs through every reader: none raises, none clicks outside the screen, none takes long."""

from __future__ import annotations

import statistics
import time
from collections import Counter

import pytest
from hostile_answers import READERS, check_reading, hostile_answers

from dart_agent.prompts.builder import preset

ANSWERS = 100_000
"""For each reader."""
CHUNKS = 4
SEED = 20261125
MEDIAN_S = 0.005
LONGEST_S = 2.0
"""Of process time, on a host that does other things too."""


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("reader", READERS)
def test_hostile_outputs_are_read_without_an_exception(reader: str, chunk: int) -> None:
    spec, count = preset(reader), ANSWERS // CHUNKS
    times_s: list[float] = []
    results: Counter[str] = Counter()
    for answer in hostile_answers(reader, count, SEED + chunk):
        started_s = time.process_time()
        try:
            parsed = spec.parse(answer.text, answer.points, answer.pointer)
        except Exception as error:
            raise AssertionError(f"{reader} raised on {answer.text!r}") from error
        times_s.append(time.process_time() - started_s)
        fault = check_reading(parsed, answer.points.screen_wh)
        results["performed" if fault is None else fault.value] += 1
    print(
        f"{reader}: {results.total()} outputs: {dict(results.most_common())}; median {statistics.median(times_s) * 1e6:.0f} us, "
        f"longest {max(times_s) * 1e3:.1f} ms"
    )
    assert results.total() == count
    assert statistics.median(times_s) <= MEDIAN_S
    assert max(times_s) <= LONGEST_S
