"""What crosses the socket when an inference worker is asked where targets are.

Role: request and answer of `POST /point`, and their encoding. Rule: pixels travel as raw RGB bytes behind a JSON header, as for
`/generate`; logits come back as base64 of little-endian float32, so that the caller draws from exactly the numbers of the worker.
Non-goals: drawing points (`dart_agent.grounding.acting.pointer`).

    POST /point          u32 length (big endian), JSON header, raw RGB bytes of the image -> {"version", "targets"}
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dart_agent.types import PolicyVersion
from dart_envs.types import RgbImage

POINT_PATH = "/point"
_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class PointRequest:
    """Targets on one image.

    Attributes:
        image: The image, uint8 [H, W, 3].
        instructions: What the head is asked, one for each target.
        request_id: Of the request; what shares the part before the last dot goes to the same worker.
        image_sha256: Content hash of the image; "": the worker computes one.
    """

    image: RgbImage
    instructions: tuple[str, ...]
    request_id: str
    image_sha256: str = ""


@dataclass(frozen=True, slots=True)
class ServedLogits:
    """What the head of a worker says about one target. Axes: M visual tokens, P parts of a cell.

    Attributes:
        columns: Cells per row.
        rows: Rows of cells.
        parts: Parts per side of a cell.
        cells_M: Logits over the visual tokens, float32.
        parts_MP: Logits over the parts of each cell, float32; None where a cell has one part.
    """

    columns: int
    rows: int
    parts: int
    cells_M: NDArray[np.float32]
    parts_MP: NDArray[np.float32] | None

    @classmethod
    def of_bytes(cls, columns: int, rows: int, parts: int, cells: bytes, within: bytes) -> ServedLogits:
        """From little-endian float32.

        Args:
            columns: Cells per row.
            rows: Rows of cells.
            parts: Parts per side of a cell.
            cells: Logits over the visual tokens.
            within: Logits over the parts of each cell; empty where a cell has one part.

        Returns:
            The logits.

        Raises:
            ValueError: The numbers are too many or too few.
        """
        cells_M = np.frombuffer(cells, "<f4").reshape(columns * rows)
        parts_MP = np.frombuffer(within, "<f4").reshape(columns * rows, parts**2) if parts > 1 else None
        return cls(columns, rows, parts, cells_M, parts_MP)


@dataclass(frozen=True, slots=True)
class PointAnswer:
    """The answer of one worker.

    Attributes:
        version: Policy version of the weights that computed all of it.
        targets: By instruction.
    """

    version: PolicyVersion
    targets: tuple[ServedLogits, ...]


def encode_point_request(asked: PointRequest) -> bytes:
    """Body of `POST /point`."""
    header = {
        "request_id": asked.request_id,
        "instructions": list(asked.instructions),
        "image_sha256": asked.image_sha256,
        "image_hw": [int(size) for size in asked.image.shape[:2]],
    }
    text = json.dumps(header, ensure_ascii=False).encode()
    return b"".join([_LENGTH.pack(len(text)), text, np.ascontiguousarray(asked.image, dtype=np.uint8).tobytes()])


def decode_point_request(body: bytes) -> PointRequest:
    """Inverse of `encode_point_request`. Raises ValueError when the body is malformed."""
    if len(body) < _LENGTH.size:
        raise ValueError("the body is shorter than its length prefix")
    offset = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    try:
        header = json.loads(body[_LENGTH.size : offset])
        height, width = (int(size) for size in header["image_hw"])
        instructions = tuple(str(instruction) for instruction in header["instructions"])
        request_id, sha256 = str(header["request_id"]), str(header["image_sha256"])
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"the header of the body is malformed: {error}") from error
    if len(body) - offset != height * width * 3 or not instructions:
        raise ValueError("the body has not the pixels of its image, or asks for no target")
    image = np.frombuffer(body, np.uint8, offset=offset).reshape(height, width, 3)
    return PointRequest(image, instructions, request_id, sha256)


def encode_point_answer(answer: PointAnswer) -> dict[str, Any]:
    """JSON reply of `POST /point`."""
    targets = [
        {
            "columns": target.columns,
            "rows": target.rows,
            "parts": target.parts,
            "cells": _text(target.cells_M),
            "within": "" if target.parts_MP is None else _text(target.parts_MP),
        }
        for target in answer.targets
    ]
    return {"version": answer.version, "targets": targets}


def decode_point_answer(reply: Mapping[str, Any]) -> PointAnswer:
    """Inverse of `encode_point_answer`. Raises KeyError, TypeError or ValueError."""
    targets = tuple(
        ServedLogits.of_bytes(
            int(target["columns"]),
            int(target["rows"]),
            int(target["parts"]),
            base64.b64decode(target["cells"], validate=True),
            base64.b64decode(target["within"], validate=True),
        )
        for target in reply["targets"]
    )
    return PointAnswer(int(reply["version"]), targets)


def _text(numbers: NDArray[np.float32]) -> str:
    return base64.b64encode(numbers.astype("<f4").tobytes()).decode()
