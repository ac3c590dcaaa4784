"""`smart_size` is the rule of the image processors that transformers has for these models."""

from __future__ import annotations

import random

import pytest

from dart_envs.observations.geometry import smart_size

processing = pytest.importorskip("transformers.models.qwen2_vl.image_processing_qwen2_vl")


def test_sizes_are_those_of_the_image_processor() -> None:
    chance = random.Random(1)
    limits = [(100 * 784, 16_384 * 784), (3_136, 12_845_056), (65_536, 13_107_200), (78_400, 400 * 784)]
    for _ in range(2_000):
        width, height = chance.randint(50, 8_000), chance.randint(50, 8_000)
        multiple, (least, most) = chance.choice([28, 32]), chance.choice(limits)
        expected = processing.smart_resize(height, width, factor=multiple, min_pixels=least, max_pixels=most)
        size = smart_size((width, height), multiple=multiple, min_pixels=least, max_pixels=most)
        assert size == (expected[1], expected[0])
        assert smart_size(size, multiple=multiple, min_pixels=least, max_pixels=most) == size
