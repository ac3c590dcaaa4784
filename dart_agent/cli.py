"""`dart-agent`: serve a model, play episodes, point at the screen, explore applications.

Role: the command line of the agent package. Rule: a mistake in the arguments is one sentence and exit code 2 before anything starts; heavy
modules are imported by the command that needs them. Non-goals: training (`dart-train`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import tempfile
from collections.abc import AsyncIterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from dart_agent.errors import AgentError, ConfigError
from dart_agent.exits import exit_on_error, parse_resolution
from dart_agent.explore.commands import explore_app
from dart_agent.ground_cli import ground_app
from dart_agent.grounding.commands import AUTO, torch_device
from dart_agent.strict_model import format_validation_error
from dart_server.wire.extras import show_version

if TYPE_CHECKING:
    from dart_agent.grounding.acting.settings import PointerSettings
    from dart_agent.inference.config import InferenceConfig
    from dart_agent.rollouts.local import RolloutPlan
    from dart_agent.types import Trajectory

PROMPT_TEXT_TOKENS = 2048
"""Room for what a prompt says besides its pictures: rules, instruction, past answers."""

app = typer.Typer(help="Policies that act in desktops.", no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(explore_app, name="explore")
app.add_typer(ground_app, name="ground")


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=show_version, help="Tell the installed version, and end."),
    ] = False,
) -> None:
    """Read the options of the program itself."""


class PolicyOption(StrEnum):
    """Who plays."""

    VLLM = "vllm"
    ENDPOINT = "endpoint"
    ORACLE = "oracle"
    RANDOM = "random"
    BLANK = "blank"
    TRANSFORMERS = "transformers"


class ApiOption(StrEnum):
    """Which API an endpoint speaks."""

    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"


class SafetyOption(StrEnum):
    """What becomes of a call with pending safety checks."""

    REFUSE = "refuse"
    ACKNOWLEDGE = "acknowledge"


class Dtype(StrEnum):
    """Number formats of the served model."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="directory or name of a checkpoint")],
    workers: Annotated[int, typer.Option(min=1, max=64, help="vLLM engines, each in a process of its own")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads per worker")] = 1,
    dtype: Annotated[Dtype, typer.Option(help="number format of the served model")] = Dtype.AUTO,
    max_model_len: Annotated[int, typer.Option(min=64, help="longest prompt with its answer, in tokens")] = 1024,
    kv_cache_mib: Annotated[int, typer.Option(min=0, help="0: vLLM's own choice, for GPUs")] = 96,
    max_images: Annotated[int, typer.Option(min=1, help="most images in a prompt")] = 1,
    addresses: Annotated[Path, typer.Option(help="file that tells rollouts where the workers are")] = Path(
        "workers.json"
    ),
    logs: Annotated[Path, typer.Option(help="directory of the workers' logs")] = Path("logs"),
    host: Annotated[str, typer.Option(help="where OpenAI's chat API listens")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="of the chat API; 0: a free one")] = 8100,
    model_name: Annotated[str | None, typer.Option(help="of the chat API; default: the last part of MODEL")] = None,
    key_file: Annotated[
        Path, typer.Option(help="API key of the chat API, made where it is missing; DART_AGENT_API_KEY comes first")
    ] = Path("agent.key"),
) -> None:
    """Serve MODEL on local workers, for rollouts and as OpenAI's chat API, until Ctrl-C."""
    from dart_agent.chat_api.server import ChatApiSettings
    from dart_agent.component_process import run_until_signal
    from dart_agent.inference.component import run_inference

    with exit_on_error():
        settings = _settings(model, threads, dtype, max_model_len, kv_cache_mib, max_images)
        chat = ChatApiSettings(
            host=host,
            port=port,
            key_file=key_file,
            model_name=model_name or Path(model).resolve().name,
            max_tokens=max_model_len,
        )
        chat.read_key()
        config = _inference(settings, workers, addresses, logs).model_copy(update={"chat": chat})
        logging.basicConfig(level=logging.WARNING)
        logging.getLogger("dart_agent").setLevel(logging.INFO)
        typer.echo(
            f"starting {workers} workers; their addresses are in {addresses}, their logs in {logs}; Ctrl-C stops"
        )
        raise typer.Exit(asyncio.run(run_until_signal(run_inference(config))))


