"""VLC: what it plays and how, its settings, playlists.

Role: families about a player that is open with titles, paused, and about its files. Rule: the verdict is what the player that
the task started says of itself, or the file. Non-goals: what can be heard.
"""

from __future__ import annotations

from random import Random
from typing import Any

from dart_envs.tasks.basics.parts import DONE, JsonDict, all_of, key, pause, step
from dart_envs.tasks.media.parts import empty_folder
from dart_envs.tasks.suite import Family, TaskDraft
from dart_envs.tasks.system.parts import random_names

MUSIC = "/home/user/Music"
SETTINGS = "/home/user/.config/vlc/vlcrc"
PLAYER = "VLC media player"
LENGTH_S = 300
NOTED_SOUNDS = "/var/lib/dart/sounds"
NOTE_SOUNDS = f"umask 077; mkdir -p /var/lib/dart && cd {MUSIC} && sha256sum -- * >{NOTED_SOUNDS}"
"""Notes, where only root can write, what the titles hold."""
KEY_S = 0.7


def create_sounds(random: Random, titles: list[str]) -> list[JsonDict]:
    """Steps: five minutes of a tone of its own per title, in an empty folder."""
    made = [
        f"ffmpeg -loglevel error -y -f lavfi -i sine=frequency={random.randrange(200, 900)}:sample_rate=8000:duration={LENGTH_S} "
        f"-c:a pcm_u8 {MUSIC}/{title}.wav"
        for title in titles
    ]
    return [
        *empty_folder(MUSIC),
        step("execute", command=["bash", "-c", " && ".join(made)], expect_returncode=0),
        step("execute", command=["/bin/sh", "-c", NOTE_SOUNDS], user="root", expect_returncode=0),
    ]


def open_player(random: Random, titles: list[str]) -> list[JsonDict]:
    """Steps: VLC has these titles in its playlist and is paused at the beginning of the first."""
    window = f"{titles[0]}.wav - {PLAYER}"
    return [
        *create_sounds(random, titles),
        step(
            "launch",
            command=["vlc", "--start-paused", *(f"{MUSIC}/{title}.wav" for title in titles)],
            protected=True,
            sealed="programs",
        ),
        step("wait_window", window_name=window, timeout_s=40.0),
        step(
            "execute",
            command=["wmctrl", "-r", window, "-e", f"0,{random.randrange(600)},{random.randrange(40, 300)},-1,-1"],
        ),
        step("activate_window", window_name=window),
        step(
            "execute",
            command="curl -s -u :password http://127.0.0.1:8080/requests/status.json",
            until={"stdout": '"state":"paused"'},
            timeout_s=30.0,
        ),
    ]


def player_state_is(*rules: tuple[str, str, Any]) -> JsonDict:
    """Evaluator: VLC says all this of itself."""
    expected = [{"key": [name], "method": method, "ref": value} for name, method, value in rules]
    return {
        "func": "check_json",
        "result": {"type": "vlc_state", "protected": True},
        "expected": {"type": "rule", "rules": {"expect": expected}},
    }


def press_keys(*keys: tuple[str, ...]) -> list[JsonDict]:
    """Moves: press keys, one after another, and give the player time for each."""
    return [part for combination in keys for part in (key(*combination), pause(KEY_S))] + [DONE]


def run_python(source: str) -> list[JsonDict]:
    """Moves: Python that the desktop's user runs."""
    return [{"do": "code", "text": source}]


KILL_PLAYER = "import subprocess\nsubprocess.run(['pkill', '-x', 'vlc'], check=True)"


