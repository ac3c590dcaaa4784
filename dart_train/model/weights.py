"""Complete model directories, above all the published policy versions `v<N>`.

Role: write a directory completely or not at all; keep the newest versions. Rule: a directory is written under a temporary name, synced and
renamed; an existing one is never written again, so that a reader that sees the name may load it; a version that a reader holds
(`dart_agent.inference.weights.leases`) stays until a later publication. Non-goals: registering versions (the data manager), loading
(`dart_agent.inference`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dart_agent.inference.weights.files import read_metadata, weight_files
from dart_agent.inference.weights.leases import make_leasable, try_remove

if TYPE_CHECKING:
    from torch import Tensor

PublishedDtype = Literal["as_trained", "bfloat16"]
"""As the trainer has them, or bfloat16, which halves what is written and what workers read."""
PublishedWeightsKind = Literal["model", "adapter"]
_NAME = re.compile(r"v(\d+)")
ORIGIN_FILE = "training.json"


@dataclass(frozen=True, slots=True)
class TrainingOrigin:
    """Where published weights come from, beside them: enough to train on where no checkpoint is left.

    Attributes:
        updates: Train steps that made them.
        lineage: Digests of the weights that they were trained from, the first version first.
    """

    updates: int = 0
    lineage: tuple[str, ...] = ()

    def write(self, directory: Path) -> None:
        """Write it into a model directory.

        Args:
            directory: The directory.
        """
        (directory / ORIGIN_FILE).write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> TrainingOrigin:
        """Read it from a model directory.

        Args:
            directory: The directory.

        Returns:
            The origin; that of a first version where the directory does not tell.
        """
        path = directory / ORIGIN_FILE
        if not path.exists():
            return cls()
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(int(content["updates"]), tuple(content["lineage"]))


class PolicyVersionStore:
    """Published versions in one directory.

    Args:
        root: The directory.
        keep: How many of the newest versions are kept; older ones that are still read are kept, too.
    """

    def __init__(self, root: Path, keep: int) -> None:
        self.root = root
        self._keep = keep

    def path(self, version: int) -> Path:
        """Directory of a version, whether it exists or not."""
        return self.root / f"v{version}"

    def versions(self) -> list[int]:
        """Numbers of the published versions, ascending."""
        if not self.root.exists():
            return []
        found = (_NAME.fullmatch(entry.name) for entry in self.root.iterdir())
        return sorted(int(match.group(1)) for match in found if match)

    def publish(self, version: int, save: Callable[[Path], None]) -> Path:
        """Publish a version; nothing happens where it is published already.

        Args:
            version: Its number.
            save: Called with an empty directory, writes the model into it.

        Returns:
            The directory of the version.
        """
        target = self.path(version)
        if target.exists():
            return target

        def save_leasable(directory: Path) -> None:
            save(directory)
            make_leasable(directory)

        write_directory_atomically(target, save_leasable)
        self._prune()
        return target

    def remove_partial(self) -> None:
        """Remove what a killed trainer left partially written or removed."""
        if self.root.exists():
            for leftover in self.root.glob(".v*-*"):
                shutil.rmtree(leftover, ignore_errors=True)

    def remove_above(self, version: int) -> None:
        """Remove versions that a killed trainer wrote and never registered, so that nobody reads them.

        Args:
            version: The newest registered version.
        """
        for number in self.versions():
            if number > version:
                shutil.rmtree(self.path(number))

    def _prune(self) -> None:
        for version in self.versions()[: -self._keep]:
            try_remove(self.path(version))


def in_bfloat16(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Round weights to bfloat16 (to nearest, ties to even), so that no file of a larger data type is written.

    Args:
        weights: Tensors by name; names may share one.

    Returns:
        Tensors in the memory of the host, shared by the same names; those without a floating point as they are.
    """
    import torch

    rounded: dict[tuple[int, torch.Size], Tensor] = {}
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        key = tensor.data_ptr(), tensor.shape
        if not tensor.is_floating_point():
            found[name] = tensor
            continue
        if key not in rounded:
            rounded[key] = tensor.detach().to("cpu", torch.bfloat16)
        found[name] = rounded[key]
    return found


def cast_to_bfloat16(directory: Path) -> None:
    """Rewrite the floating-point tensors of a model directory in bfloat16 (rounded to nearest, ties to even).

    Args:
        directory: Holds `*.safetensors`.
    """
    import torch
    from safetensors.torch import load_file, save_file

    for file in weight_files(directory):
        tensors = load_file(file)
        cast = {
            name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
            for name, tensor in tensors.items()
        }
        save_file(cast, file, metadata={"format": "pt"} | read_metadata(file))


def write_directory_atomically(target: Path, save: Callable[[Path], None]) -> None:
    """Make a directory completely or not at all; what a killed writer of the same directory left is removed.

    Args:
        target: The directory; it must not exist, or be empty.
        save: Called with an empty directory, writes the content into it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in target.parent.glob(f".{target.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        save(staging)
        staging.chmod(0o755)
        _sync_tree(staging)
        os.rename(staging, target)
        sync_path(target.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _sync_tree(root: Path) -> None:
    """Make files last, and their names."""
    for path in (*root.rglob("*"), root):
        sync_path(path)


def sync_path(path: Path) -> None:
    """Make the content of a file, or the names in a directory, last.

    Args:
        path: The file or directory.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
