"""Patches of images, made once per image.

Role: `ImagePatches` converts the stored images of rows to the patches of a model and keeps them by content hash. Rule: what is kept has a
limit of bytes; those that were not shown for longest go first and are made again when they are shown again. Patches are kept in the data
type that the vision tower casts them to first, so that nothing of the result changes. Non-goals: features, which the model computes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dart_agent.data_client.image_store import ImageReader
from dart_train.model.policy_model import pixel_inputs

if TYPE_CHECKING:
    from torch import Tensor


class ImageSizeError(Exception):
    """A stored image has another size than its step recorded; the message says which."""


class ImagePatches:
    """Patches by image.

    Args:
        images: Where the images are stored.
        processor: The processor of the model.
        max_bytes: Bytes of patches that are kept.
        bfloat16: Whether matrix products are computed in bfloat16.
    """

    def __init__(self, images: ImageReader, processor: Any, max_bytes: int, *, bfloat16: bool = False) -> None:
        self._images = images
        self._processor = processor
        self._max_bytes = max_bytes
        self._bfloat16 = bfloat16
        self._kept: OrderedDict[str, tuple[Tensor, Tensor]] = OrderedDict()
        self._kept_bytes = 0

    def get(self, shown: Sequence[tuple[str, tuple[int, int]]]) -> list[tuple[Tensor, Tensor]]:
        """Return the patches of images.

        Args:
            shown: Hash and recorded (height, width) of each image.

        Returns:
            For each, its `pixel_values` [patches, values] and its `image_grid_thw` [3].

        Raises:
            BlobError: An image is missing or damaged.
            ImageSizeError: An image is not of the recorded size.
        """
        import torch

        found = {sha256: self._kept[sha256] for sha256, _ in shown if sha256 in self._kept}
        for sha256 in found:
            self._kept.move_to_end(sha256)
        missing = dict(item for item in shown if item[0] not in found)
        pictures = []
        for sha256, height_width in missing.items():
            picture = self._images.get(sha256)
            if picture.shape[:2] != tuple(height_width):
                raise ImageSizeError(f"image {sha256[:12]} is {picture.shape[:2]}, recorded as {tuple(height_width)}")
            pictures.append(picture)
        if pictures:
            pixels, grids = pixel_inputs(self._processor, pictures)
            parts = torch.split(pixels, grids.prod(-1).tolist())
            for sha256, part, grid in zip(missing, parts, grids, strict=True):
                found[sha256] = (part.to(torch.bfloat16) if self._bfloat16 else part.clone(), grid)
                self._keep(sha256, found[sha256])
        return [found[sha256] for sha256, _ in shown]

    def _keep(self, sha256: str, patches: tuple[Tensor, Tensor]) -> None:
        self._kept[sha256] = patches
        self._kept_bytes += patches[0].nbytes
        while self._kept_bytes > self._max_bytes:
            _, (pixels, _) = self._kept.popitem(last=False)
            self._kept_bytes -= pixels.nbytes
