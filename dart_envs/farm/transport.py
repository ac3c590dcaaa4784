"""HTTP to the farm, and the place where failures of the wire and of the transport become `dart_envs.errors`.

This module has addresses, keys, single requests with timeouts, and the mapping of error envelopes. No other module of
the client reads status codes or catches httpx errors. It does not repeat requests (callers know what is safe to
repeat) and has no WebSockets (`channel`, `tunnel`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from dart_envs.errors import (
    ERROR_CLASSES,
    TOO_LARGE_CODE,
    DartEnvError,
    DesktopFailedError,
    FarmError,
    FarmTimeoutError,
    FarmUnreachableError,
    GuestError,
    HostFaultError,
    InvalidRequestError,
    LeaseExpiredError,
    StaleFencingTokenError,
    UnauthenticatedError,
    append_hint,
)
from dart_server.wire import DesktopHealthView, ErrorBody, ErrorCode, FaultOwner, WireModel, paths
from dart_server.wire.connection import (
    KEY_NEEDED,
    certificate_file_problem,
    connection_problem,
    key_problem,
    nobody_answers,
)
from dart_server.wire.guest_answers import MalformedAnswer

CONNECT_TIMEOUT_S = 10.0
REPLY_GRACE_S = 30.0
"""How much longer than the server's own waiting time the client waits for the answer."""

NON_RETRYABLE_CODES = frozenset(
    {
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.FORBIDDEN,
        ErrorCode.INVALID,
        ErrorCode.IMAGE_MISSING,
        ErrorCode.CAPABILITY_MISSING,
    }
)
"""Refusals that the same request meets again, whatever the time."""
NO_DESKTOP_CODES = frozenset({ErrorCode.NO_CAPACITY, ErrorCode.QUOTA_EXCEEDED})
"""Refusals after the whole waiting time: all desktops of the farm, or all that the key may hold, are in use."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a farm listens.

    Attributes:
        base_url: An http or https URL.
        socket_path: Path of a Unix socket; None for a farm on TCP.
    """

    base_url: str
    socket_path: str | None = None

    @property
    def ws_url(self) -> str:
        """The base URL for WebSockets."""
        return "ws" + self.base_url.removeprefix("http")

    def __str__(self) -> str:
        return f"unix://{self.socket_path}" if self.socket_path else self.base_url


def parse_address(url: str) -> Address:
    """Read the address of a farm.

    Args:
        url: `http://…`, `https://…` or `unix://PATH`.

    Returns:
        The address.

    Raises:
        InvalidRequestError: For anything else.
    """
    with contextlib.suppress(ValueError):  # of a port that is none, or brackets without an address
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            return Address(url.rstrip("/"))
        if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
            return Address("http://farm", parts.path)
    raise InvalidRequestError(
        f"{url!r} is not the address of a farm.",
        code="invalid",
        hint="Use http://HOST:PORT, https://HOST or unix:///absolute/path in DART_FARM_URL.",
    )


def resolve_api_key(address: Address, api_key: str | None) -> str | None:
    """Find the key to use.

    Args:
        address: Address of the farm.
        api_key: The key that the caller gave, if any.

    Returns:
        That key, `DART_API_KEY`, or for a Unix socket the `farm.key` in the farm's state directory or beside the
        socket; else None.
    """
    if api_key:
        return api_key
    if from_env := os.environ.get("DART_API_KEY"):
        return from_env
    if address.socket_path:
        beside = Path(address.socket_path).parent
        for directory in (paths.state_dir(beside), beside):
            with contextlib.suppress(OSError):
                return (directory / paths.KEY_FILE).read_text(encoding="utf-8").strip() or None
    return None


