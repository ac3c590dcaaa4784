"""Who acts in an episode: the oracle, noop, random, or a callable of the user's.

    def act(seen: PolicyInput) -> action        # or: async def; a class or factory without arguments gives a fresh one per episode

Role: `make_policy` by name. Rule: an action is whatever the chosen action space takes; a policy never sees the task beyond its instruction.
Only the oracle does, and is for checks. Policies of other packages come in by the entry point group `dart_envs.policies`.
Non-goals: prompts and models (`dart_agent`).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from dart_envs.action_spaces import ActionCodec
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import DartEnvError
from dart_envs.evaluators import INFEASIBLE
from dart_envs.types import Action, ActionType, Observation

ENTRY_POINT_GROUP = "dart_envs.policies"


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """What a policy may know at a step. `steps`: actions taken so far; `budget`: how many there may be."""

    observation: Observation
    steps: int
    budget: int


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """An action, and the answer of the model that it was read from; a policy may return it in place of the action."""

    action: Any
    text: str


EpisodePolicy = Callable[[PolicyInput], Awaitable[Any]]
"""One episode's policy: an action for what is seen. What it raises is its own failure, but for `DartEnvError`s."""

EpisodePolicyFactory = Callable[[AsyncDesktopEnv, ActionCodec, np.random.Generator], EpisodePolicy]
"""Makes the policy of an episode that has just been reset."""


def _oracle(env: AsyncDesktopEnv, _codec: ActionCodec, _rng: np.random.Generator) -> EpisodePolicy:
    async def act(seen: PolicyInput) -> Any:
        if env.task is None or env.lease is None:
            raise DartEnvError("The desktop was lost.")
        evaluator = getattr(env.task, "evaluator", None)
        if evaluator is not None and INFEASIBLE in evaluator.functions and not getattr(env.task, "oracle_script", ()):
            return Action(ActionType.FAIL)
        actions = await env.task.oracle(env.lease, step=seen.steps)
        return actions[0] if actions else Action(ActionType.DONE)

    return act


def _noop(_env: AsyncDesktopEnv, _codec: ActionCodec, _rng: np.random.Generator) -> EpisodePolicy:
    async def act(_seen: PolicyInput) -> Any:
        return Action(ActionType.DONE)

    return act


def _fail(_env: AsyncDesktopEnv, _codec: ActionCodec, _rng: np.random.Generator) -> EpisodePolicy:
    async def act(_seen: PolicyInput) -> Any:
        return Action(ActionType.FAIL)

    return act


def _random(_env: AsyncDesktopEnv, codec: ActionCodec, rng: np.random.Generator) -> EpisodePolicy:
    codec.space.seed(int(rng.integers(2**31)))

    async def act(_seen: PolicyInput) -> Any:
        return codec.space.sample()

    return act


class EndpointError(DartEnvError):
    """The service that a policy asks gave no answer: masked about the policy."""


BUILTIN_POLICIES: dict[str, EpisodePolicyFactory] = {"oracle": _oracle, "noop": _noop, "fail": _fail, "random": _random}
"""`noop` says DONE at once, `fail` says FAIL at once, `random` samples the action space."""


def make_policy(name: str) -> EpisodePolicyFactory:
    """A built-in policy, one of an entry point, or `module:attribute`. Raises `ValueError` with the fix."""
    if name in BUILTIN_POLICIES:
        return BUILTIN_POLICIES[name]
    found = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name in found:
        return _policy_from_callable(found[name].load())
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join([*BUILTIN_POLICIES, *sorted(found)])
        raise ValueError(f"there is no policy {name!r}; there are {known}, or write module:callable")
    try:
        made = importlib.import_module(module)
        for part in attribute.split("."):
            made = getattr(made, part)
    except Exception as error:
        raise ValueError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(made):
        raise ValueError(f"{name} is not callable")
    return _policy_from_callable(made)


def _policy_from_callable(given: Any) -> EpisodePolicyFactory:
    """A function of what is seen, or a class or factory that makes one for each episode."""

    def make(_env: AsyncDesktopEnv, _codec: ActionCodec, _rng: np.random.Generator) -> EpisodePolicy:
        takes_nothing = inspect.isclass(given) or not inspect.signature(given).parameters
        chosen = given() if takes_nothing else given

        async def act(seen: PolicyInput) -> Any:
            answer = chosen(seen)
            return await answer if inspect.isawaitable(answer) else answer

        return act

    return make
