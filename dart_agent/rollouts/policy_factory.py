"""Who acts in the episodes of a rollout worker.

Role: `open_policy_factory` makes the policy of each episode, by kind. Rule: what is shared by all episodes (connections to inference
workers or to an endpoint) is open as long as the context lasts. Non-goals: playing episodes (`dart_agent.rollouts.worker`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dart_agent.chat_api.policy_endpoint import PolicyEndpointSettings, open_endpoint
from dart_agent.grounding.acting.following import FollowingPolicy
from dart_agent.grounding.acting.planner import TransformersPlanner
from dart_agent.grounding.acting.pointer import Pointer
from dart_agent.grounding.acting.policy import GroundedPolicy, TargetFinder
from dart_agent.grounding.acting.served_pointer import PointingWorkers, ServedPointer
from dart_agent.grounding.acting.settings import WORKERS, PointerSettings
from dart_agent.grounding.model import GroundingModel, load_grounding_model
from dart_agent.prompts.builder import PromptSpec
from dart_agent.rollouts.episode import EpisodeEnv, no_outage
from dart_agent.rollouts.policies import BlankScreenshotPolicy, OraclePolicy, RandomPolicy
from dart_agent.types import Policy, PolicyVersion
from dart_envs.clock import SystemClock
from dart_envs.observations.geometry import Coordinates
from dart_envs.tasks import Task
from dart_envs.types import Desktop
from dart_server.wire import Clock


class WorkerEnv(EpisodeEnv, Protocol):
    """An environment that a slot owns for its life: `dart_envs.envs.core.AsyncDesktopEnv`."""

    @property
    def lease(self) -> Desktop | None:
        """The desktop it holds now."""
        ...

    async def aclose(self) -> None:
        """Give the desktop back."""
        ...


PolicyFactory = Callable[[Task, WorkerEnv], Policy]
"""The policy of one episode."""


@dataclass(frozen=True, slots=True)
class OpenPolicies:
    """What a rollout worker needs of the policies of its episodes.

    make: the policy of one episode. kv_cache_usage: fraction of the key-value cache of the inference workers that is in use (mean over
    those that serve, 1 where none does); None: there are none. workers: those that can be asked for points. following: what loads new
    versions in this process while the rollout worker runs; None: nothing does. outage_s: seconds so far in which no inference worker
    served.
    """

    make: PolicyFactory
    kv_cache_usage: Callable[[], float | None] = lambda: None
    workers: PointingWorkers | None = None
    following: FollowingPolicy | None = None
    outage_s: Callable[[], float] = no_outage


@contextlib.asynccontextmanager
async def open_policy_factory(
    kind: str,
    spec: PromptSpec,
    addresses: Path | None,
    *,
    endpoint: PolicyEndpointSettings | None = None,
    pointer: PointerSettings | None = None,
    seed: int = 0,
    clock: Clock | None = None,
) -> AsyncIterator[OpenPolicies]:
    """The policies of episodes, by kind; the pool of inference workers is connected for as long as the context lasts.

    spec: the prompts, in whose format policies without a model answer. pointer: finds the targets that the policy describes.

    Raises PolicyUnavailableError when the inference workers' addresses do not appear, and ConfigError where the model of the pointer cannot
    be loaded.
    """
    if pointer is None:
        async with _open_policies(kind, spec, addresses, endpoint, seed, clock or SystemClock()) as policies:
            yield policies
        return
    if kind == "transformers":
        load = functools.partial(_load_policy, pointer, spec.coordinates)
        acting = await asyncio.to_thread(
            FollowingPolicy, load, pointer.model, pointer.version, pointer.served, clock or SystemClock()
        )
        yield OpenPolicies(lambda task, env: acting, following=acting if pointer.follow else None)
        return
    loaded = None
    if pointer.model != WORKERS:
        loaded = Pointer(await asyncio.to_thread(_load_model, pointer, pointer.model), pointer.version)
    async with _open_policies(kind, spec, addresses, endpoint, seed, clock or SystemClock()) as planners:
        finder = _finder(loaded, planners)
        yield OpenPolicies(
            lambda task, env: GroundedPolicy(planners.make(task, env), finder, spec.coordinates),
            planners.kv_cache_usage,
            outage_s=planners.outage_s,
        )


def _finder(loaded: Pointer | None, planners: OpenPolicies) -> TargetFinder:
    if loaded is not None:
        return loaded
    assert planners.workers is not None, "checked by check_pointer"
    return ServedPointer(planners.workers)


def _load_policy(
    settings: PointerSettings, coordinates: Coordinates, model: str, version: PolicyVersion
) -> GroundedPolicy:
    """A head, with its backbone as the planner."""
    loaded = _load_model(settings, model)
    planner = TransformersPlanner(loaded, version, settings.max_context)
    return GroundedPolicy(planner, Pointer(loaded, version), coordinates)


def _load_model(settings: PointerSettings, model: str) -> GroundingModel:
    import torch

    torch.set_num_threads(settings.threads)
    return load_grounding_model(model, settings.device)


@contextlib.asynccontextmanager
async def _open_policies(
    kind: str,
    spec: PromptSpec,
    addresses: Path | None,
    endpoint: PolicyEndpointSettings | None,
    seed: int,
    clock: Clock,
) -> AsyncIterator[OpenPolicies]:
    if kind == "oracle":
        yield OpenPolicies(lambda task, env: OraclePolicy(task, lambda: env.lease, spec))
        return
    if kind == "random":
        chance = RandomPolicy(spec, seed=seed)
        yield OpenPolicies(lambda task, env: chance)
        return
    if kind == "endpoint":
        assert endpoint is not None, "checked by WorkerConfig"
        async with open_endpoint(endpoint, clock=clock) as remote:
            yield OpenPolicies(lambda task, env: remote)
        return
    from dart_agent.inference.addresses import wait_for_addresses
    from dart_agent.inference.client import WorkerClient
    from dart_agent.inference.pool import VllmPool

    assert addresses is not None, "checked by WorkerConfig"
    places = await wait_for_addresses(addresses, clock)
    holding = [place.name for place in places if place.holds]
    clients = [WorkerClient(place.name, place.directory) for place in places]
    async with VllmPool(clients, clock=clock, holding=holding) as pool:
        policy: Policy = BlankScreenshotPolicy(pool) if kind == "blank" else pool
        yield OpenPolicies(lambda task, env: policy, lambda: pool.kv_cache_usage, pool, outage_s=lambda: pool.outage_s)
