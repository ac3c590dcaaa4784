"""Metrics of pictures and playlists.

Role: one function per metric, and `METRICS` of this module; all are ours. Rule: pictures are compared pixel by pixel within a
tolerance; what cannot be decoded within limits is `InvalidArtifact`. Non-goals: drawing (`dart_envs.evaluators.images`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote
from xml.etree.ElementTree import ParseError, fromstring

import numpy as np

from dart_envs.evaluators.artifacts import GuestFile, InvalidArtifact
from dart_envs.evaluators.images import apply_changes, decode_image, draw_scene
from dart_envs.evaluators.metrics.base import Metric, Options, as_text, binary_score

MEAN_TOLERANCE = 2.0
"""Mean difference of all channel values, of 255, that two equal pictures may have."""
MAX_CHANNEL_DIFFERENCE = 40
"""A pixel is another one where a channel differs by more than this."""
MAX_OUTLIER_SHARE = 0.01
"""Share of the pixels that may be other ones: edges that were scaled."""


def picture_is(result: GuestFile, rules: Mapping[str, Any], options: Options) -> float:
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
        far = (difference.max(axis=2) > MAX_CHANNEL_DIFFERENCE).mean()
        return bool(
            difference.mean() <= options.get("mean", MEAN_TOLERANCE)
            and far <= options.get("far_share", MAX_OUTLIER_SHARE)
        )

    return binary_score(any(same(apply_changes(original, changes)) for changes in rules["any_of"]))


def _xspf_locations(text: str) -> list[str]:
    if "<!DOCTYPE" in text:
        raise InvalidArtifact("the playlist has a document type")
    try:
        root = fromstring(text)
    except ParseError as error:
        raise InvalidArtifact(f"the playlist is not XML: {error}") from error
    return [(place.text or "").strip() for place in root.findall("{*}trackList/{*}track/{*}location")]


def playlist_is(result: Any, rules: Mapping[str, Any], options: Options) -> float:
    """{paths: [...]}: an M3U or XSPF playlist names exactly these local files in this order; names without a folder count from `folder`."""
    text = as_text(result)
    if text.lstrip().startswith(("<?xml", "<playlist")):
        named = _xspf_locations(text)
    else:
        named = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    places = [unquote(name.removeprefix("file://")) if name.startswith("file://") else name for name in named]
    whole = [place if place.startswith("/") else f"{rules['folder']}/{place.removeprefix('./')}" for place in places]
    return binary_score(whole == list(rules["paths"]))


METRICS: Mapping[str, Metric] = {
    "picture_is": picture_is,
    "playlist_is": playlist_is,
}