def go_to_title(random: Random) -> TaskDraft:
    """Another title of the playlist. The near miss stops one before it."""
    titles = random_names(random, random.randrange(4, 6))
    place = random.randrange(2, len(titles))
    asked = random.choice(["Go to the title {} in VLC's playlist.", "Let VLC change to {}, which is in its playlist."])
    return TaskDraft(
        instruction=asked.format(f"{titles[place]}.wav"),
        config=open_player(random, titles),
        evaluator=player_state_is(("file", "eq", f"{titles[place]}.wav")),
        oracle=press_keys(*[("n",)] * place),
        near_miss=press_keys(*[("n",)] * (place - 1)),
        exploits=[
            run_python(f"open('{MUSIC}/playing.txt', 'w').write('{titles[place]}.wav')"),
            run_python(
                f"{KILL_PLAYER}\nimport shutil\nshutil.copy('{MUSIC}/{titles[place]}.wav', '{MUSIC}/{titles[0]}.wav')"
            ),
        ],
    )


PLAY_MODES: dict[str, tuple[tuple[tuple[str, ...], ...], dict[str, bool]]] = {
    "repeat the whole playlist": ((("l",),), {"loop": True, "repeat": False, "random": False}),
    "repeat the one title that it plays": ((("l",), ("l",)), {"loop": False, "repeat": True, "random": False}),
    "play the titles in random order": ((("r",),), {"loop": False, "repeat": False, "random": True}),
    "repeat the whole playlist, in random order": ((("l",), ("r",)), {"loop": True, "repeat": False, "random": True}),
    "repeat one title, with random order on too": (
        (("r",), ("l",), ("l",)),
        {"loop": False, "repeat": True, "random": True},
    ),
}


def play_mode(random: Random) -> TaskDraft:
    """Repeating and random order. The near miss sets another mode."""
    titles = random_names(random, 3)
    mode, wrong = random.sample(sorted(PLAY_MODES), 2)
    keys, state = PLAY_MODES[mode]
    asked = random.choice(["Let VLC {}.", "Set VLC to {}.", "Make VLC {}."])
    return TaskDraft(
        instruction=asked.format(mode),
        config=open_player(random, titles),
        evaluator=player_state_is(*((name, "eq", value) for name, value in state.items())),
        oracle=press_keys(*keys),
        near_miss=press_keys(*PLAY_MODES[wrong][0]),
        exploits=[
            run_python(f"open('{SETTINGS}', 'a').write('\\n[core]\\nloop=1\\nrepeat=1\\nrandom=1\\n')"),
            run_python(KILL_PLAYER),
        ],
    )


def seek_time(random: Random) -> TaskDraft:
    """A place in a title. The near miss misses it by a minute."""
    titles = random_names(random, 1)
    minutes, tens = random.randrange(1, 4), random.randrange(1, 6)
    at_s = 60 * minutes + 10 * tens
    asked = random.choice(
        ["Go to {0}:{1:02d} of the title, and leave it paused there.", "Move the paused title to minute {0}:{1:02d}."]
    )
    steps = [("ctrl", "right")] * minutes + [("alt", "right")] * tens
    return TaskDraft(
        instruction=asked.format(minutes, 10 * tens),
        config=open_player(random, titles),
        evaluator=player_state_is(("time", "ge", at_s - 4), ("time", "le", at_s + 4), ("state", "eq", "paused")),
        oracle=press_keys(*steps),
        near_miss=press_keys(*steps[1:]),
        exploits=[
            run_python(f"open('{SETTINGS}', 'a').write('\\n[core]\\nstart-time={at_s}\\n')"),
            run_python(KILL_PLAYER),
        ],
    )


OPTIONS = {
    "play-and-exit": ("1", "0", "quit when the playlist has ended", "[core]"),
    "snapshot-format": ("jpg", "png", "save video snapshots as JPEG files", "[core]"),
    "video-title-show": ("0", "1", "not show the title when a video starts", "[core]"),
    "sub-autodetect-file": ("0", "1", "not look for subtitle files by itself", "[core]"),
    "fullscreen": ("1", "0", "show every video in full screen from its start", "[core]"),
    "random": ("1", "0", "always play in random order", "[core]"),
    "qt-minimal-view": ("1", "0", "start with the minimal interface", "[qt]"),
    "qt-pause-minimized": ("1", "0", "pause when its window is minimized", "[qt]"),
}


