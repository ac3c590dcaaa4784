"""Images of several places under one name.

Role: `ImagesInOrder`, for batches whose rows come from demonstrations and from one or more runs. Non-goals: storing them.
"""

from __future__ import annotations

from collections.abc import Sequence

from dart_agent.data_client.image_store import BlobStorage
from dart_envs.types import RgbImage


class ImagesInOrder:
    """Reads an image from the first place that has it.

    Args:
        places: The places, at least one.
    """

    def __init__(self, places: Sequence[BlobStorage]) -> None:
        self._places = tuple(places)

    def get(self, sha256: str) -> RgbImage:
        """The image of a hash, uint8 [H, W, 3]. Raises BlobError when it is in none of the places, or damaged."""
        for place in self._places[:-1]:
            if not place.missing([sha256]):
                return place.get(sha256)
        return self._places[-1].get(sha256)
