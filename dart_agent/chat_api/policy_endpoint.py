"""An endpoint as the policy, by the API and the computer tool of its vendor.

Role: `PolicyEndpointSettings`, `declare_tool` (the prompt of a model that has the tool) and `open_endpoint`. Rule: an API and the format of
its vendor go together (`responses` with `openai-computer`, `messages` with `anthropic-computer`): then the tool is declared, and the
prompt does not describe it; every other prompt is asked in its own words over every API. Imports no heavy library. Non-goals: requests
(`responses_api`, `messages_api`), judges and explorations, which have no tool.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Self

import httpx
from pydantic import Field, model_validator

from dart_agent.chat_api.api_dialect import ApiDialect
from dart_agent.chat_api.endpoint_policy import EndpointPolicy, EndpointSettings
from dart_agent.chat_api.messages_api import API_VERSION, MessagesDialect
from dart_agent.chat_api.responses_api import ResponsesDialect
from dart_agent.prompts.builder import PromptSpec
from dart_envs.action_formats import anthropic_computer, openai_computer
from dart_envs.clock import SYSTEM_CLOCK
from dart_server.wire import Clock

Api = Literal["chat", "responses", "messages"]
SafetyChecks = Literal["refuse", "acknowledge"]
_TOOLS = {"chat": (), "responses": openai_computer.TOOLS, "messages": anthropic_computer.TOOLS}
_FORMATS = {
    "responses": openai_computer.OpenaiComputerFormat.name,
    "messages": anthropic_computer.AnthropicComputerFormat.name,
}
_BETAS = {"computer_20251124": ("computer-use-2025-11-24",), "computer_20250124": ("computer-use-2025-01-24",)}
"""What Anthropic's older tools need in the header `anthropic-beta`; the toolset needs nothing."""


class PolicyEndpointSettings(EndpointSettings):
    """Where the model is that acts, and which API it speaks.

    Attributes:
        base_url: Such as `https://host/v1`.
        model: Its name there.
        api_key_variable: Name of the environment variable that holds the key; None: no key is sent.
        attempt_timeout_s: Seconds of one request.
        deadline_s: Seconds for all attempts at one answer.
        max_attempts: Requests for one answer, where the endpoint fails.
        api: `chat`: chat completions. `responses`: OpenAI's Responses API. `messages`: Anthropic's Messages API.
        computer_tool: Version of the vendor's tool; None: the newest.
        environment: What `computer_use_preview` is told about the computer.
        safety_checks: What becomes of a call of the Responses API with pending safety checks: `refuse`, it is not performed;
            `acknowledge`, it is performed, and the checks are acknowledged.
        api_version: Header `anthropic-version` of the Messages API.
        betas: Header `anthropic-beta`; None: what the tool needs.
    """

    api: Api = "chat"
    computer_tool: str | None = None
    environment: Literal["linux", "ubuntu", "windows", "mac", "browser"] = "linux"
    safety_checks: SafetyChecks = "refuse"
    api_version: str = Field(default=API_VERSION, min_length=1)
    betas: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _tool_is_the_apis(self) -> Self:
        known = _TOOLS[self.api]
        if self.computer_tool is not None and self.computer_tool not in known:
            there = f"there are {', '.join(known)}" if known else "set api to responses or messages"
            raise ValueError(f"the api {self.api} has no computer_tool {self.computer_tool!r}: {there}")
        if self.betas and self.api != "messages":
            raise ValueError(f"betas are for the api messages, not for {self.api}: leave them out")
        if self.safety_checks != "refuse" and self.api != "responses":
            raise ValueError(f"safety_checks are for the api responses, not for {self.api}: leave them out")
        return self

    @property
    def tool(self) -> str | None:
        """The version of the tool that is declared to a model with its vendor's format."""
        return self.computer_tool or next(iter(_TOOLS[self.api]), None)

    def dialect(self) -> ApiDialect | None:
        """Return how its API is spoken; None: chat completions."""
        if self.api == "responses":
            return ResponsesDialect(self.model, acknowledge=self.safety_checks == "acknowledge")
        if self.api == "messages":
            betas = _BETAS.get(self.tool or "", ()) if self.betas is None else self.betas
            return MessagesDialect(self.model, api_version=self.api_version, betas=betas)
        return None


def declare_tool(spec: PromptSpec, endpoint: PolicyEndpointSettings | None) -> PromptSpec:
    """Let the prompts of a model that is asked over its vendor's API declare the vendor's tool.

    Args:
        spec: How prompts look.
        endpoint: Where the model is; None: it is no endpoint.

    Returns:
        The same with the tool, where API and format are of one vendor.

    Raises:
        ValueError: A version of the tool is chosen, and the format is another.
    """
    if endpoint is None:
        return spec
    wanted = _FORMATS.get(endpoint.api)
    if spec.format is None or spec.format.name != wanted:
        if endpoint.computer_tool is not None:
            raise ValueError(
                f"the prompt {spec.preset} does not use computer_tool: choose the prompt {wanted}, or leave it out"
            )
        return spec
    if endpoint.api == "responses":
        return replace(spec, format=openai_computer.OpenaiComputerFormat(endpoint.tool, endpoint.environment))
    return replace(spec, format=anthropic_computer.AnthropicComputerFormat(endpoint.tool))


def open_endpoint(
    settings: PolicyEndpointSettings,
    *,
    clock: Clock = SYSTEM_CLOCK,
    transport: httpx.AsyncBaseTransport | None = None,
) -> EndpointPolicy:
    """Make the policy of an endpoint.

    Args:
        settings: Where the model is.
        clock: Clock of the retries.
        transport: Instead of the network, in tests.

    Returns:
        The policy; `async with` closes its connections.

    Raises:
        ConfigError: The key is not there.
    """
    return EndpointPolicy(settings, clock=clock, transport=transport, dialect=settings.dialect())