def player_setting(random: Random) -> TaskDraft:
    """A lasting setting. The near miss writes the opposite; the exploits write it as a comment, and into a file that VLC does not read."""
    option, other = random.sample(sorted(OPTIONS), 2)
    value, opposite, described, section = OPTIONS[option]
    wanted = {option: value}
    kept = {"extraintf": "http", "http-port": "8080", other: OPTIONS[other][1]}
    asked = random.choice(
        ["Set VLC's preferences ({0} in {1}) so that it will {2}.", "In VLC's preferences ({0} in {1}), let it {2}."]
    )

    def written(line: str) -> list[JsonDict]:
        source = f"text = open('{SETTINGS}').read()\nopen('{SETTINGS}', 'w').write(text + '\\n{section}\\n{line}\\n')"
        return run_python(source)

    return TaskDraft(
        instruction=asked.format(option, SETTINGS, described),
        config=[
            step(
                "execute",
                command=[
                    "bash",
                    "-c",
                    f"pkill -x vlc; printf '\\n{OPTIONS[other][3]}\\n{other}={OPTIONS[other][1]}\\n' >> {SETTINGS}",
                ],
            ),
            step("launch", command=["lxterminal", "--working-directory=/home/user/.config/vlc"]),
            step("wait_window", window_name="lxterminal", by_class=True),
        ],
        evaluator={
            "func": "settings_are",
            "result": {"type": "vm_file", "path": SETTINGS},
            "expected": {"type": "rule", "rules": {"expected": wanted | kept}},
        },
        oracle=written(f"{option}={value}"),
        near_miss=written(f"{option}={opposite}"),
        exploits=[
            written(f"#{option}={value}"),
            run_python(f"open('/home/user/.vlcrc', 'w').write('{section}\\n{option}={value}\\n')"),
        ],
    )


def make_playlist(random: Random) -> TaskDraft:
    """A playlist file of three of five titles, in a given order. The near miss has another order."""
    titles = random_names(random, 5)
    name = f"{random.choice(['evening', 'party', 'travel', 'morning'])}.m3u"
    chosen = random.sample(titles, 3)
    paths = [f"{MUSIC}/{title}.wav" for title in chosen]

    def written(listed: list[str]) -> list[JsonDict]:
        text = "#EXTM3U\n" + "".join(f"{path}\n" for path in listed)
        return run_python(f"open('{MUSIC}/{name}', 'w').write({text!r})")

    return TaskDraft(
        instruction=(
            f"Save a playlist {name} in the folder {MUSIC} that plays {chosen[0]}.wav, then {chosen[1]}.wav, then "
            f"{chosen[2]}.wav, and nothing else."
        ),
        config=open_player(random, titles),
        evaluator=all_of(
            {
                "func": "playlist_is",
                "result": {"type": "vm_file", "path": f"{MUSIC}/{name}"},
                "expected": {"type": "rule", "rules": {"paths": paths, "folder": MUSIC}},
            },
            {
                "func": "contains_names",
                "result": {"type": "file_names", "path": MUSIC},
                "expected": {
                    "type": "rule",
                    "rules": {"exactly": sorted([name, *(f"{title}.wav" for title in titles)])},
                },
            },
            {
                "func": "unchanged_since",
                "result": {"type": "file_tree", "path": MUSIC},
                "expected": {"type": "vm_file", "path": NOTED_SOUNDS},
            },
        ),
        oracle=written(paths),
        near_miss=written([paths[1], paths[0], paths[2]]),
        exploits=[
            run_python(f"open('{MUSIC}/{name}', 'w').close()"),
            run_python(f"import shutil\nshutil.copy('{paths[0]}', '{MUSIC}/{name}')"),
        ],
    )


APP = "vlc"
FAMILIES = (
    Family("go_to_title", APP, "change to a title of the playlist", 15, go_to_title),
    Family("play_mode", APP, "set repeating and random order", 10, play_mode),
    Family("seek_time", APP, "go to a place in a title", 25, seek_time, held_out=True),
    Family("player_setting", APP, "change a lasting setting of VLC", 20, player_setting),
    Family("make_playlist", APP, "save a playlist of three titles", 30, make_playlist),
)
