"""Getters of what Chrome keeps in its profile.

Role: `read_profile`, pure, and one getter per kind; `GETTERS` of this module. Names and answers are OSWorld's, odd ones for unreadable
files included, which `tests/integration/test_scorers_agree.py` proves. Non-goals: what the browser shows (`dart_envs.setup.browser`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dart_envs.evaluators.artifacts import InvalidArtifact, load_json
from dart_envs.evaluators.getters.base import Getter, GetterConfig, GetterContext, read_guest_file

PROFILE = "/home/user/.config/google-chrome/Default"
FONT_SIZES = {"default_fixed_font_size": 13, "default_font_size": 16, "minimum_font_size": 13}


def _search_engine(data: Any) -> Any:
    return data.get("default_search_provider_data", {}).get("template_url_data", {}).get("short_name", "Google")


def _bool_text(good: Any) -> str:
    return "true" if good else "false"


def _safe_browsing(data: Any) -> str:
    browsing = data.get("safebrowsing", {})
    return _bool_text(bool(browsing.get("enhanced", False)) or bool(browsing.get("enabled", False)))


def _startup_page(data: Any) -> str:
    if "session" not in data.keys():  # noqa: SIM118 - what is no object has no keys, and must fail here
        return "true"
    return _bool_text(data.get("session", {}).get("restore_on_startup", {}) == 5)


PREFERENCE_READERS: Mapping[str, tuple[Callable[[Any], Any], Any]] = {
    "default_search_engine": (_search_engine, "Google"),
    "enable_do_not_track": (lambda data: _bool_text(data.get("enable_do_not_track", {})), "false"),
    "enable_safe_browsing": (_safe_browsing, "false"),
    "profile_name": (lambda data: data.get("profile", {}).get("name", None), None),
    "chrome_font_size": (
        lambda data: data.get("webkit", {}).get("webprefs", FONT_SIZES),
        {"default_fixed_font_size": 13, "default_font_size": 16},
    ),
    "new_startup_page": (_startup_page, "Google"),
    "data_delete_automacally": (
        lambda data: _bool_text(data["profile"].get("default_content_setting_values", None) is not None),
        "Google",
    ),
}
"""By kind: what is read of Preferences, and what OSWorld answers where that cannot be read."""


def read_profile(kind: str, content: bytes | None) -> Any:
    """What a getter answers on a file of the profile, None where there is none. Raises InvalidArtifact for bookmarks that cannot be
    read."""
    if kind == "bookmarks":
        if not content:
            return []
        try:
            return load_json(content).get("roots", {})
        except (ValueError, AttributeError) as error:
            raise InvalidArtifact(f"the bookmarks cannot be read: {error}") from error
    read, default = PREFERENCE_READERS[kind]
    if content is None:
        return default
    try:
        return read(load_json(content))
    except (ValueError, AttributeError, KeyError, TypeError):
        return default


MEANINGS: Mapping[str, str] = {
    "default_search_engine": "{}: the name of the default search engine.",
    "enable_do_not_track": '{}: "true" where sites are asked not to track.',
    "enable_safe_browsing": '{}: "true" where Safe Browsing is on.',
    "profile_name": "{}: the name of the profile.",
    "chrome_font_size": "{}: the font sizes of pages, an object.",
    "new_startup_page": '{}: "true" where the browser goes on where it was left.',
    "data_delete_automacally": '{}: "true" where the data of sites are deleted when the browser ends.',
    "bookmarks": "{}: the folders of bookmarks, an object by root.",
}
"""What each getter of this module reads from the profile of Chrome's default profile."""


def _getter(kind: str, file: str) -> Getter:
    async def getter(context: GetterContext, config: GetterConfig) -> Any:
        try:
            content = (await read_guest_file(context, f"{PROFILE}/{file}")).content
        except InvalidArtifact:
            content = None
        return read_profile(kind, content)

    getter.__doc__ = MEANINGS[kind]
    return getter


GETTERS: Mapping[str, Getter] = {
    **{kind: _getter(kind, "Preferences") for kind in PREFERENCE_READERS},
    "bookmarks": _getter("bookmarks", "Bookmarks"),
}