@app.command()
def rollout(
    tasks: Annotated[list[str], typer.Argument(help="suites, suite/family, task ids, task files or folders of them")],
    policy: Annotated[PolicyOption, typer.Option(help="who plays")] = PolicyOption.ORACLE,
    model: Annotated[str | None, typer.Option(help="serve this checkpoint on one worker for the time being")] = None,
    addresses: Annotated[Path | None, typer.Option(help="workers that `dart-agent serve` has started")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="per task")] = 1,
    desktops: Annotated[int, typer.Option(min=1, help="live at once")] = 1,
    max_steps: Annotated[int, typer.Option(min=1, help="actions per episode")] = 15,
    prompt: Annotated[
        str | None,
        typer.Option(help="tiny, uitars, qwen or an action format; default: the model's own; tiny without --model"),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="sampling temperature; 0: greedy")] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="longest answer, in tokens")] = 64,
    split: Annotated[str, typer.Option(help="train, validation or test, for suites and families")] = "train",
    resolution: Annotated[str | None, typer.Option(help="WIDTHxHEIGHT; default: the tasks' own")] = None,
    font_size: Annotated[int | None, typer.Option(min=6, max=48, help="default: the tasks' own")] = None,
    image: Annotated[str | None, typer.Option(help="default: the tasks' own")] = None,
    farm_url: Annotated[str | None, typer.Option(help="default: DART_FARM_URL, else the embedded farm")] = None,
    dtype: Annotated[Dtype, typer.Option(help="number format of the served model")] = Dtype.AUTO,
    base_url: Annotated[str | None, typer.Option(help="policy endpoint: such as https://host/v1")] = None,
    model_name: Annotated[str | None, typer.Option(help="policy endpoint: the model's name there")] = None,
    api_key_variable: Annotated[
        str | None, typer.Option(help="policy endpoint: environment variable that holds the key; default: no key")
    ] = None,
    api: Annotated[
        ApiOption,
        typer.Option(help="policy endpoint: chat completions, OpenAI's Responses API or Anthropic's Messages API"),
    ] = ApiOption.CHAT,
    computer_tool: Annotated[
        str | None, typer.Option(help="api responses or messages: version of the vendor's tool; default: the newest")
    ] = None,
    safety_checks: Annotated[
        SafetyOption, typer.Option(help="api responses: what becomes of a call with pending safety checks")
    ] = SafetyOption.REFUSE,
    beta: Annotated[
        list[str] | None,
        typer.Option(help="api messages: a value of the header anthropic-beta; default: what the tool needs"),
    ] = None,
    pointer: Annotated[
        str | None,
        typer.Option(
            help="model with an action head, which finds the targets that the policy describes in words; "
            "workers: the head of the served model itself"
        ),
    ] = None,
    pointer_device: Annotated[
        str | None,
        typer.Option(
            help="torch device of --pointer MODEL, such as cuda:1; auto, the default: a GPU where there is one, "
            "and the CPU beside a served --model, which takes the memory of the GPU"
        ),
    ] = None,
    pointer_threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of --pointer MODEL; default: 1")
    ] = None,
) -> None:
    """Play episodes of TASKS and print one line per episode."""
    from dart_agent.component_process import run_until_signal
    from dart_agent.grounding.acting.settings import WORKERS
    from dart_agent.grounding.model import has_head
    from dart_agent.inference.checkpoint_files import resolve_checkpoint
    from dart_agent.rollouts.local import RolloutPlan, run_rollouts
    from dart_envs.envs.config import EnvConfig
    from dart_envs.envs.task_sources import select_tasks

    logging.basicConfig(level=logging.WARNING)
    with exit_on_error():
        if policy in (PolicyOption.VLLM, PolicyOption.BLANK) and (model is None) == (addresses is None):
            raise ConfigError(f"policy {policy} needs either --model or --addresses")
        if policy is PolicyOption.ORACLE and (model is not None or addresses is not None):
            raise ConfigError(
                "--model and --addresses say which model plays, and the oracle plays unless --policy says otherwise: give --policy vllm"
            )
        spoken = {"api": api.value, "computer_tool": computer_tool, "safety_checks": safety_checks.value, "betas": beta}
        endpoint = _endpoint(policy, base_url, model_name, api_key_variable, spoken)
        names = tuple(name for given in tasks for name in select_tasks(given, split).ids)
        desktop = EnvConfig(
            resolution=None if resolution is None else parse_resolution(resolution), font_size=font_size, image=image
        ).desktop_shape(select_tasks(names, None).shape(image))
        plan = RolloutPlan(
            tasks=names,
            policy=policy.value,
            episodes=episodes,
            desktops=desktops,
            max_steps=max_steps,
            prompt=_prompt(prompt, model),
            temperature=temperature,
            max_tokens=max_tokens,
            resolution=desktop.resolution,
            font_size=desktop.font_size,
            image=desktop.image,
            farm_url=farm_url,
            endpoint=endpoint,
            pointer=_pointer(pointer, pointer_device, pointer_threads),
        )
        plan.check()
        if pointer == WORKERS and model is not None and not has_head(resolve_checkpoint(model)):
            raise ConfigError(f"{model} has no action head, so --pointer {WORKERS} cannot be: serve a model with one")
        settings = None
        if model is not None and policy in (PolicyOption.VLLM, PolicyOption.BLANK):
            settings = _settings_for(plan, model, dtype)
        if plan.pointer is not None and pointer != WORKERS:
            device = _pointer_device(pointer_device or AUTO, beside_worker=settings is not None)
            plan = dataclasses.replace(plan, pointer=plan.pointer.model_copy(update={"device": device}))
        raise typer.Exit(asyncio.run(run_until_signal(_rollout(plan, settings, addresses, run_rollouts))))


def _pointer(model: str | None, device: str | None, threads: int | None) -> PointerSettings | None:
    """The head of the policy, still without its device; None: it has none."""
    from dart_agent.grounding.acting.settings import WORKERS, PointerSettings

    if model in (None, WORKERS) and (device is not None or threads is not None):
        raise ConfigError("--pointer-device and --pointer-threads are for --pointer MODEL")
    return None if model is None else PointerSettings(model=model, threads=threads or 1)


