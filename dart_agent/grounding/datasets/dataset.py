"""Samples of one data set, with what its authors say about scores.

Role: `GroundingDataset`, which all readers return. Rule: a published score is a micro or a macro average, and says which; the other one is
reported beside it. Non-goals: files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dart_agent.grounding.samples import GroundingSample

Average = Literal["micro", "macro"]
"""The mean over samples, or the mean over the means of the cells."""


def cells_of_none(sample: GroundingSample) -> tuple[str, ...]:
    """The cells of a data set without a published table.

    Args:
        sample: Any sample.

    Returns:
        None.
    """
    return ()


@dataclass(frozen=True, slots=True)
class GroundingDataset:
    """A data set that was read.

    Attributes:
        name: Its format, such as "screenspot-v2".
        root: Folder that the images of the samples are relative to.
        samples: The samples, in the order of the files.
        average: How its authors average over samples.
        cells: The cells of its authors' table that a sample belongs to: one where cells divide the samples, several where they overlap.
        published_samples: How many samples its authors publish; None where that is not fixed.
        left_out: How many records of training data were left out, because they give no sample.
    """

    name: str
    root: Path
    samples: tuple[GroundingSample, ...]
    average: Average = "micro"
    cells: Callable[[GroundingSample], tuple[str, ...]] = cells_of_none
    published_samples: int | None = None
    left_out: int = 0
