"""The files of one policy version: what is in them, and whether they fit a model.

Role: read the headers of the safetensors in a directory. Rule: nothing here loads a tensor or imports torch, so the check costs
milliseconds and runs before anything is paused. Non-goals: loading (`dart_agent.inference.engine.weight_transfer`).
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

from dart_agent.errors import WeightUpdateError

Shapes = dict[str, tuple[int, ...]]
_LENGTH = struct.Struct("<Q")
_OUTPUT_EMBEDDING = "lm_head.weight"


def weight_files(directory: Path) -> list[Path]:
    """The safetensors of a version, in order. Raises WeightUpdateError when there are none."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise WeightUpdateError(f"{directory} holds no *.safetensors file")
    return files


def tensor_shapes(directory: Path) -> Shapes:
    """Shape of every tensor by name. Raises WeightUpdateError for a file that is cut off or no safetensors."""
    shapes: Shapes = {}
    for file in weight_files(directory):
        try:
            size = file.stat().st_size
            with file.open("rb") as stream:
                (length,) = _LENGTH.unpack(stream.read(_LENGTH.size))
                header = json.loads(stream.read(length)) if length < size else None
            if header is None:
                raise ValueError("its header is longer than the file")
            header.pop("__metadata__", None)
            end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
            if _LENGTH.size + length + end != size:
                raise ValueError(f"it should have {_LENGTH.size + length + end} bytes and has {size}")
            shapes.update({name: tuple(entry["shape"]) for name, entry in header.items()})
        except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
            raise WeightUpdateError(f"{file} is not a complete safetensors file: {error}") from error
    return shapes


def check_weights_match(directory: Path, expected: Shapes, *, tied: bool = False) -> None:
    """Raise WeightUpdateError unless the version has exactly the tensors of the served model.

    tied: the model's output embedding is its input embedding; some checkpoints store it twice all the same, so it does not count.
    """
    found = tensor_shapes(directory)
    if tied:
        expected = {name: shape for name, shape in expected.items() if name != _OUTPUT_EMBEDDING}
        found.pop(_OUTPUT_EMBEDDING, None)
    missing = sorted(expected.keys() - found.keys())
    unknown = sorted(found.keys() - expected.keys())
    misshapen = sorted(name for name in found.keys() & expected.keys() if found[name] != expected[name])
    parts = [
        f"{len(names)} {what} (first: {names[0]})"
        for what, names in (("missing", missing), ("unknown", unknown), ("of another shape", misshapen))
        if names
    ]
    if parts:
        raise WeightUpdateError(f"the weights in {directory} are not of the served model: tensors {', '.join(parts)}")
