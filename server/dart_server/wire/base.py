"""What every part of the wire contract builds on: the strict base model, headers, names and the desktop's shape. Non-goals: any route."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, StringConstraints

LEASE_TOKEN_HEADER = "X-Dart-Lease-Token"
FENCING_TOKEN_HEADER = "X-Dart-Fencing-Token"
REQUEST_ID_HEADER = "X-Request-Id"
FROM_GUEST_HEADER = "X-Dart-From-Guest"
"""On an answer that was passed through: whatever it looks like, the farm did not say it."""

SetupKey = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""sha256 over (image digest, resolution, font size, canonical setup, asset digests); the evaluator is not part of it."""

SNAPSHOT_ID_PREFIX = "snap_"


def _no_id(name: str) -> str:
    if name.startswith(SNAPSHOT_ID_PREFIX):
        raise ValueError(f"a snapshot's name may not begin with {SNAPSHOT_ID_PREFIX}, as ids do")
    return name


SnapshotName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._:@+-]{0,127}$"), AfterValidator(_no_id)
]
"""What a tenant calls a snapshot of its own; at most one snapshot of a tenant has a name at a time."""

ImageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


def _no_text(value: object) -> object:
    if isinstance(value, str | bytes | bool):
        raise ValueError("a number is needed, not a text and not true or false")
    return value


NoText = BeforeValidator(_no_text)
Int = Annotated[int, NoText]
Number = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]
"""In what clients send: a text is no number, and true is no 1."""

Label = Annotated[str, StringConstraints(max_length=256)]
Labels = Annotated[dict[Label, Label], Field(max_length=32)]

Width = Annotated[int, Field(ge=64, le=7680), NoText]
Height = Annotated[int, Field(ge=64, le=4320), NoText]
Resolution = Annotated[
    tuple[Width, Height], Field(description="width, height in pixels; images may ask for more than the least")
]


class WireModel(BaseModel):
    """Base of every model on the wire: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DesktopShape(WireModel):
    """What kind of desktop is wanted; part of the identity of its base snapshot.

    Attributes:
        image: Name of the desktop image.
        resolution: (width, height) of the screen, pixels.
        font_size: GUI font size, points; None keeps the image's own.
    """

    image: ImageName = "basic"
    resolution: Resolution = (1920, 1080)
    font_size: Annotated[int, Field(ge=6, le=48), NoText] | None = Field(
        default=None, description="GUI font size in points; None keeps the image's own"
    )
