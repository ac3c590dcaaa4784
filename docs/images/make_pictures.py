#!/usr/bin/env python3
"""Make the pictures of the documentation, each from something real.

`.venv/bin/python docs/images/make_pictures.py [NAME ...]`, on a host that runs live desktops, with Chromium and its driver
(`make test-browser` installs them). `dashboard`, `live-view`, `exploration`, `reset` and `fork` use desktops of a farm of their own.
`demo` and `beyond-demo` are drawn from `demo.json` and `beyond_demo.json` in `benchmarks/results`. `report` and `watch` show a finished run
(`--run FOLDER`); `training` looks at one that goes on, until it has ended. `attention` asks a model with an action head (`--model`) about a
screenshot (`--screen`, `--ask`).

Rule: a picture has at most 256 colours and `LIMIT_KIB`; a larger one is an error. Films have limits of their own (`films`), and show no
times, because the host may be busy.
Non-goals: how the pages look (`tests/browser`).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from films import Scene, save_film, sheet, with_caption
from live import PAGE_TIMEOUT_S, browser, farm, log_in, set_page_size, used_desktops, wait

from dart_train.evaluation.results import HELD_OUT, TRAINED

if TYPE_CHECKING:
    from PIL import Image
    from selenium.webdriver import Chrome

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = (["galculator"], ["mousepad", "/etc/os-release"], ["thunar", "/usr/share"], ["lxterminal"])
"""What is open on the leased desktops of the dashboard."""
SHOWN_S = 12.0
"""How long the page is open before its picture is taken."""
LIMIT_KIB = 200
COLUMNS = 110
DOCUMENT = "Dear customer,\n\nthank you for your letter of Monday.\n"
ANSWERS = ("We will send a new one.", "Please call us.", "The price is 42 EUR.", "It is on its way.")
"""What is typed into the document: by one desktop after another reset, or by each copy of a fork."""
TYPED_AT_ONCE = 4
"""Characters between two scenes of a film."""
LOOK_INTERVAL_S = 15.0
"""How often `training` looks at its run."""
TERMINAL_WIDTH_PX = 1100
FILM_WIDTH_PX = 780
ATTENTION_WIDTH_PX = 900
"""A smaller screen is enlarged by a whole number up to this width."""
EXPLORED_STEPS = 30
BEFORE, AFTER = "#b9c2d0", "#3b5bdb"
"""Colours of success before and after training."""


def dashboard(options: argparse.Namespace) -> None:
    """The dashboard while four desktops are in use."""
    with farm(len(PROGRAMS) + 1) as (url, key), used_desktops(url, key, PROGRAMS), browser(1366, 768) as driver:
        log_in(driver, url, key)
        time.sleep(SHOWN_S)
        _save(driver.get_screenshot_as_png(), "dashboard")


def live_view(options: argparse.Namespace) -> None:
    """The live view of one desktop, watched."""
    with farm(1) as (url, key), used_desktops(url, key, PROGRAMS[1:2]), browser(1366, 768) as driver:
        log_in(driver, url, key)
        wait(driver, ".tile:has(.chip.leased)").click()
        wait(driver, ".screen canvas")
        time.sleep(SHOWN_S)
        _save(driver.get_screenshot_as_png(), "live-view")


def report(options: argparse.Namespace) -> None:
    """The head of a run's report."""
    page = _needed(options.run, "--run") / "report" / "index.html"
    with browser(1100, 1100) as driver:
        driver.get(page.resolve().as_uri())
        _save(driver.get_screenshot_as_png(), "report")


def watch(options: argparse.Namespace) -> None:
    """What `dart-train watch` prints of a run."""
    run = _needed(options.run, "--run")
    printed = _watched(run)
    with browser(TERMINAL_WIDTH_PX, 800) as driver:
        _save(_terminal(driver, printed, f"dart-train watch {run.name} --once"), "watch")


