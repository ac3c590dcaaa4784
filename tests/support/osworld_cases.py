"""Cases for metrics that ours and OSWorld's scorer both have: some by hand with their verdict, and as many as wanted by seed.

Role: `BY_HAND` for unit tests, `generated` for the comparison of the two scorers. Rule: a case is (metric, result, rules), a result a
text, a value, or a `GuestFile`; generated ones lie close to the line between pass and fail, and some are broken. Non-goals: running any.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from dart_envs.evaluators.artifacts import GuestFile

Case = tuple[str, Any, Any]
LINES_OF_TIMEDATECTL = (
    "Local time: Thu\n Universal time: Thu\n RTC time: Thu\n Time zone: {}\nSystem clock synchronized: yes"
)
REGISTRY = (
    '<?xml version="1.0"?><oor:items xmlns:oor="http://openoffice.org/2001/registry"><item oor:path="{path}">'
    '<prop oor:name="{name}" oor:op="fuse"><value>{value}</value></prop></item></oor:items>'
)
SAVING = "/org.openoffice.Office.Common/Save/Document"


def file(content: bytes | str) -> GuestFile:
    return GuestFile("/f", content.encode() if isinstance(content, str) else content)


def registry(value: str, path: str = SAVING, name: str = "AutoSaveTimeIntervall") -> GuestFile:
    return file(REGISTRY.format(path=path, name=name, value=value))


VLC = {
    "check_qt_bgcone": ("qt-bgcone", "1"),
    "check_qt_max_volume": ("qt-max-volume", "125"),
    "check_qt_minimal_view": ("qt-minimal-view", "0"),
    "check_one_instance_when_started_from_file": ("one-instance-when-started-from-file", "1"),
}


def vlc_rules(setting: str, value: Any) -> dict[str, Any]:
    return {"expected_" + setting.replace("-", "_"): value}


def bar(*children: tuple[str, str]) -> dict[str, Any]:
    """Bookmarks as Chrome keeps them: kind and name (of a page: its address, too) of what is on the bar."""
    return {
        "bookmark_bar": {
            "children": [{"type": kind, "name": name, "url": name, "children": []} for kind, name in children]
        }
    }


BY_HAND: list[tuple[str, Any, Any, dict[str, Any], float]] = [
    ("check_line_number", file("a 10:59:59\nb\nc 23:00:60"), {"expected": "2"}, {}, 1),
    ("check_line_number", file("24:00:00\n"), {"expected": 1}, {}, 0),
    ("is_extension_installed", "a.b\nc.d\n", {"type": "contain", "expected": "c.d"}, {}, 1),
    ("is_extension_installed", "a.b", {"type": "not_contain", "expected": "a.b"}, {}, 0),
    ("check_json_keybindings", file('// keys\n[{"key": "a"}]'), {"expected": {"key": "a"}}, {}, 1),
    ("check_json_keybindings", file('[{"key": "a", "when": "b"}]'), {"expected": {"key": "a"}}, {}, 0),
    (
        "check_config_status",
        file("# c\n(theme-name\tDark)\n(theme Light)\n"),
        {"key": "theme", "value": "Light"},
        {},
        1,
    ),
    ("check_config_status", file("(hidden no)\n"), {"key": ["hidden", "yes"], "value": "no"}, {}, 0),
    *((func, file(f"{name}=7\n"), vlc_rules(name, 7), {}, 1.0) for func, (name, _) in VLC.items()),
    *((func, file("other=7\n"), vlc_rules(name, 7), {}, 0.0) for func, (name, _) in VLC.items()),
    *((func, file("other=7\n"), vlc_rules(name, default), {}, 1.0) for func, (name, default) in VLC.items()),
    ("check_global_key_play_pause", file("global-key-play-pause=Ctrl+p"), {"expected_global_key_play_pause": 1}, {}, 1),
    ("check_global_key_play_pause", file("#global-key-play-pause="), {"expected_global_key_play_pause": 1}, {}, 0),
    ("check_qt_slider_colours", file("qt-slider-colours=99;0;0;1;2;3\n"), {"type": "blackish"}, {}, 1),
    ("check_qt_slider_colours", file(""), {"type": "blackish"}, {}, 0),
    ("check_play_and_exit", file("#play-and-exit=1\n"), {"expected_play_and_exit": 0}, {}, 1),
    ("check_play_and_exit", file("play-and-exit=1\n"), {"expected_play_and_exit": 0}, {}, 0),
    ("is_utc_0", LINES_OF_TIMEDATECTL.format("Etc/UTC (UTC, +0000)"), None, {}, 1),
    ("is_utc_0", LINES_OF_TIMEDATECTL.format("Europe/Rome (CET, +0100)"), None, {}, 0),
    ("check_gnome_favorite_apps", "['b.desktop', 'a.desktop']\n", {"expected": ["a.desktop", "b.desktop"]}, {}, 1),
    ("check_gnome_favorite_apps", "['a.desktop']\n", {"expected": ["a.desktop", "b.desktop"]}, {}, 0),
    ("check_auto_saving_time", registry("3"), {"minutes": 3}, {}, 1),
    ("check_auto_saving_time", registry("3", name="AutoSave"), {"minutes": 3}, {}, 0),
    (
        "is_vlc_recordings_folder",
        file("#input-record-path=/b\ninput-record-path=/a \n"),
        {"recording_file_path": "/a"},
        {},
        1,
    ),
    ("is_vlc_recordings_folder", file("#input-record-path=/a\n"), {"recording_file_path": "/a"}, {}, 0),
    ("check_font_size", {"default_font_size": 20}, {"type": "range", "min": 16, "max": 99}, {}, 1),
    ("check_font_size", {"default_font_size": 16}, {"type": "range", "min": 16, "max": 99}, {}, 0),
    ("is_expected_bookmarks", bar(("folder", "A")), {"type": "bookmark_bar_folders_names", "names": ["A"]}, {}, 1),
    ("is_expected_bookmarks", bar(("url", "A")), {"type": "bookmark_bar_folders_names", "names": ["A"]}, {}, 0),
]
"""(metric, result, rules, options, verdict)"""


def _text(draw: random.Random) -> str:
    parts = ["one", "two ", "Three", "\n", "\r\n", "10:20:30", "1.2.3.4", "=", " ", "", "ünï", "[", "a.b"]
    return "".join(draw.choice(parts) for _ in range(draw.randrange(6)))


def _broken(draw: random.Random, whole: GuestFile) -> GuestFile | None:
    """The file, or now and then what an agent may have made of it."""
    return draw.choice(
        [whole] * 8 + [None, file(b"\xff\xfe\x00"), file(whole.content[: len(whole.content) // 2]), file("")]
    )


def _value(draw: random.Random) -> Any:
    return draw.choice([0, 1, True, None, "a", "", 1.0, [1], {"a": 1}, "1"])


def _object(draw: random.Random) -> dict[str, Any]:
    return {draw.choice(["a", "b", "c d"]): _value(draw) for _ in range(draw.randrange(4))}


def _vlcrc(draw: random.Random, setting: str) -> GuestFile:
    values = ["0", "1", "7", "125", "", " 1 ", "x", "Ctrl+p", "0;0;0", "99;98;97;1;2;3", "1;2;3;255", "1;b"]
    lines = [f"{draw.choice(['', '#', 'my-', ' '])}{setting}={draw.choice(values)}" for _ in range(draw.randrange(4))]
    return file("\n".join([*lines, draw.choice(["", "other=1", setting])]))


def _with_vlc(setting: str) -> Callable[[random.Random], tuple[Any, Any]]:
    def make(draw: random.Random) -> tuple[Any, Any]:
        return _broken(draw, _vlcrc(draw, setting)), vlc_rules(setting, draw.choice([0, 1, "0", "1", "7", 125, "x"]))

    return make


def _slider(draw: random.Random) -> tuple[Any, Any]:
    rules = draw.choice([{"type": "blackish"}, {"type": "match", "expected_qt_slider_colours": "0;0;0"}])
    return _broken(draw, _vlcrc(draw, "qt-slider-colours")), rules


def _lists(draw: random.Random) -> tuple[Any, Any]:
    patterns = ["^one", "two", r"\d+:\d+", "$", "^$", "e.", r"a\.b"]
    rules = {
        key: draw.sample(patterns, draw.randrange(3)) for key in draw.sample(["expect", "unexpect"], draw.randrange(3))
    }
    return _broken(draw, file(_text(draw) + "\n" + _text(draw))), rules


def _gimp(draw: random.Random) -> tuple[Any, Any]:
    words = ["theme", "dark", "(theme", "yes)", '"a b"', "no", "hidden"]
    lines = [" ".join(draw.choice(words) for _ in range(draw.randrange(1, 4))) for _ in range(draw.randrange(5))]
    rules = {"key": draw.choice(["theme", ["theme", "dark"], "hidden"]), "value": draw.choice(["yes", "dark", "no"])}
    return _broken(draw, file("# c\n\n" + "\n".join(lines) + "\n")), rules


def _apps(draw: random.Random) -> tuple[Any, Any]:
    names = ["a.desktop", "b.desktop", "c.desktop"]
    held = [draw.choice(names) for _ in range(draw.randrange(4))]
    said = draw.choice([f"{held}\n", f"{held}", f"{held}"[:-1], "", "None", "[1, [2]]", "@as []"])
    return said, {"expected": draw.sample(names, draw.randrange(1, 4))}


def _registry(draw: random.Random) -> tuple[Any, Any]:
    made = registry(
        draw.choice(["3", "10", "", "x", " 3 "]),
        draw.choice([SAVING, SAVING, "/other"]),
        draw.choice(["AutoSaveTimeIntervall", "AutoSaveTimeIntervall", "AutoSave"]),
    )
    return _broken(draw, made), {"minutes": draw.choice([3, 10])}


def _keys(draw: random.Random) -> tuple[Any, Any]:
    wanted = _object(draw)
    listed = [draw.choice([wanted, _object(draw)]) for _ in range(draw.randrange(4))]
    bindings = json.dumps(listed)
    return _broken(draw, file(draw.choice(["", "// keys\n", "\n"]) + draw.choice([bindings, bindings, "{}", "3"]))), {
        "expected": _object(draw)
    }


def _zone(draw: random.Random) -> tuple[Any, Any]:
    said = LINES_OF_TIMEDATECTL.format(draw.choice(["UTC (UTC, +0000)", "Rome (CET, +0100)", "UTC (UTC, +0000) "]))
    return draw.choice([said, said.partition("\n")[2], "", said[:40], None]), None


def _bookmarks(draw: random.Random) -> tuple[Any, Any]:
    kinds = [("folder", "A"), ("folder", "Liked Authors"), ("url", "https://a"), ("url", "https://b")]
    held = bar(*draw.sample(kinds, draw.randrange(len(kinds) + 1)))
    for one in held["bookmark_bar"]["children"]:
        one["children"] = bar(*draw.sample(kinds[2:], draw.randrange(3)))["bookmark_bar"]["children"]
    said = draw.choice([held] * 6 + [[], {}, {"bookmark_bar": {}}])
    urls = ["https://a", "https://b"]
    rules = [
        {"type": "bookmark_bar_folders_names", "names": draw.sample(["A", "Liked Authors"], draw.randrange(3))},
        {"type": "bookmark_bar_websites_urls", "urls": draw.sample(urls, draw.randrange(3))},
        {"type": "liked_authors_websites_urls", "urls": draw.choice([["https://a"], [urls], urls])},
    ]
    return said, draw.choice(rules)


def _font(draw: random.Random) -> tuple[Any, Any]:
    held = draw.choice(
        [{"default_font_size": draw.choice([13, 16, 17, 20, 24])}] * 5 + [{}, None, {"default_font_size": None}]
    )
    return held, draw.choice([{"type": "value", "value": 20}, {"type": "range", "min": 16, "max": 24}])


def profiles(kind: str, count: int, seed: int) -> list[bytes | None]:
    """Files that a getter of Chrome's profile may find, some of them broken."""
    draw = random.Random(f"{kind} {seed}")

    def made() -> Any:
        parts = {
            "default_search_provider_data": draw.choice(
                [{"template_url_data": {"short_name": "Bing"}}, {"template_url_data": {}}, None]
            ),
            "enable_do_not_track": draw.choice([True, False, None, 1]),
            "safebrowsing": draw.choice([{"enabled": True}, {"enhanced": True}, {"enabled": False}, [], None]),
            "profile": draw.choice(
                [{"name": "Thomas"}, {"name": "A", "default_content_setting_values": {"cookies": 4}}, {}, 3]
            ),
            "webkit": draw.choice([{"webprefs": {"default_font_size": 20}}, {}, "x"]),
            "session": draw.choice([{"restore_on_startup": 5}, {"restore_on_startup": 1}, {}, None]),
            "roots": draw.choice([bar(("folder", "A")), {}]),
        }
        return {name: parts[name] for name in draw.sample(sorted(parts), draw.randrange(len(parts) + 1))}

    def file_of() -> bytes | None:
        whole = json.dumps(made()).encode()
        return draw.choice([whole] * 8 + [None, b"", b"[]", b"\xff", whole[:-2], b"3"])

    return [file_of() for _ in range(count)]


