"""`dart-agent ground`: point at the screen, measure it, and make or convert data for it.

Role: the commands and their options. Rule: as `dart_agent.cli`; `ground IMAGE INSTRUCTION` is short for `ground point IMAGE INSTRUCTION`.
Non-goals: what the commands do (`dart_agent.grounding.commands`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dart_agent.exits import exit_on_error, parse_resolution
from dart_agent.grounding.answers import MAX_TARGETS
from dart_agent.grounding.commands import AUTO, RegionScoreOption, WeightsDtype
from dart_agent.grounding.datasets.formats import ReadableFormat, WritableFormat

POINT = "point"


class _PointByDefault(TyperGroup):
    """A group in which a command that is not named is `point`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [POINT, *args]
        return super().parse_args(ctx, args)


ground_app = typer.Typer(
    cls=_PointByDefault,
    help="Point at the screen: draw an answer, measure hit rates, convert and make data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Model = Annotated[str, typer.Option(help="directory or name of a model with an action head")]
VerifierModel = Annotated[str | None, typer.Option(help="directory or name of a model that judges candidates")]
Gamma = Annotated[
    float | None, typer.Option(min=0.0, max=1.0, help="verifier's score that ends the search; default: 0.8")
]
Zoom = Annotated[float | None, typer.Option(min=1.1, help="look again at a crop so many times smaller")]
Score = Annotated[RegionScoreOption, typer.Option(help="how the attention over a region becomes its score")]
Refuse = Annotated[bool, typer.Option("--refuse", help="let the model say that nothing fits")]
ResizeToPixels = Annotated[
    int | None, typer.Option(min=1, help="enlarge or shrink every image to this area before the model sees it")
]
Device = Annotated[str, typer.Option(help="torch device of the models, such as cuda:1; auto: a GPU where there is one")]
Dtype = Annotated[WeightsDtype, typer.Option(help="of the models' weights; auto: bfloat16 on a GPU, else float32")]
Data = Annotated[Path, typer.Argument(help="a file of samples, or the folder of a data set as its authors publish it")]
Format = Annotated[ReadableFormat, typer.Option("--format", help="of DATA; auto: told by the names of its files")]
K = Annotated[int, typer.Option("--k", min=1, help="answers that hit@k looks at, the first one included")]


@ground_app.command(POINT)
def point(
    image: Annotated[Path, typer.Argument(help="a screenshot")],
    instruction: Annotated[str, typer.Argument(help='what to point at, such as "click Save"')],
    model: Model,
    out: Annotated[Path, typer.Option(help="the picture to write")] = Path("ground.png"),
    targets: Annotated[int, typer.Option(min=1, max=MAX_TARGETS, help="1: a click, 2: a drag")] = 1,
    verifier: VerifierModel = None,
    gamma: Gamma = None,
    zoom: Zoom = None,
    score: Score = RegionScoreOption.MEAN,
    refuse: Refuse = False,
    resize_to_pixels: ResizeToPixels = None,
    device: Device = AUTO,
    dtype: Dtype = WeightsDtype.AUTO,
) -> None:
    """Point at what INSTRUCTION asks for on the screenshot IMAGE, and draw attention, regions and verifier scores."""
    from dart_agent.grounding.commands import draw, make_answerer, read_question

    with exit_on_error():
        pixels = read_question(image, instruction, out, targets)
        answerer = make_answerer(
            model,
            verifier=verifier,
            gamma=gamma,
            zoom=zoom,
            score=score,
            refuse=refuse,
            resize_to_pixels=resize_to_pixels,
            device=device,
            dtype=dtype,
        )
        typer.echo(draw(answerer, pixels, instruction, out, targets))


@ground_app.command("eval")
def evaluate(
    data: Data,
    model: Model,
    out: Annotated[Path | None, typer.Option(help="folder of result.json and of pictures of failures")] = None,
    format_name: Format = ReadableFormat.AUTO,
    k: K = 3,
    pictures: Annotated[int, typer.Option(min=0, help="most pictures of failures, with --out")] = 50,
    verifier: VerifierModel = None,
    gamma: Gamma = None,
    zoom: Zoom = None,
    score: Score = RegionScoreOption.MEAN,
    refuse: Refuse = False,
    resize_to_pixels: ResizeToPixels = None,
    device: Device = AUTO,
    dtype: Dtype = WeightsDtype.AUTO,
) -> None:
    """Measure hit@1 and hit@k on DATA by type, size and application, print them as JSON, and draw failures."""
    from dart_agent.grounding.commands import make_answerer, measure, open_dataset

    with exit_on_error(), open_dataset(data, format_name) as dataset:
        answerer = make_answerer(
            model,
            verifier=verifier,
            gamma=gamma,
            zoom=zoom,
            score=score,
            refuse=refuse,
            resize_to_pixels=resize_to_pixels,
            device=device,
            dtype=dtype,
        )
        typer.echo(measure(answerer, dataset, k, out, pictures))


@ground_app.command("score")
def score_answers(
    data: Data,
    answers: Annotated[
        Path, typer.Argument(help="JSON lines of sample_id, points ([]: refused, null: unreadable) and candidates")
    ],
    format_name: Format = ReadableFormat.AUTO,
    k: K = 1,
) -> None:
    """Score the answers of any model in the file ANSWERS on DATA as the authors of DATA do, and print JSON."""
    from dart_agent.grounding.commands import open_dataset, score_file

    with exit_on_error(), open_dataset(data, format_name) as dataset:
        typer.echo(score_file(dataset, answers, k))


@ground_app.command("convert")
def convert(
    data: Data,
    out: Annotated[Path, typer.Argument(help="a new folder")],
    to: Annotated[WritableFormat, typer.Option(help="format to write")] = WritableFormat.SAMPLES,
    format_name: Format = ReadableFormat.AUTO,
    split: Annotated[str, typer.Option(help="name of the split, for huggingface")] = "test",
    drop: Annotated[
        bool,
        typer.Option(
            "--drop", help="leave out what the format cannot hold, and records of training data that give no sample"
        ),
    ] = False,
) -> None:
    """Write DATA with its images into the folder OUT in another format."""
    from dart_agent.grounding.commands import open_dataset
    from dart_agent.grounding.datasets.formats import write_dataset

    with exit_on_error(), open_dataset(data, format_name, drop=drop) as dataset:
        written, left_out = write_dataset(out, dataset, to, split=split, drop=drop)
        typer.echo(f"{written} samples written to {out}" + (f", {left_out} left out" if left_out else ""))


@ground_app.command("show")
def show(
    data: Data,
    out: Annotated[Path, typer.Argument(help="a new folder")],
    count: Annotated[int, typer.Option(min=1, help="how many samples, evenly over DATA")] = 20,
    format_name: Format = ReadableFormat.AUTO,
) -> None:
    """Draw samples of DATA with their targets into the folder OUT, and all of them on one sheet."""
    from dart_agent.grounding.commands import draw_samples, open_dataset

    with exit_on_error(), open_dataset(data, format_name) as dataset:
        typer.echo(draw_samples(dataset, out, count))


@ground_app.command("generate")
def generate(
    out: Annotated[Path, typer.Argument(help="a new folder, or that of a call that did not finish")],
    image: Annotated[str, typer.Option(help="desktop image: desktop, or basic for a small benchmark")] = "desktop",
    seed: Annotated[int, typer.Option(help="chooses states, questions, splits and novel applications")] = 0,
    application: Annotated[list[str] | None, typer.Option(help="only this one; may be given again")] = None,
    states: Annotated[int, typer.Option(min=1, help="most screens of one application")] = 10,
    per_screen: Annotated[int, typer.Option(min=1, help="most questions about one screen")] = 24,
    least: Annotated[
        int | None, typer.Option(min=1, help="fail with fewer questions; default: 1000 for desktop, 100 for basic")
    ] = None,
    resolution: Annotated[str, typer.Option(help="WIDTHxHEIGHT of the screens")] = "1280x800",
    desktops: Annotated[int, typer.Option(min=1, help="live at once")] = 1,
    farm_url: Annotated[str | None, typer.Option(help="default: DART_FARM_URL, else the embedded farm")] = None,
) -> None:
    """Make the benchmark desktop-ground from live desktops: screens, and questions that the accessibility tree answers."""
    import asyncio
    import json
    import logging

    from dart_agent.grounding.desktop_ground.generate import GroundPlan, check_folder
    from dart_agent.grounding.desktop_ground.generate import generate as generate_benchmark

    logging.basicConfig(level=logging.WARNING)
    with exit_on_error():
        plan = GroundPlan(
            image=image,
            resolution=parse_resolution(resolution),
            seed=seed,
            applications=tuple(application or ()),
            states=states,
            per_screen=per_screen,
            least=least,
            desktops=desktops,
            farm_url=farm_url,
        )
        check_folder(out, plan)
        manifest = asyncio.run(generate_benchmark(plan, out, lambda line: typer.echo(line, err=True)))
        typer.echo(
            json.dumps({name: manifest[name] for name in ("samples", "by_split", "by_kind", "novel", "missing")})
        )
