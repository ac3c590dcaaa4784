"""Metrics of pictures and playlists.

Role: one function per metric, and `METRICS` of this module; all are ours. Rule: pictures are compared pixel by pixel within a
tolerance; what cannot be decoded within limits is `InvalidArtifact`. Non-goals: drawing (`dart_envs.evaluators.images`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote
from xml.etree.ElementTree import ParseError

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from dart_envs.evaluators.artifacts import InvalidArtifact
from dart_envs.evaluators.images import apply_changes, decode_image, draw_scene
from dart_envs.evaluators.metrics.base import FileResult, Metric, Options, as_text, binary_score
from dart_envs.evaluators.xml_documents import parse_xml

MEAN_TOLERANCE = 2.0
"""Mean difference of all channel values, of 255, that two equal pictures may have."""
MAX_CHANNEL_DIFFERENCE = 40
"""A pixel is another one where a channel differs by more than this."""
MAX_OUTLIER_SHARE = 0.01
"""Share of the pixels that may be other ones: edges that were scaled."""
MAX_OUTLIER_BLOCK = 4
"""A square of other pixels of this side is no edge."""


def _has_block(far: NDArray[np.bool_], side: int) -> bool:
    """Whether a square of so many pixels is all other ones: edges are thin, a hole or a drawing is not."""
    if min(far.shape) < side:
        return bool(far.all())
    return bool(sliding_window_view(far, (side, side)).all(axis=(2, 3)).any())


def picture_is(result: FileResult, rules: Mapping[str, Any], options: Options) -> float:
    """{scene, any_of: [changes, ...], format}: the picture of the description after one of these lists of changes, of exactly that
    size and within a tolerance in colour (options `mean`, `far_share`), in a file of that format where one is given.
    """
    form, held = decode_image(result.content)
    if rules.get("format") not in (None, form):
        return 0.0
    original = draw_scene(rules["scene"])

    def same(wanted: Any) -> bool:
        if wanted.shape != held.shape:
            return False
        difference = np.abs(wanted.astype(int) - held)
        far = difference.max(axis=2) > MAX_CHANNEL_DIFFERENCE
        return bool(
            difference.mean() <= options.get("mean", MEAN_TOLERANCE)
            and far.mean() <= options.get("far_share", MAX_OUTLIER_SHARE)
            and not _has_block(far, MAX_OUTLIER_BLOCK)
        )

    return binary_score(any(same(apply_changes(original, changes)) for changes in rules["any_of"]))


def _xspf_locations(text: str) -> list[str]:
    try:
        root = parse_xml(text, "the playlist")
    except ParseError as error:
        raise InvalidArtifact(f"the playlist is not XML: {error}") from error
    if any(element.tag.rpartition("}")[2] == "option" for element in root.iter()):
        raise InvalidArtifact("the playlist has options that say how the player plays it")
    return [(place.text or "").strip() for place in root.findall("{*}trackList/{*}track/{*}location")]


def playlist_is(result: FileResult, rules: Mapping[str, Any], options: Options) -> float:
    """{paths: [...]}: an M3U or XSPF playlist names exactly these local files in this order; names without a folder count from `folder`."""
    text = as_text(result)
    if text.lstrip().startswith(("<?xml", "<playlist")):
        named = _xspf_locations(text)
    else:
        lines = text.split("\n")
        if any(line.startswith("#EXTVLCOPT") for line in lines):
            raise InvalidArtifact("the playlist has options that say how the player plays it")
        named = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    places = [unquote(name.removeprefix("file://")) if name.startswith("file://") else name for name in named]
    whole = [place if place.startswith("/") else f"{rules['folder']}/{place.removeprefix('./')}" for place in places]
    return binary_score(whole == list(rules["paths"]))


METRICS: Mapping[str, Metric] = {
    "picture_is": picture_is,
    "playlist_is": playlist_is,
}