GENERATORS: Mapping[str, Callable[[random.Random], tuple[Any, Any]]] = {
    "exact_match": lambda draw: (
        draw.choice([_text(draw), _value(draw)]),
        {"expected": draw.choice(["one", "", 1, "1", None, "a"])},
    ),
    "match_in_list": lambda draw: (
        draw.choice(["one", "two ", "", "One", None]),
        {"expected": draw.choice([["one", ""], "one two", ["two"]])},
    ),
    "is_in_list": lambda draw: (
        draw.choice([["one"], "one two", "", [], None, ["two "]]),
        {"expected": draw.choice(["one", "two "])},
    ),
    "check_include_exclude": lambda draw: (
        draw.choice([_text(draw), _text(draw), None]),
        {
            key: draw.sample(["one", "two", "10:", "ü", "="], draw.randrange(3))
            for key in draw.sample(["include", "exclude"], draw.randrange(3))
        },
    ),
    "file_contains": lambda draw: (
        _broken(draw, file(_text(draw))),
        {"expected": draw.sample(["one", "two", "\n"], draw.randrange(3))},
    ),
    "check_line_number": lambda draw: (
        _broken(
            draw,
            file(
                "\n".join(draw.choice(["10:20:30", "x", "29:00:00", "a 23:59:60b"]) for _ in range(draw.randrange(5)))
            ),
        ),
        {"expected": draw.choice(["1", 2, "0", 3])},
    ),
    "check_list": _lists,
    "compare_config": lambda draw: (
        _broken(draw, file(draw.choice(["k=1\n", "k=1", "k=1\r\n"]))),
        {"expected": draw.choice(["k=1\n", "k=1"])},
    ),
    "is_extension_installed": lambda draw: (
        draw.choice([_text(draw), "a.b\nc.d", None]),
        {"type": draw.choice(["contain", "not_contain"]), "expected": draw.choice(["a.b", "c.d", "one"])},
    ),
    "check_json_settings": lambda draw: (
        _broken(draw, file(draw.choice([json.dumps(_object(draw)), json.dumps(_value(draw))]))),
        {"expected": _object(draw)},
    ),
    "check_json_keybindings": _keys,
    "check_config_status": _gimp,
    **{func: _with_vlc(setting) for func, (setting, _) in VLC.items()},
    "check_global_key_play_pause": _with_vlc("global-key-play-pause"),
    "check_play_and_exit": lambda draw: (
        _broken(draw, _vlcrc(draw, "play-and-exit")),
        {"expected_play_and_exit": draw.choice([0, 1, "1"])},
    ),
    "check_qt_slider_colours": _slider,
    "is_utc_0": _zone,
    "check_gnome_favorite_apps": _apps,
    "check_auto_saving_time": _registry,
    "is_vlc_recordings_folder": lambda draw: (
        _broken(draw, file(_vlcrc(draw, "input-record-path").text.replace("7", "/a"))),
        {"recording_file_path": draw.choice(["/a", "1"])},
    ),
    "check_font_size": _font,
    "is_expected_bookmarks": _bookmarks,
}


def generated(func: str, count: int, seed: int) -> list[Case]:
    """`count` cases of one metric; the same for the same seed."""
    draw = random.Random(f"{func} {seed}")
    return [(func, *GENERATORS[func](draw)) for _ in range(count)]
