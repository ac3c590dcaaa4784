"""Lessons that are not learned yet come more often, within bounds."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from dart_train.warmup.lesson_mix import LEAST, MOST, LessonMix


def shares(mix: LessonMix[str], kinds: list[str], draws: int = 20_000) -> dict[str, float]:
    random = Random(1)
    counts = Counter(mix.draw(kinds, random) for _ in range(draws))
    return {kind: counts[kind] / draws for kind in kinds}


def test_all_kinds_are_alike_until_losses_are_known() -> None:
    found = shares(LessonMix(), ["a", "b", "c", "d"])
    assert all(share == pytest.approx(0.25, abs=0.02) for share in found.values())


def test_a_loss_that_is_not_finite_changes_no_weight() -> None:
    mix: LessonMix[str] = LessonMix()
    mix.learn([("a", 1.0), ("b", float("nan")), ("b", 3.0), ("a", float("inf"))])
    found = shares(mix, ["a", "b"])
    assert [found[kind] for kind in "ab"] == pytest.approx([0.25, 0.75], abs=0.02)


def test_kinds_are_drawn_in_proportion_to_their_loss() -> None:
    mix: LessonMix[str] = LessonMix()
    mix.learn([("a", 1.0), ("b", 2.0), ("c", 3.0)])
    found = shares(mix, ["a", "b", "c"])
    assert [found[kind] for kind in "abc"] == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=0.02)


def test_a_learned_kind_still_comes_and_one_that_cannot_be_learned_does_not_crowd_out_the_others() -> None:
    mix: LessonMix[str] = LessonMix()
    mix.learn([("learned", 0.0), ("impossible", 1000.0), *((f"other{n}", 1.0) for n in range(98))])
    found = shares(mix, ["learned", "impossible"])
    assert found["learned"] / found["impossible"] == pytest.approx(LEAST / MOST, rel=0.2)


def test_the_running_mean_follows_the_losses() -> None:
    mix: LessonMix[str] = LessonMix()
    for _ in range(100):
        mix.learn([("a", 4.0), ("b", 1.0)])
    for _ in range(100):
        mix.learn([("a", 1.0), ("b", 1.0)])
    assert shares(mix, ["a", "b"])["a"] == pytest.approx(0.5, abs=0.02)


def test_nothing_to_learn_is_drawn_uniformly() -> None:
    mix: LessonMix[str] = LessonMix()
    mix.learn([("a", 0.0), ("b", 0.0)])
    assert shares(mix, ["a", "b"])["a"] == pytest.approx(0.5, abs=0.02)


def test_several_lessons_are_drawn_without_repetition_and_by_their_weights() -> None:
    mix: LessonMix[str] = LessonMix()
    mix.learn([("a", 1.0), ("b", 3.0)])
    random = Random(2)
    kinds = ["a", "a", "b"]
    first = Counter()
    for _ in range(20_000):
        drawn = mix.draw_several(kinds, 2, random)
        assert len(set(drawn)) == 2
        first[drawn[0]] += 1
    assert first[2] / 20_000 == pytest.approx(3 / 5, abs=0.02)
    assert sorted(mix.draw_several(kinds, 9, random)) == [0, 1, 2]