def demo(options: argparse.Namespace) -> None:
    """Success before and after the demo, for each of its three seeds."""
    pyplot = _pyplot()
    runs = _figures("demo")["runs"]
    seeds = [name for name in sorted(runs) if name.startswith("seed-")]
    figure, axes = pyplot.subplots(figsize=(7.2, 2.6), dpi=150)
    for offset, key, color, label in (
        (-0.2, "before_percent", BEFORE, "after the warm start"),
        (0.2, "after_percent", AFTER, "after GRPO"),
    ):
        values = [runs[name][key] for name in seeds]
        bars = axes.bar([index + offset for index in range(len(seeds))], values, 0.38, color=color, label=label)
        axes.bar_label(bars, fmt="%.0f %%", fontsize=8, padding=2)
    axes.set_xticks(range(len(seeds)), [name.replace("-", " ") for name in seeds])
    axes.set_ylim(0, 112)
    axes.set_ylabel("success, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.22), ncols=2, fontsize=8)
    _save_figure(figure, "demo")


def beyond_demo(options: argparse.Namespace) -> None:
    """What the recipe of twelve families learns: the curve of its training, and each family of the test before and after it."""
    pyplot = _pyplot()
    found = _figures("beyond_demo")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.0, 3.2), dpi=150, width_ratios=[1, 2])
    points = found["curve"]
    left.plot([p["version"] for p in points], [p["macro_percent"] for p in points], "o-", color=AFTER, markersize=3)
    left.set_ylim(0, 105)
    left.set_xlabel("updates of GRPO")
    left.set_ylabel("mean over families, %")
    left.set_title("sampled rollouts of training", fontsize=9)
    gains = found["test"]
    rows = [name for name in gains if name not in {TRAINED, HELD_OUT}]
    for offset, key, color, label in (
        (-0.2, "before_percent", BEFORE, "after the warm start"),
        (0.2, "after_percent", AFTER, "after GRPO"),
    ):
        right.bar(
            [at + offset for at in range(len(rows))],
            [gains[name][key] for name in rows],
            0.38,
            color=color,
            label=label,
        )
    right.set_xticks(range(len(rows)), [name.replace("_", " ") for name in rows], rotation=45, ha="right", fontsize=7)
    right.set_ylim(0, 105)
    right.set_title("success on test tasks, %; the last two families are held out", fontsize=9)
    right.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.25), ncols=2, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7)
    _save_figure(figure, "beyond-demo")