def _pointer_device(name: str, *, beside_worker: bool) -> str:
    return "cpu" if name == AUTO and beside_worker else torch_device(name, "--pointer-device")


async def _rollout(plan: Any, settings: Any, addresses: Path | None, run_rollouts: Any) -> None:
    rewards: list[float | None] = []

    def ended(line: str, trajectory: Trajectory) -> None:
        rewards.append(trajectory.reward)
        typer.echo(line)

    async with _workers_for(settings, addresses) as places:
        failed = await run_rollouts(plan, places, ended)
    for rollout_id, cause in failed.items():
        typer.echo(f"  -   {rollout_id} never began: {cause}", err=True)
    judged = [reward for reward in rewards if reward is not None]
    mean = f", mean reward {sum(judged) / len(judged):.2f}" if judged else ""
    typer.echo(f"{len(rewards)} episodes, {len(rewards) - len(judged)} without a verdict{mean}")
    if failed:
        raise AgentError(f"{len(failed)} episodes never began")


@contextlib.asynccontextmanager
async def _workers_for(settings: Any, addresses: Path | None) -> AsyncIterator[Path | None]:
    """The address file to use: the given one, or that of a worker started for as long as the context lasts."""
    if settings is None:
        yield addresses
        return
    from dart_agent.inference.component import run_inference

    with tempfile.TemporaryDirectory(prefix="dart-agent-") as directory:
        file, logs = Path(directory) / "workers.json", Path(directory) / "logs"
        typer.echo("starting a policy worker ...", err=True)
        serving = asyncio.create_task(run_inference(_inference(settings, 1, file, logs)))
        try:
            yield file
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


def _endpoint(
    policy: PolicyOption, base_url: str | None, name: str | None, key_variable: str | None, spoken: dict[str, Any]
) -> Any:
    """The endpoint of the policy; None: it is no endpoint. spoken: API and tool."""
    from dart_agent.chat_api.policy_endpoint import PolicyEndpointSettings

    if policy is not PolicyOption.ENDPOINT:
        if base_url is not None or key_variable is not None:
            raise ConfigError("--base-url and --api-key-variable are for --policy endpoint")
        if spoken["api"] != ApiOption.CHAT or spoken["computer_tool"] or spoken["betas"]:
            raise ConfigError("--api, --computer-tool and --beta are for --policy endpoint")
        return None
    if base_url is None or name is None:
        raise ConfigError("policy endpoint needs --base-url and --model-name")
    try:
        settings = PolicyEndpointSettings(base_url=base_url, model=name, api_key_variable=key_variable, **spoken)
    except ValidationError as error:
        raise ConfigError(f"--policy endpoint: {format_validation_error(error)}") from error
    settings.read_key()
    return settings


def _prompt(wanted: str | None, model: str | None) -> str:
    from dart_agent.inference.checkpoint_files import read_checkpoint_info, resolve_checkpoint
    from dart_agent.prompts.builder import check_preset

    if wanted is not None:
        try:
            return check_preset(wanted)
        except ValueError as error:
            raise ConfigError(f"--prompt: {error}") from None
    return "tiny" if model is None else read_checkpoint_info(resolve_checkpoint(model)).prompt


def _settings_for(plan: RolloutPlan, model: str, dtype: Dtype) -> Any:
    """A worker that takes the plan's prompts: as many pictures as they show, and room for the text."""
    from dart_agent.inference.checkpoint_files import read_checkpoint_info, resolve_checkpoint
    from dart_agent.prompts.builder import preset

    spec = preset(plan.prompt)
    pictures = spec.images * read_checkpoint_info(resolve_checkpoint(model)).count_image_tokens(spec, plan.resolution)
    return _settings(model, 1, dtype, max(2048, pictures + PROMPT_TEXT_TOKENS + plan.max_tokens), 96, spec.images)


def _settings(model: str, threads: int, dtype: Dtype, max_model_len: int, kv_cache_mib: int, max_images: int) -> Any:
    from dart_agent.inference.settings import WorkerSettings

    settings = WorkerSettings(
        model=model,
        threads=threads,
        dtype=dtype.value,
        max_model_len=max_model_len,
        kv_cache_mib=kv_cache_mib or None,
        max_images=max_images,
    )
    settings.check()
    return settings


def _inference(settings: Any, workers: int, addresses: Path, logs: Path) -> InferenceConfig:
    from dart_agent.inference.config import InferenceConfig
    from dart_envs.farm.embedded import runtime_dir

    return InferenceConfig(
        worker=settings,
        workers=workers,
        directory=runtime_dir() / f"serve-{os.getpid()}",
        addresses=addresses,
        logs=logs,
    )


def main() -> None:
    """Entry point of `dart-agent`."""
    try:
        app()
    except ModuleNotFoundError as error:
        from dart_server.wire.extras import exit_without_module

        exit_without_module(error, "dart-agent", "agent")


if __name__ == "__main__":
    main()
