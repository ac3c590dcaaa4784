"""Every error of the agent package, one class per boundary.

    AgentError
    ├── ConfigError             a setting or a file is wrong; found before anything starts (exit code 2)
    ├── PolicyUnavailableError           no policy worker can answer, or the request can never be answered
    │   └── RequestRejected     the request itself is wrong (too long, no image); another worker would refuse it too
    ├── WorkerError             one policy worker did not start, died, or answered nonsense
    │   └── WeightUpdateError   it could not take new weights; the old ones still serve, or it must be restarted
    └── StoreError              the data manager cannot be reached or refused

Rule: one clear sentence with the fix. A text that is not an action is data (`dart_envs.action_formats.ParseError`), not an exception.
"""

from __future__ import annotations


class AgentError(Exception):
    """Root of all errors of `dart_agent`."""


class ConfigError(AgentError):
    """A setting or a file is wrong; nothing was started."""


class PolicyUnavailableError(AgentError):
    """No policy worker can answer."""


class RequestRejected(PolicyUnavailableError):
    """The request can never be answered, by whichever worker."""


class WorkerError(AgentError):
    """One policy worker did not start, died, or answered nonsense."""


class WeightUpdateError(WorkerError):
    """A policy worker could not take new weights."""


class StoreError(AgentError):
    """The data manager cannot be reached or refused."""
