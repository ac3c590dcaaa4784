"""Setup steps: what is done to a desktop before the policy sees it.

Role: check steps when a task is loaded (`params`), perform them on a `dart_envs.types.Desktop` (`interpreter`,
`perform`, `windows`). Rule: every step has a success condition and a time-out; a step that misses it raises
`SetupError` with the cause. Non-goals: evaluation (`dart_envs.evaluators`), steps that need the internet.
"""

from __future__ import annotations

from dart_envs.setup.params import NETWORK_STEPS, STEP_PARAMETERS, check_parameters
from dart_envs.setup.runner import run_steps

__all__ = ["NETWORK_STEPS", "STEP_PARAMETERS", "check_parameters", "run_steps"]
