"""OSWorld's metrics in OSWorld's own reading, where that can be had without its packages.

Role: `OSWORLD_EQUIVALENT_METRICS`, which judges OSWorld's task files in place of the osworld scorer; those whose name has no other
reading of ours are in `METRICS` too. Rule: each is equal to the official one of its name, quirks included, which
`tests/integration/test_scorers_agree.py` proves on generated cases; a result that the official one cannot read raises `InvalidArtifact`.
Non-goals: being kinder than OSWorld.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import ParseError

from dart_envs.evaluators.artifacts import GuestFile, InvalidArtifact, load_json
from dart_envs.evaluators.getters import chrome
from dart_envs.evaluators.metrics.base import (
    AnyResult,
    FileResult,
    ListResult,
    Metric,
    ObjectResult,
    Options,
    PrintedResult,
    binary_score,
)
from dart_envs.evaluators.xml_documents import parse_xml

Rules = Mapping[str, Any]


def file_text(result: Any) -> str:
    """A file's text with plain line ends. Raises InvalidArtifact where it is missing or no text."""
    if not isinstance(result, GuestFile):
        raise InvalidArtifact("there is no file")
    return io.TextIOWrapper(io.BytesIO(result.text.encode()), encoding="utf-8").read()


def exact_match(result: AnyResult, rules: Rules, options: Options) -> float:
    """{expected}: the same value, white space included."""
    return binary_score(result == rules["expected"])


def match_in_list(result: AnyResult, rules: Rules, options: Options) -> float:
    """{expected}: one of these values, or a part of this text."""
    try:
        return binary_score(result in rules["expected"])
    except TypeError as error:
        raise InvalidArtifact(f"{type(result).__name__} is not what can be looked for") from error


def is_in_list(result: ListResult, rules: Rules, options: Options) -> float:
    """{expected}: an item of the result, or a part of its text."""
    try:
        return binary_score(rules["expected"] in result)
    except TypeError as error:
        raise InvalidArtifact(f"nothing can be looked for in {type(result).__name__}") from error


def check_include_exclude(result: PrintedResult, rules: Rules, options: Options) -> float:
    """{include, exclude}: the text has every one of the first and none of the second."""
    if not isinstance(result, str):
        raise InvalidArtifact("there is no text")
    included, excluded = rules.get("include", ()), rules.get("exclude", ())
    return binary_score(all(part in result for part in included) and not any(part in result for part in excluded))


def file_contains(result: FileResult, rules: Rules, options: Options) -> float:
    """{expected: [...]}: the file's text has every one of these."""
    text = file_text(result)
    return binary_score(all(part in text for part in rules["expected"]))


TIME_OF_DAY = re.compile(r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)")


def check_line_number(result: FileResult, rules: Rules, options: Options) -> float:
    """{expected}: so many lines of the file hold a time of day."""
    lines = io.StringIO(file_text(result))
    return binary_score(sum(TIME_OF_DAY.search(line) is not None for line in lines) == int(rules["expected"]))


def check_list(result: FileResult, rules: Rules, options: Options) -> float:
    """{expect, unexpect}: regular expressions, each found in some line of the file / in none."""
    lines = list(io.StringIO(file_text(result)))

    def found(pattern: str) -> bool:
        return any(re.search(pattern, line) for line in lines)

    return binary_score(all(map(found, rules.get("expect", ()))) and not any(map(found, rules.get("unexpect", ()))))


def compare_config(result: FileResult, rules: Rules, options: Options) -> float:
    """{expected}: the whole text of the file."""
    return binary_score(file_text(result) == rules["expected"])


def is_extension_installed(result: PrintedResult, rules: Rules, options: Options) -> float:
    """{type: contain or not_contain, expected}: a part of the text, or none."""
    if not isinstance(result, str):
        raise InvalidArtifact("there is no text")
    wanted = {"contain": True, "not_contain": False}[rules["type"]]
    return binary_score((rules["expected"] in result) is wanted)


def check_json_settings(result: FileResult, rules: Rules, options: Options) -> float:
    """{expected: {...}}: the file's object holds each of these keys with this value."""
    try:
        data = load_json(file_text(result))
    except ValueError as error:
        raise InvalidArtifact(f"not JSON: {error}") from error
    try:
        return binary_score(all(key in data and data[key] == value for key, value in rules["expected"].items()))
    except TypeError as error:
        raise InvalidArtifact("no JSON object") from error


def check_json_keybindings(result: FileResult, rules: Rules, options: Options) -> float:
    """{expected}: an item of the file's list; its first line may be a comment."""
    text = file_text(result)
    for part in (text, text.partition("\n")[2]):
        try:
            data = load_json(part)
        except ValueError:
            continue
        if isinstance(data, list):
            return binary_score(rules["expected"] in data)
    return 0.0