def attention(options: argparse.Namespace) -> None:
    """Where a model with an action head looks when it is asked for something on a screen."""
    from PIL import Image

    screen, ask = _needed(options.screen, "--screen"), _needed(options.ask, "--ask")
    with tempfile.TemporaryDirectory(prefix="dart-pictures-") as folder:
        drawn = Path(folder) / "answer.png"
        command = [sys.executable, "-m", "dart_agent.cli", "ground", "point", str(screen), str(ask)]
        subprocess.run([*command, "--model", str(_needed(options.model, "--model")), "--out", str(drawn)], check=True)
        with Image.open(drawn) as picture:
            times = max(1, ATTENTION_WIDTH_PX // picture.width)
            larger = picture.convert("RGB").resize(
                (picture.width * times, picture.height * times), Image.Resampling.NEAREST
            )
            _save(_png(with_caption(larger, ask)), "attention")


def exploration(options: argparse.Namespace) -> None:
    """The page of an exploration of a live application: coverage and the graph of its screens."""
    with tempfile.TemporaryDirectory(prefix="dart-pictures-") as folder, farm(2) as (url, key):
        command = [
            sys.executable,
            "-m",
            "dart_agent.cli",
            "explore",
            "start",
            "--app",
            "galculator",
            "--out",
            f"{folder}/explored",
        ]
        command += ["--steps", str(EXPLORED_STEPS), "--desktops", "2", "--resolution", "960x600", "--farm-url", url]
        subprocess.run(command, env={**os.environ, "DART_API_KEY": key}, check=True)
        with browser(1100, 1000) as driver:
            driver.get((Path(folder) / "explored" / "explore.html").as_uri())
            wait(driver, "svg.graph")
            _save(driver.get_screenshot_as_png(), "exploration")


def reset(options: argparse.Namespace) -> None:
    """Film: work on a prepared desktop, a reset to its snapshot, and work again at the caret."""
    with farm(2) as (url, key), _prepared_desktop(url, key) as desktop:
        scenes = [_scene([desktop], "A prepared desktop: two programs, a document, the caret at its end", 2500)]
        prepared = desktop.snapshot()
        for text in _parts(ANSWERS[0]):
            scenes.append(_scene([desktop], "An episode changes it", 250, [text]))
        desktop.exec(["pkill", "galculator"])
        scenes.append(_scene([desktop], "The calculator is closed", 2000))
        desktop.restore(prepared)
        told = "A reset to the snapshot: programs, document and caret are back"
        scenes.append(_scene([desktop], told, 3500, marked=True))
        for text in _parts(ANSWERS[1]):
            scenes.append(_scene([desktop], "The next episode goes on at the caret", 250, [text]))
        scenes.append(_scene([desktop], "The next episode goes on at the caret", 2000))
        save_film(scenes, HERE / "reset.webp")


def fork(options: argparse.Namespace) -> None:
    """Film: one prepared desktop becomes four, and each of them goes its own way."""
    with farm(len(ANSWERS) + 1) as (url, key), _prepared_desktop(url, key) as desktop:
        scenes = [_scene([desktop, None, None, None], "One prepared desktop", 2500)]
        copies = desktop.fork(len(ANSWERS) - 1).leases
        with ExitStack() as leases:
            desktops = [desktop, *(leases.enter_context(copy) for copy in copies)]
            told = f"A fork: {len(copies)} copies with open windows, document and caret"
            scenes.append(_scene(desktops, told, 3500, marked=True))
            lines = [_parts(answer) for answer in ANSWERS]
            for number in range(max(map(len, lines))):
                texts = [line[number] if number < len(line) else "" for line in lines]
                scenes.append(_scene(desktops, "Each rollout of a group goes its own way", 250, texts))
            scenes.append(_scene(desktops, "Each rollout of a group goes its own way", 2500))
        save_film(scenes, HERE / "fork.webp")


def training(options: argparse.Namespace) -> None:
    """Film: what `dart-train watch` shows of a run that goes on, until the run has ended."""
    from PIL import Image

    run = _needed(options.run, "--run")
    looks: list[str] = []
    while not looks or not (run / "report" / "index.html").exists():
        try:
            looks.append(_watched(run))
        except subprocess.CalledProcessError as error:
            print(f"not yet: {error.stderr.strip()}", file=sys.stderr)
        time.sleep(LOOK_INTERVAL_S)
    looks.append(_watched(run))
    pictures: list[Image.Image] = []
    with browser(TERMINAL_WIDTH_PX, 900) as driver:
        for printed in looks:
            with Image.open(io.BytesIO(_terminal(driver, printed, f"dart-train watch {run.name}"))) as picture:
                size_wh = FILM_WIDTH_PX, round(picture.height * FILM_WIDTH_PX / picture.width)
                pictures.append(picture.convert("RGB").resize(size_wh, Image.Resampling.LANCZOS))
    highest = max(picture.height for picture in pictures)
    scenes = []
    for number, picture in enumerate(pictures):
        whole = Image.new("RGB", (FILM_WIDTH_PX, highest), "white")
        whole.paste(picture)
        scenes.append(Scene(whole, 3000 if number == len(pictures) - 1 else 500))
    save_film(scenes, HERE / "training.webp")


@contextmanager
def _prepared_desktop(url: str, key: str) -> Iterator[Any]:
    """A leased desktop with a calculator and a document that is being written."""
    from dart_envs import DesktopShape, FarmClient

    shape = DesktopShape(image="basic", resolution=(640, 400))
    with FarmClient.connect(url, key) as client, client.lease(shape) as desktop:
        for program in (["galculator"], ["mousepad"]):
            _open_window(desktop, program)
        _scene([desktop], "", 0, [DOCUMENT])
        yield desktop


def _open_window(desktop: Any, program: list[str]) -> None:
    """Start a program, and wait until it has a window and nothing is drawn any more."""
    from dart_server.wire import SettleSpec

    still = SettleSpec(quiet_ms=1000, cap_ms=10_000)
    before = desktop.step([], still).image
    desktop.exec(program, detach=True)
    deadline_s = time.monotonic() + PAGE_TIMEOUT_S
    while (desktop.step([], still).image != before).mean() < 0.05:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{program[0]} did not show a window on the desktop of the film.")


def _parts(text: str) -> list[str]:
    return [text[begin : begin + TYPED_AT_ONCE] for begin in range(0, len(text), TYPED_AT_ONCE)]


def _scene(
    desktops: Sequence[Any], caption: str, shown_ms: int, texts: Sequence[str] = (), *, marked: bool = False
) -> Scene:
    """Type a text on each desktop, and take the picture of all of them; None stands for a desktop that is not there yet."""
    from PIL import Image

    from dart_server.wire import FrameSpec, SettleSpec, TextEvent

    pictures: list[Image.Image | None] = []
    for number, desktop in enumerate(desktops):
        if desktop is None:
            pictures.append(None)
            continue
        typed = [TextEvent(text=texts[number])] if number < len(texts) and texts[number] else []
        frame = desktop.step(typed, SettleSpec(quiet_ms=150, cap_ms=3000), frame=FrameSpec(cursor=True))
        pictures.append(Image.fromarray(frame.image))
    whole = pictures[0] if len(pictures) == 1 else sheet(pictures, 2, (396, 248))
    assert whole is not None
    return Scene(with_caption(whole, caption, marked=marked), shown_ms)


def _watched(run: Path) -> str:
    """What `dart-train watch` prints of a run, in colour."""
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "dart_train.cli", "watch", str(run), "--once"]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def _terminal(driver: Chrome, printed: str, title: str) -> bytes:
    """The picture of a terminal that shows a text."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(printed.rstrip()))
    with tempfile.TemporaryDirectory(prefix="dart-pictures-") as folder:
        (Path(folder) / "watch.svg").write_text(console.export_svg(title=title), encoding="utf-8")
        page = Path(folder) / "watch.html"
        body = f'<body style="margin:0;overflow:hidden"><img id="drawn" src="watch.svg" width="{TERMINAL_WIDTH_PX}"></body>'
        page.write_text(body, encoding="utf-8")
        driver.get(page.as_uri())
        drawn = wait(driver, "#drawn")
        set_page_size(driver, TERMINAL_WIDTH_PX, drawn.size["height"])  # what is below the page is not in a picture
        return drawn.screenshot_as_png


def _save(png: bytes, name: str) -> None:
    """Write a picture with few colours. Raises SystemExit for one that is too large for the repository."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    path = HERE / f"{name}.png"
    small.save(path, optimize=True)
    size_kib = path.stat().st_size / 1024
    if size_kib > LIMIT_KIB:
        raise SystemExit(f"{path} has {size_kib:.0f} KiB, more than {LIMIT_KIB}: show less of the page.")
    print(f"{path}: {size_kib:.0f} KiB")


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _figures(benchmark: str) -> dict[str, Any]:
    """The figures of a recorded result."""
    recorded = ROOT / "benchmarks" / "results" / f"{benchmark}.json"
    figures: dict[str, Any] = json.loads(recorded.read_text(encoding="utf-8"))["figures"]
    return figures