def error_from_envelope(body: ErrorBody, status: int = 0, retry_after_s: float | None = None) -> DartEnvError:
    """Return the exception for an error that the farm named.

    The owner of a dead desktop is the one that came with the error. Without one, the host is the owner until the lease
    has asked for the desktop's health.

    Args:
        body: The error envelope.
        status: HTTP status of the answer.
        retry_after_s: Seconds until the request may succeed, if the farm named them.

    Returns:
        The exception; the caller raises it.
    """
    detail = append_hint(body.detail, body.hint)
    match body.error:
        case ErrorCode.FENCED:
            return StaleFencingTokenError(detail)
        case ErrorCode.LEASE_EXPIRED:
            return LeaseExpiredError(detail)
        case ErrorCode.HOST_FAULT:
            return HostFaultError(detail, fault_owner=FaultOwner.HOST, cause=body.error.value)
        case ErrorCode.DESKTOP_FAILED:
            return desktop_failed_error(body.desktop) or DesktopFailedError(
                detail, fault_owner=FaultOwner.HOST, cause=body.error.value
            )
        case ErrorCode.GUEST_ERROR:
            return GuestError(detail, code={400: "bad_request", 413: TOO_LARGE_CODE}.get(status, body.error.value))
        case code:
            kind = ERROR_CLASSES.get(code, FarmError)
            return kind(body.detail, code=code.value, hint=body.hint, retry_after_s=retry_after_s)


def desktop_failed_error(health: DesktopHealthView | None) -> DesktopFailedError | None:
    """Return the exception for a desktop that is known to be dead.

    Args:
        health: Health of the desktop, if it is known.

    Returns:
        The exception, or None while the desktop lives or its health is unknown.
    """
    if health is None or health.alive:
        return None
    owner = FaultOwner.POLICY if health.fault_owner is FaultOwner.POLICY else FaultOwner.HOST
    return DesktopFailedError(f"The desktop died: {health.cause}.", fault_owner=owner, cause=health.cause)


def malformed_answer_error(error: MalformedAnswer) -> DesktopFailedError:
    """Return the exception for an answer that no guest agent gives: what answers is a program that the policy put there.

    Args:
        error: What is wrong with the answer.

    Returns:
        The exception; the caller raises it.
    """
    return DesktopFailedError(f"The desktop sent {error}.", fault_owner=FaultOwner.POLICY, cause=MalformedAnswer.code)


def error_from_response(
    status: int, content: bytes, *, what: str, headers: Mapping[str, str] | None = None
) -> DartEnvError:
    """Return the exception for an answer with an error status, with or without an error envelope.

    Args:
        status: HTTP status.
        content: Body of the answer.
        what: The request, for the message.
        headers: Headers of the answer.

    Returns:
        The exception; the caller raises it.
    """
    retry_after = (headers or {}).get("retry-after", "")
    retry_after_s = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None
    try:
        return error_from_envelope(ErrorBody.model_validate_json(content), status, retry_after_s)
    except ValidationError:
        text = content[:200].decode("utf-8", "replace").strip()
        return FarmError(
            f"The farm answered {what} with status {status}: {text or 'no text'}.",
            code=f"http_{status}",
            retry_after_s=retry_after_s,
        )


def check_certificate_file() -> None:
    """Check the file that `SSL_CERT_FILE` names, where it is set.

    Raises:
        InvalidRequestError: If it does not exist or holds no certificate.
    """
    if problem := certificate_file_problem():
        raise InvalidRequestError(problem.sentence, code=problem.code, hint=problem.hint)