def check_config_status(result: FileResult, rules: Rules, options: Options) -> float:
    """{key, value}: a line of GIMP's settings begins with the key (one word or two) and ends with the value."""
    for line in io.StringIO(file_text(result)):
        if line.startswith("#") or line == "\n":
            continue
        words = line.strip().lstrip("(").rstrip(")\n").split()
        if not words:
            raise InvalidArtifact("a line of the settings holds nothing that can be read")
        key = rules["key"]
        if isinstance(key, str):
            if words[0] == key and words[-1] == rules["value"]:
                return 1.0
        elif len(key) == 2 and words[0] == key[0]:
            if len(words) < 2:
                raise InvalidArtifact(f"the setting {key[0]} has no value")
            if words[1] == key[1] and words[-1] == rules["value"]:
                return 1.0
    return 0.0


def vlc_setting(result: Any, name: str, default: str) -> str:
    """The value of the last line of vlcrc that has `name`, in a comment or not; OSWorld reads no further either."""
    if not isinstance(result, GuestFile):
        raise InvalidArtifact("there is no vlcrc")
    held = default
    for line in result.text.split("\n"):
        if name in line:
            held = line.split("=")[-1].strip()
    return held


def _vlc_metric(setting: str, default: str) -> Metric:
    key = "expected_" + setting.replace("-", "_")

    def metric(result: FileResult, rules: Rules, options: Options) -> float:
        wanted = rules[key]
        held = vlc_setting(result, f"{setting}=", default)
        return binary_score(held == (str(wanted) if isinstance(wanted, int) else wanted))

    metric.__doc__ = f"{{{key}}}: vlcrc's {setting}, {default} where it has none."
    return metric


def check_global_key_play_pause(result: FileResult, rules: Rules, options: Options) -> float:
    """{expected_global_key_play_pause}: 1 where vlcrc has a global key for playing and pausing, else 0."""
    wanted = rules["expected_global_key_play_pause"]
    held = "1" if vlc_setting(result, "global-key-play-pause=", "") else "0"
    return binary_score(held == (str(wanted) if isinstance(wanted, int) else wanted))


SLIDER_COLOURS = "153;210;153;20;210;20;255;199;15;245;39;29"
MAX_BLACKISH_VALUE = 100