def _save_figure(figure: Any, name: str) -> None:
    figure.tight_layout()
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    _save(drawn.getvalue(), name)


def _png(picture: Image.Image) -> bytes:
    drawn = io.BytesIO()
    picture.save(drawn, format="png")
    return drawn.getvalue()


def _needed(given: Any, option: str) -> Any:
    if given is None or (isinstance(given, Path) and not given.exists()):
        raise SystemExit(f"This picture needs {option}, and what it names must exist; `--help` says what it is.")
    return given


PICTURES: dict[str, Callable[[argparse.Namespace], None]] = {
    "dashboard": dashboard,
    "live-view": live_view,
    "demo": demo,
    "beyond-demo": beyond_demo,
    "report": report,
    "watch": watch,
    "attention": attention,
    "exploration": exploration,
    "reset": reset,
    "fork": fork,
    "training": training,
}


def main() -> None:
    """Make the pictures that are named, or all."""
    parser = argparse.ArgumentParser(description="Make the pictures of the documentation.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(PICTURES)}; default: all")
    parser.add_argument(
        "--run", type=Path, help="folder of a finished run, for report and watch; of a run that goes on, for training"
    )
    parser.add_argument("--model", type=Path, help="directory of a model with an action head, for attention")
    parser.add_argument("--screen", type=Path, help="a screenshot, for attention")
    parser.add_argument("--ask", help="what the model is asked to point at, for attention")
    options = parser.parse_args()
    for name in options.names:
        if name not in PICTURES:
            parser.error(f"there is no picture {name!r}; choose from {', '.join(PICTURES)}")
    for name in options.names or PICTURES:
        PICTURES[name](options)


if __name__ == "__main__":
    main()
