"""Every error of the agent package, one class per boundary.

    AgentError
    ├── ConfigError             a setting or a file is wrong; found before anything starts (exit code 2)
    ├── PolicyUnavailableError           no policy worker can answer, or the request can never be answered
    │   └── RequestRejected     the request itself is wrong (no image); another worker would refuse it too
    │       └── PromptTooLongError       its prompt is longer than the model takes; earlier turns made it so
    │           └── ContextExceededError its prompt and its longest answer do not fit into the model's context, by exact numbers
    ├── WorkerError             one policy worker did not start, died, or answered nonsense
    │   └── WeightUpdateError   it could not take new weights; the old ones still serve, or it must be restarted
    ├── ModelFaultError         a model that was asked during an exploration gave no usable answer; it costs one step
    └── StoreError              the data manager cannot be reached or refused
        ├── StoreRefusedError   it refused this one thing; repeating it is useless, other things may be taken
        └── StoreUnavailableError   its database or its disk is away; nothing was stored, the same may be tried again

Rule: one clear sentence with the fix. A text that is not an action is data (`dart_envs.action_formats.ParseError`), not an exception.
"""

from __future__ import annotations

from dart_agent.inference.decisions.retries import RequestFailure


class AgentError(Exception):
    """Root of all errors of `dart_agent`."""


class ConfigError(AgentError):
    """A setting or a file is wrong; nothing was started."""


class PolicyUnavailableError(AgentError):
    """No policy worker can answer."""


class RequestRejected(PolicyUnavailableError):
    """The request can never be answered, by whichever worker."""


class PromptTooLongError(RequestRejected):
    """The prompt has more tokens, images or bytes than the model takes; found before anything was sampled."""


class ContextExceededError(PromptTooLongError):
    """The prompt and the longest allowed answer do not fit into the model's context; found before anything was sampled.

    Args:
        prompt_tokens: Exact length of the prompt, tokens of images included.
        max_tokens: Greatest length of the answer.
        context: Tokens that the model takes.
    """

    def __init__(self, prompt_tokens: int, max_tokens: int, context: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens and the answer may have {max_tokens}, but the context is {context} tokens"
        )
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.context = context


class WorkerError(AgentError):
    """One policy worker did not start, died, or answered nonsense.

    failure: what it means for the request that met it.
    """

    def __init__(self, sentence: str, failure: RequestFailure = RequestFailure.CONNECTION) -> None:
        super().__init__(sentence)
        self.failure = failure


class WorkerKilledError(WorkerError):
    """A signal ended a policy worker while it started; another start may go well."""


class WeightUpdateError(WorkerError):
    """A policy worker could not take new weights."""


class ModelFaultError(AgentError):
    """A model that was asked during an exploration gave no answer, or none that can be used."""


class StoreError(AgentError):
    """The data manager cannot be reached or refused."""


class StoreRefusedError(StoreError):
    """What was to be stored is refused for what it is."""


class StoreUnavailableError(StoreError):
    """What is stored cannot be reached now; the same may be tried again."""
