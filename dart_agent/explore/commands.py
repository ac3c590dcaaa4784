"""`dart-agent explore`: explore an application, go on with it, look at it, and make grounding samples of it.

Role: the commands `start`, `resume`, `page` and `queries`. Rule: as `dart_agent.cli`: a mistake is one sentence and exit code 2 before
anything starts; SQLAlchemy is imported by the command that runs. Non-goals: the loop (`dart_agent.explore.explorer`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from dart_agent.errors import ConfigError
from dart_agent.exits import exit_on_error, parse_resolution
from dart_agent.explore.candidates import ALWAYS_AVOIDED
from dart_agent.explore.options import ExploringOptions, ModelOptions, StoreOptions, share_options
from dart_agent.explore.settings import ChooserName, ExploreSettings
from dart_agent.strict_model import format_validation_error
from dart_envs.clock import SYSTEM_CLOCK
from dart_server.wire import DesktopShape

if TYPE_CHECKING:
    from dart_agent.chat_api.endpoint_policy import EndpointSettings
    from dart_agent.explore.choosers import Chooser
    from dart_agent.explore.desktops.base import ExplorableDesktop
    from dart_agent.explore.graph import ExplorationGraph
    from dart_agent.explore.store import ExploreStore
    from dart_agent.types import Policy

PAGE_FILE = "explore.html"
SIMULATED = "simulated/"
explore_app = typer.Typer(help="Explore applications on their own, and make grounding samples.", no_args_is_help=True)


@explore_app.command()
@share_options
def start(
    app: Annotated[
        str, typer.Option(help="command that starts the application, or simulated/SEED for a simulated one")
    ],
    out: Annotated[Path, typer.Option(help="folder of the exploration")],
    options: ExploringOptions,
    seed: Annotated[int, typer.Option(help="of all random numbers")] = 0,
    snapshots: Annotated[bool, typer.Option(help="return to screens by snapshots, or walk from the start")] = True,
    vision: Annotated[
        str | None, typer.Option(help="candidates from pixels alone: never, beside_tree, without_tree (default), only")
    ] = None,
    text: Annotated[str | None, typer.Option(help="what is typed into entries")] = None,
    avoid: Annotated[
        list[str] | None,
        typer.Option(
            help="regular expression: elements whose name holds it are never touched; may be given several times"
        ),
    ] = None,
    also_application: Annotated[
        list[str] | None,
        typer.Option(help="window class that belongs to the application, too; may be given several times"),
    ] = None,
    resolution: Annotated[str, typer.Option(help="WIDTHxHEIGHT of the desktop")] = "1280x800",
    image: Annotated[str, typer.Option(help="desktop image")] = "basic",
) -> None:
    """Begin an exploration, and explore until a bound is reached."""
    with exit_on_error(), _needs_extra():
        from dart_agent.explore.storage.locks import hold_folder
        from dart_agent.explore.storage.tables import make_engine
        from dart_agent.explore.store import ExploreStore

        if options.database_url is not None:
            make_engine(options.database_url)
        avoided = (*ALWAYS_AVOIDED, *avoid) if avoid else None
        candidates = _given(vision=vision, text=text, avoid=avoided)
        settings = _settings(
            _given(
                **options.settings,
                app=app,
                seed=seed,
                snapshots=snapshots,
                image=image,
                resolution=parse_resolution(resolution),
                applications=also_application or None,
                candidates=candidates or None,
            )
        )
        _check_app(settings)
        endpoint = _endpoint(settings, options)
        with hold_folder(out), ExploreStore.create(out, settings, options.database_url) as store:
            _explore(store, settings, endpoint, options)


@explore_app.command()
@share_options
def resume(out: Annotated[Path, typer.Argument(help="folder of the exploration")], options: ExploringOptions) -> None:
    """Go on with an exploration that was stopped, was killed, or has reached a bound."""
    with exit_on_error(), _needs_extra():
        from dart_agent.explore.storage.locks import hold_folder
        from dart_agent.explore.store import ExploreStore

        ExploreStore.check_exists(out, options.database_url)
        with hold_folder(out), ExploreStore.open(out, options.database_url, hold=True) as store:
            settings = _settings(store.settings.model_dump() | _given(**options.settings))
            endpoint = _endpoint(settings, options)
            store.change_settings(settings)
            _explore(store, settings, endpoint, options)


@explore_app.command()
@share_options
def page(
    out: Annotated[Path, typer.Argument(help="folder of the exploration")],
    options: StoreOptions,
    to: Annotated[Path | None, typer.Option(help="the page; default: explore.html in the folder")] = None,
) -> None:
    """Write screens, edges and coverage as a web page."""
    with exit_on_error(), _needs_extra():
        from dart_agent.explore.store import ExploreStore

        with ExploreStore.open(out, options.database_url) as store:
            store.stop_at_newest()
            typer.echo(f"the page is {_write_page(store, store.load_graph(), to)}")


@explore_app.command()
@share_options
def queries(
    out: Annotated[Path, typer.Argument(help="folder of the exploration")],
    to: Annotated[Path, typer.Option(help="folder for train.jsonl, validation.jsonl, test.jsonl and their images")],
    options: ModelOptions,
) -> None:
    """Write grounding samples: by rules, or by a model where one is given."""
    with exit_on_error(), _needs_extra():
        from dart_agent.explore.queries.rules import write_queries
        from dart_agent.explore.store import ExploreStore

        endpoint = _parse_endpoint(options.base_url, options) if options.base_url else None
        with ExploreStore.open(out, options.database_url) as store:
            store.stop_at_newest()
            written = (
                None if endpoint is None else asyncio.run(_ask_for_queries(store, endpoint, options.model_timeout))
            )
            counts = write_queries(store, to, written)
        typer.echo(f"{to}: " + ", ".join(f"{count} {split}" for split, count in counts.items()))


def _explore(
    store: ExploreStore,
    settings: ExploreSettings,
    endpoint: EndpointSettings | None,
    options: ExploringOptions,
) -> None:
    from dart_agent.component_process import run_until_signal

    logging.basicConfig(level=logging.WARNING)
    graph = store.load_graph()
    code = asyncio.run(run_until_signal(_run(store, graph, settings, endpoint, options)))
    tried, everything = graph.count_candidates()
    typer.echo(f"{store.last_step()} steps, {len(graph.screens)} screens, {tried} of {everything} candidates tried")
    if graph.screens:
        typer.echo(f"the page is {_write_page(store, graph, None)}")
    raise typer.Exit(code)


async def _run(
    store: ExploreStore,
    graph: ExplorationGraph,
    settings: ExploreSettings,
    endpoint: EndpointSettings | None,
    options: ExploringOptions,
) -> None:
    from dart_agent.explore.explorer import Explorer

    async with (
        _open_model(endpoint) as model,
        _open_desktop(store, settings, options.farm_url) as (desktop, forget_root),
    ):
        chooser = _make_chooser(settings.chooser, model, options.model_timeout)
        explorer = Explorer(store, chooser, settings, typer.echo, graph=graph)
        await explorer.run(desktop)
        if not options.keep_snapshots:
            await explorer.discard_snapshots(desktop)
            await forget_root()


def _make_chooser(name: ChooserName, model: Policy | None, timeout_s: float) -> Chooser:
    from dart_agent.explore.choosers import BreadthFirstChooser, GreatestQChooser, RandomChooser
    from dart_agent.explore.model_chooser import ModelChooser

    if name.needs_model:
        assert model is not None
        return ModelChooser(model, use_q=name is ChooserName.QICRL, timeout_s=timeout_s)
    plain: dict[ChooserName, Callable[[], Chooser]] = {
        ChooserName.GREATEST_Q: GreatestQChooser,
        ChooserName.BREADTH_FIRST: BreadthFirstChooser,
        ChooserName.RANDOM: RandomChooser,
    }
    return plain[name]()


@contextlib.asynccontextmanager
async def _open_model(endpoint: EndpointSettings | None) -> AsyncIterator[Policy | None]:
    if endpoint is None:
        yield None
        return
    from dart_agent.chat_api.endpoint_policy import EndpointPolicy

    async with EndpointPolicy(endpoint, clock=SYSTEM_CLOCK) as policy:
        yield policy


@contextlib.asynccontextmanager
async def _open_desktop(
    store: ExploreStore, settings: ExploreSettings, farm_url: str | None
) -> AsyncIterator[tuple[ExplorableDesktop, Callable[[], Awaitable[None]]]]:
    """The first desktop, and what deletes its root snapshot."""
    if settings.app.startswith(SIMULATED):
        from dart_agent.explore.desktops.simulated import SimulatedApplication, SimulatedDesktop

        simulated = SimulatedDesktop(SimulatedApplication(int(settings.app.removeprefix(SIMULATED))))
        yield simulated, simulated.aclose
        return
    from dart_agent.explore.desktops.farm import FarmDesktop
    from dart_envs.farm.client import AsyncFarmClient

    shape = DesktopShape(image=settings.image, resolution=settings.resolution)
    async with await AsyncFarmClient.connect(farm_url) as farm:
        desktop = await FarmDesktop.start(
            farm, settings.app, shape, root=store.root_snapshot, note_root=store.set_root_snapshot
        )

        async def forget_root() -> None:
            await desktop.discard_root()
            store.set_root_snapshot(None)

        yield desktop, forget_root


async def _ask_for_queries(store: ExploreStore, endpoint: EndpointSettings, timeout_s: float) -> list[Any]:
    from dart_agent.explore.queries.model import model_queries
    from dart_agent.explore.queries.transitions import element_transitions, stored_regions

    transitions = element_transitions(store.screens(), store.steps(), stored_regions(store))
    async with _open_model(endpoint) as model:
        assert model is not None
        written, faults = await model_queries(store, transitions, model, timeout_s=timeout_s)
    typer.echo(
        f"{len(transitions)} elements, {faults} of them described by rules because the model gave no usable answer"
    )
    return written


def _write_page(store: ExploreStore, graph: ExplorationGraph, to: Path | None) -> Path:
    from dart_agent.explore.page import to_html

    path = to or store.out / PAGE_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_html(store, graph), encoding="utf-8")
    return path


def _settings(values: dict[str, Any]) -> ExploreSettings:
    try:
        return ExploreSettings.model_validate(values)
    except ValidationError as error:
        raise ConfigError(format_validation_error(error)) from None


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _check_app(settings: ExploreSettings) -> None:
    try:
        command = shlex.split(settings.app)
    except ValueError as error:
        raise ConfigError(f"--app: {settings.app!r} is no command: {error}") from None
    if not command:
        raise ConfigError("--app: the command is blank")
    if settings.app.startswith(SIMULATED) and not settings.app.removeprefix(SIMULATED).isdecimal():
        raise ConfigError(
            f"--app: a simulated application is simulated/SEED, such as simulated/3, not {settings.app!r}"
        )


def _endpoint(settings: ExploreSettings, options: ModelOptions) -> EndpointSettings | None:
    if not settings.chooser.needs_model:
        if options.base_url is not None or options.api_key_variable is not None:
            raise ConfigError("--base-url and --api-key-variable are for --chooser qicrl and --chooser model")
        return None
    if options.base_url is None:
        raise ConfigError(f"--chooser {settings.chooser} needs --base-url and --model-name")
    return _parse_endpoint(options.base_url, options)


def _parse_endpoint(base_url: str, options: ModelOptions) -> EndpointSettings:
    """An endpoint that is asked twice at most, within the wait for an answer: a model at fault costs a step, not minutes."""
    from dart_agent.chat_api.endpoint_policy import EndpointSettings

    if options.model_name is None:
        raise ConfigError("--base-url needs --model-name, too")
    try:
        endpoint = EndpointSettings(
            base_url=base_url,
            model=options.model_name,
            api_key_variable=options.api_key_variable,
            attempt_timeout_s=options.model_timeout,
            deadline_s=options.model_timeout,
            max_attempts=2,
        )
    except ValidationError as error:
        raise ConfigError(f"--base-url: {format_validation_error(error)}") from error
    endpoint.read_key()
    return endpoint


@contextlib.contextmanager
def _needs_extra() -> Any:
    """A missing SQLAlchemy as a sentence that names our extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        from dart_server.wire.extras import exit_without_module

        exit_without_module(error, "dart-agent", "explore")