class Transport:
    """One connection pool to one farm.

    Args:
        address: Where the farm listens.
        api_key: The key; None sends none.

    Attributes:
        address: Where the farm listens.

    Raises:
        InvalidRequestError: If `SSL_CERT_FILE` names no certificate.
    """

    def __init__(self, address: Address, api_key: str | None) -> None:
        check_certificate_file()
        self.address = address
        self._key = api_key
        self._pool = self._new_pool()
        self._pid = os.getpid()

    def _new_pool(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.address.base_url,
            transport=httpx.AsyncHTTPTransport(uds=self.address.socket_path) if self.address.socket_path else None,
            headers=self.auth_headers(),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    @property
    def _http(self) -> httpx.AsyncClient:
        """The connections of this process: a fork must not write to those of the process that made them."""
        if self._pid != os.getpid():
            self._pool, self._pid = self._new_pool(), os.getpid()
        return self._pool

    def set_api_key(self, api_key: str | None) -> None:
        """Send another key from now on.

        Args:
            api_key: The key; None sends none.
        """
        self._key = api_key
        self._http.headers.pop("Authorization", None)
        self._http.headers.update(self.auth_headers())

    def auth_headers(self) -> dict[str, str]:
        """Return the headers that every request carries."""
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    async def send(
        self,
        method: str,
        path: str,
        *,
        body: WireModel | None = None,
        json: object | None = None,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = REPLY_GRACE_S,
    ) -> httpx.Response:
        """Make one request.

        Args:
            method: HTTP method.
            path: Path of the route.
            body: Body as a wire model.
            json: Body as JSON.
            content: Body as bytes.
            params: Query parameters.
            headers: Further headers.
            timeout_s: Seconds to wait for the answer.

        Returns:
            The answer, whatever its status.

        Raises:
            FarmError: When there is no answer: with code `timeout`, or one of `dart_server.wire.connection`.
        """
        all_headers = dict(headers or {})
        if body is not None:
            content = body.model_dump_json().encode()
            all_headers["Content-Type"] = "application/json"
        try:
            return await self._http.request(
                method,
                path,
                content=content,
                json=json,
                params=dict(params) if params else None,
                headers=all_headers,
                timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            )
        except (httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise self.unreachable(error) from error
        except httpx.TimeoutException as error:
            raise FarmTimeoutError(
                f"The farm at {self.address} did not answer {method} {path} within {timeout_s:.0f} s.", code="timeout"
            ) from error
        except httpx.TransportError as error:
            raise self.unreachable(error) from error

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: WireModel | None = None,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = REPLY_GRACE_S,
    ) -> bytes:
        """Make one request that must succeed.

        Args:
            method: HTTP method.
            path: Path of the route.
            body: Body as a wire model.
            content: Body as bytes.
            params: Query parameters.
            headers: Further headers.
            timeout_s: Seconds to wait for the answer.

        Returns:
            The body of the answer.

        Raises:
            DartEnvError: As the error envelope says, or when there is no answer.
        """
        response = await self.send(
            method, path, body=body, content=content, params=params, headers=headers, timeout_s=timeout_s
        )
        if response.is_error:
            raise self._refusal(response, f"{method} {path}")
        return response.content

    @asynccontextmanager
    async def stream_lines(self, path: str, *, idle_timeout_s: float) -> AsyncIterator[AsyncIterator[str]]:
        """Open an answer that goes on for as long as the farm has events.

        Args:
            path: Path of the route.
            idle_timeout_s: Seconds without a line after which the stream ends.

        Yields:
            An iterator of lines.

        Raises:
            FarmError: If the stream cannot be opened or breaks off.
        """
        timeout = httpx.Timeout(idle_timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            async with self._http.stream(
                "GET", path, headers={"Accept": "text/event-stream"}, timeout=timeout
            ) as answer:
                if answer.is_error:
                    await answer.aread()
                    raise self._refusal(answer, f"GET {path}")
                yield answer.aiter_lines()
        except httpx.TimeoutException as error:
            raise FarmTimeoutError(
                f"The farm at {self.address} sent nothing for {idle_timeout_s:.0f} s.", code="timeout"
            ) from error
        except httpx.TransportError as error:
            raise self.unreachable(error) from error

    def unreachable(self, error: Exception) -> FarmUnreachableError:
        """Return the error for a farm that cannot be reached.

        Args:
            error: Why the connection failed.

        Returns:
            The exception; the caller raises it.
        """
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        problem = connection_problem(str(self.address), error) or nobody_answers(str(self.address), reason)
        return FarmUnreachableError(problem.sentence, code=problem.code, hint=problem.hint)

    def _refusal(self, answer: httpx.Response, what: str) -> DartEnvError:
        """Return the exception for an answer with an error status; a key that the farm does not know is named by where it came from."""
        error = error_from_response(answer.status_code, answer.content, what=what, headers=answer.headers)
        if isinstance(error, UnauthenticatedError) and KEY_NEEDED in str(error):
            problem = key_problem(str(self.address), self._key)
            return UnauthenticatedError(problem.sentence, code=problem.code, hint=problem.hint)
        return error

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        await self._http.aclose()