def check_qt_slider_colours(result: FileResult, rules: Rules, options: Options) -> float:
    """{type: match, expected_qt_slider_colours} or {type: blackish}: the colours of VLC's volume slider."""
    held = vlc_setting(result, "qt-slider-colours", SLIDER_COLOURS)
    if rules["type"] == "match":
        return binary_score(held == rules["expected_qt_slider_colours"])
    try:
        values = [int(word) for word in held.split(";")]
    except ValueError:
        return 0.0
    return binary_score(all(value < MAX_BLACKISH_VALUE for value in values[: len(values) // 3 * 3]))


def check_play_and_exit(result: FileResult, rules: Rules, options: Options) -> float:
    """{expected_play_and_exit}: vlcrc's play-and-exit; a line that is missing or commented out means 0."""
    held = 0
    for line in file_text(result).splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() == "play-and-exit":
            try:
                held = int(value.strip())
            except ValueError as error:
                raise InvalidArtifact(f"play-and-exit is {value.strip()!r}") from error
    return binary_score(held == int(rules["expected_play_and_exit"]))


def is_utc_0(result: PrintedResult, expected: Any, options: Options) -> float:
    """The fourth line of what timedatectl prints ends with an offset of nothing."""
    if not isinstance(result, str):
        raise InvalidArtifact("there is no text")
    lines = result.split("\n")
    if len(lines) < 4:
        raise InvalidArtifact("timedatectl did not say which time zone it is")
    return binary_score(lines[3].endswith("+0000)"))


def check_gnome_favorite_apps(result: PrintedResult, rules: Rules, options: Options) -> float:
    """{expected: [...]}: the names in a list as gsettings prints it; read as a literal, never run."""
    if not isinstance(result, str):
        raise InvalidArtifact("there is no text")
    try:
        names = ast.literal_eval(result.strip())
        return binary_score(len(names) == len(rules["expected"]) and set(names) == set(rules["expected"]))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise InvalidArtifact(f"not a list of names: {type(error).__name__}") from error


def is_vlc_recordings_folder(result: FileResult, rules: Rules, options: Options) -> float:
    """{recording_file_path}: the first input-record-path of vlcrc that is not in a comment."""
    if not isinstance(result, GuestFile):
        raise InvalidArtifact("there is no vlcrc")
    for line in result.text.split("\n"):
        if not line.startswith("#") and "input-record-path" in line:
            return binary_score(line.split("=")[-1].strip() == rules["recording_file_path"])
    return 0.0


def check_font_size(result: ObjectResult, rules: Rules, options: Options) -> float:
    """{type: value, value} or {type: range, min, max}: Chrome's default font size, the ends of the range left out."""
    try:
        held = result["default_font_size"]
        return binary_score(held == rules["value"] if rules["type"] == "value" else rules["min"] < held < rules["max"])
    except (KeyError, TypeError, IndexError) as error:
        raise InvalidArtifact(f"the font size cannot be read: {type(error).__name__}") from error


def is_expected_bookmarks(result: ObjectResult, rules: Rules, options: Options) -> float:
    """{type, names or urls}: exactly these folders or pages on the bookmark bar, or in its folder Liked Authors, one of each choice."""
    if not result:
        return 0.0
    try:
        bar = result["bookmark_bar"]["children"]
        folders = [one for one in bar if one["type"] == "folder"]
        if rules["type"] == "bookmark_bar_folders_names":
            return binary_score({one["name"] for one in folders} == set(rules["names"]))
        if rules["type"] == "bookmark_bar_websites_urls":
            return binary_score({one["url"] for one in bar if one["type"] == "url"} == set(rules["urls"]))
        if rules["type"] != "liked_authors_websites_urls":
            raise ValueError(f"there are no bookmarks of type {rules['type']!r}")
        liked = next((one for one in folders if one["name"] == "Liked Authors"), None)
        if liked is None:
            return 0.0
        held = {one["url"] for one in liked["children"] if one["type"] == "url"}
    except (KeyError, TypeError) as error:
        raise InvalidArtifact(f"the bookmarks cannot be read: {type(error).__name__}") from error
    choices = [[url] if isinstance(url, str) else url for url in rules["urls"]]
    return binary_score(any(set(chosen) == held for chosen in itertools.product(*choices)))


REGISTRY_NAMESPACE = "{http://openoffice.org/2001/registry}"
SAVE_SETTINGS_PATH = "/org.openoffice.Office.Common/Save/Document"


def check_auto_saving_time(result: FileResult, rules: Rules, options: Options) -> float:
    """{minutes}: LibreOffice's interval of automatic saving in registrymodifications.xcu; 0 where it was never set."""
    if not isinstance(result, GuestFile):
        raise InvalidArtifact("there is no file")
    try:
        root = parse_xml(result.content, result.path)
    except ParseError:
        return 0.0
    held: str | None = None
    for item in root.findall(".//item"):
        if item.get(f"{REGISTRY_NAMESPACE}path") == SAVE_SETTINGS_PATH:
            for setting in item.findall(".//prop"):
                if setting.get(f"{REGISTRY_NAMESPACE}name") == "AutoSaveTimeIntervall":
                    value = setting.find(".//value")
                    if value is None:
                        raise InvalidArtifact("the interval has no value")
                    held = value.text
                    break
    if held is None:
        return 0.0
    try:
        return binary_score(int(held) == rules["minutes"])
    except ValueError as error:
        raise InvalidArtifact(f"the interval is {held!r}") from error


METRICS: Mapping[str, Metric] = {
    "check_line_number": check_line_number,
    "is_extension_installed": is_extension_installed,
    "check_json_keybindings": check_json_keybindings,
    "check_config_status": check_config_status,
    "check_qt_bgcone": _vlc_metric("qt-bgcone", "1"),
    "check_qt_max_volume": _vlc_metric("qt-max-volume", "125"),
    "check_qt_minimal_view": _vlc_metric("qt-minimal-view", "0"),
    "check_one_instance_when_started_from_file": _vlc_metric("one-instance-when-started-from-file", "1"),
    "check_global_key_play_pause": check_global_key_play_pause,
    "check_qt_slider_colours": check_qt_slider_colours,
    "check_play_and_exit": check_play_and_exit,
    "is_utc_0": is_utc_0,
    "check_gnome_favorite_apps": check_gnome_favorite_apps,
    "check_auto_saving_time": check_auto_saving_time,
    "is_vlc_recordings_folder": is_vlc_recordings_folder,
    "check_font_size": check_font_size,
    "is_expected_bookmarks": is_expected_bookmarks,
}
"""What has no other reading of ours."""

OSWORLD_EQUIVALENT_METRICS: Mapping[str, Metric] = {
    **METRICS,
    "exact_match": exact_match,
    "match_in_list": match_in_list,
    "is_in_list": is_in_list,
    "check_include_exclude": check_include_exclude,
    "file_contains": file_contains,
    "check_list": check_list,
    "compare_config": compare_config,
    "check_json_settings": check_json_settings,
}
OSWORLD_EQUIVALENT_GETTERS = frozenset(
    {
        "vm_file",
        "vm_command_line",
        "vm_command_error",
        "rule",
        "cache_file",
        "vlc_config",
        "gimp_config_file",
        "bookmarks",
    }
    | set(chrome.PREFERENCE_READERS)
)
"""Getters of ours that give these metrics what the official ones give theirs."""
