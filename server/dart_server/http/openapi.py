"""The OpenAPI document: what FastAPI derives from the routes, with who may call, every status that can come, and examples.

Rule: what a route needs (scope, lease) is read from its dependencies, so that it cannot be forgotten; which errors an operation has beside
those that follow from that stands in `ERRORS`; examples come from `wire.examples`. An operation without a row is a test's failure, not a
crash. Non-goals: WebSockets, which OpenAPI cannot describe (`wire`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from dart_server import wire
from dart_server.errors import STATUS
from dart_server.http.dependencies import ROUTE_REQUIREMENTS, RouteRequirements
from dart_server.wire import ErrorCode
from dart_server.wire.examples import EXAMPLES, PARAMETERS, OpenApiExample, error_example

KEY_SCHEME, TOKEN_SCHEME = "key", "lease_token"
GUEST_ERRORS = (
    ErrorCode.FENCED,
    ErrorCode.LEASE_EXPIRED,
    ErrorCode.GUEST_ERROR,
    ErrorCode.DESKTOP_FAILED,
    ErrorCode.HOST_FAULT,
)
PROVISIONING_ERRORS = (
    ErrorCode.IMAGE_MISSING,
    ErrorCode.SNAPSHOT_MISSING,
    ErrorCode.SNAPSHOT_BROKEN,
    ErrorCode.NO_CAPACITY,
    ErrorCode.DRAINING,
    ErrorCode.HOST_FAULT,
    ErrorCode.CAPABILITY_MISSING,
    ErrorCode.QUOTA,
)
ERRORS: dict[str, tuple[ErrorCode, ...]] = {
    "healthz": (),
    "readyz": (ErrorCode.DRAINING,),
    "get_farm": (),
    "list_desktops": (),
    "metrics": (),
    "list_events": (),
    "list_lease_events": (ErrorCode.NOT_FOUND,),
    "list_desktop_events": (ErrorCode.NOT_FOUND,),
    "create_lease": (*PROVISIONING_ERRORS, ErrorCode.LEASE_EXPIRED, ErrorCode.QUOTA_EXCEEDED, ErrorCode.NOT_FOUND),
    "submit_claim": (*PROVISIONING_ERRORS, ErrorCode.LEASE_EXPIRED, ErrorCode.QUOTA_EXCEEDED, ErrorCode.NOT_FOUND),
    "list_claims": (),
    "get_claim": (ErrorCode.NOT_FOUND,),
    "claim_events": (ErrorCode.NOT_FOUND, ErrorCode.QUOTA_EXCEEDED),
    "cancel_claim": (ErrorCode.NOT_FOUND,),
    "renew_lease": (ErrorCode.NOT_FOUND, ErrorCode.LEASE_EXPIRED),
    "attach_lease": (ErrorCode.NOT_FOUND, ErrorCode.LEASE_EXPIRED, ErrorCode.HOST_FAULT),
    "open_live_view": (ErrorCode.LEASE_EXPIRED, ErrorCode.NOT_FOUND),
    "get_human_inputs": (ErrorCode.LEASE_EXPIRED, ErrorCode.NOT_FOUND),
    "list_leases": (),
    "get_lease": (ErrorCode.NOT_FOUND,),
    "heartbeat_lease": (ErrorCode.NOT_FOUND, ErrorCode.LEASE_EXPIRED),
    "release_lease": (ErrorCode.NOT_FOUND,),
    "reset_lease": (*GUEST_ERRORS, *PROVISIONING_ERRORS),
    "step": GUEST_ERRORS,
    "screenshot": GUEST_ERRORS,
    "a11y": GUEST_ERRORS,
    "execute": GUEST_ERRORS,
    "evidence": (*GUEST_ERRORS, ErrorCode.CAPABILITY_MISSING),
    "get_clock": GUEST_ERRORS,
    "set_clock": (*GUEST_ERRORS, ErrorCode.CAPABILITY_MISSING),
    "write_file": GUEST_ERRORS,
    "read_file": GUEST_ERRORS,
    "desktop_health": (ErrorCode.LEASE_EXPIRED, ErrorCode.HOST_FAULT),
    "guest_get": GUEST_ERRORS,
    "guest_post": GUEST_ERRORS,
    "guest_put": GUEST_ERRORS,
    "guest_delete": GUEST_ERRORS,
    "snapshot_lease": (*GUEST_ERRORS, ErrorCode.CAPABILITY_MISSING, ErrorCode.QUOTA, ErrorCode.NOT_FOUND),
    "list_snapshots": (),
    "get_snapshot": (ErrorCode.NOT_FOUND,),
    "delete_snapshot": (ErrorCode.NOT_FOUND, ErrorCode.HOST_FAULT),
    "acquire_setup": (ErrorCode.NOT_FOUND, ErrorCode.LEASE_EXPIRED),
    "abandon_setup": (),
    "list_pools": (),
    "get_pool": (ErrorCode.NOT_FOUND,),
    "put_pool": (ErrorCode.IMAGE_MISSING, ErrorCode.HOST_FAULT),
    "delete_pool": (ErrorCode.NOT_FOUND,),
    "quarantine_desktop": (ErrorCode.NOT_FOUND, ErrorCode.NO_CAPACITY, ErrorCode.FENCED),
    "release_desktop": (ErrorCode.NOT_FOUND,),
    "drain_farm": (),
    "undrain_farm": (),
    "create_key": (),
    "list_keys": (),
    "revoke_key": (ErrorCode.NOT_FOUND,),
}
"""By operation: what it can answer beside the errors of every operation of its kind."""
GUEST_STATUSES = (400, 404, 409, 413, 502, 503)
"""What `guest_error` comes with: the guest agent's own status, or 413 where its answer is larger than is read."""
PRINTABLE = r"^[^\x00-\x1f\x7f]+$"
NO_NUL = r"^[^\x00]*$"
"""The middleware refuses it in every address."""
COMMON_ERROR_STATUSES = (413, 422, 431)
"""What the middleware answers, whatever the route."""
CONTENT: dict[str, dict[str, Any]] = {
    "metrics": {"text/plain": {"schema": {"type": "string"}}},
    "step": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    "evidence": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    "screenshot": {"image/png": {"schema": {"type": "string", "format": "binary"}}},
    "read_file": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    "claim_events": {"text/event-stream": {"schema": {}}},
}
"""Answers that are not JSON."""
BINARY_REQUEST_OPERATIONS = frozenset({"write_file", "guest_post", "guest_put", "guest_delete"})
"""Operations that take any bytes."""
DESCRIPTIONS = {
    400: "the guest agent refused it",
    401: "no valid key",
    403: "the key or the lease token does not allow it, or a browser's page asks that may not",
    404: "there is no such thing, or it is another tenant's",
    409: "the fencing token is old, or a snapshot does not restore",
    410: "the lease has ended",
    413: "the body, or the desktop's answer, is too large",
    422: "the request is not valid",
    429: "a quota or a limit of the key",
    431: "too many or too large headers",
    501: "this provider or host cannot do it",
    502: "the desktop died, or its agent answered with an error",
    503: "no desktop, not ready, or the host failed; try again",
    504: "the request took longer than any may; it was given up",
    507: "the quota of bytes for snapshots",
}


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The whole document of an application; made once."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, routes=app.routes, description=_description())
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        schemas["ErrorBody"] = _component(wire.ErrorBody, schemas)
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        made["components"]["securitySchemes"] = {
            KEY_SCHEME: {"type": "http", "scheme": "bearer", "description": "an API key"},
        }
        for route in app.routes:
            if isinstance(route, APIRoute) and route.include_in_schema:
                for method in route.methods:
                    _complete(made["paths"][route.path_format][method.lower()], route)
        app.openapi_schema = made
    return app.openapi_schema


def _description() -> str:
    return "Leases of live desktops. Every error is an `ErrorBody`; its `error` is a stable code, its `hint` the fix."


def _component(model: type[wire.WireModel], schemas: dict[str, Any]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    for name, definition in schema.pop("$defs", {}).items():
        schemas.setdefault(name, definition)
    return schema


def requirements_of(route: APIRoute) -> RouteRequirements:
    """What a caller of this route must bring."""
    found = [ROUTE_REQUIREMENTS[call] for call in _calls(route.dependant) if call in ROUTE_REQUIREMENTS]
    return RouteRequirements(
        scope=next((needs.scope for needs in found if needs.scope is not None), None),
        token=any(needs.token for needs in found),
        fencing_token=any(needs.fencing_token for needs in found),
    )


def _calls(dependant: Dependant) -> Iterator[Any]:
    for dependency in dependant.dependencies:
        yield dependency.call
        yield from _calls(dependency)


def _complete(operation: dict[str, Any], route: APIRoute) -> None:
    name = str(operation.get("operationId"))
    needs, example = requirements_of(route), EXAMPLES.get(name, OpenApiExample())
    parameters = operation.setdefault("parameters", [])
    if needs.token:
        parameters.append(_header(wire.LEASE_TOKEN_HEADER, {"type": "string"}))
    if needs.fencing_token:
        parameters.append(_header(wire.FENCING_TOKEN_HEADER, {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}))
    for parameter in parameters:
        if parameter["in"] == "path" and parameter["schema"].get("type") == "string":
            parameter["schema"].setdefault("pattern", PRINTABLE)
        if parameter["in"] == "query":
            for schema in parameter["schema"].get("anyOf", [parameter["schema"]]):
                if schema.get("type") == "string":
                    schema.setdefault("pattern", NO_NUL)
        if parameter["name"] in PARAMETERS:
            parameter["example"] = PARAMETERS[parameter["name"]]
    if not parameters:
        del operation["parameters"]
    if name in BINARY_REQUEST_OPERATIONS:
        operation["requestBody"] = {
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        }
    elif example.request is not None and "requestBody" in operation:
        operation["requestBody"]["content"]["application/json"]["example"] = example.request
    if needs.scope is not None:
        operation["security"] = [{KEY_SCHEME: []}]
        operation["x-scope"] = needs.scope.value
    responses = operation["responses"]
    responses.pop("default", None)
    responses.pop("422", None)
    for status, response in responses.items():
        if status.startswith("2"):
            if name in CONTENT:
                response["content"] = CONTENT[name]
            for content in response.get("content", {}).values():
                if example.reply is not None:
                    content["example"] = example.reply
    for status_code, codes in _errors(name, needs).items():
        responses[str(status_code)] = _error(status_code, codes)
    if name.startswith("guest_"):
        responses["200"].pop("content", None)
        for status, response in responses.items():
            if status != "200":  # the guest's own server may have answered so, in its own words
                response["content"]["application/json"]["schema"] = {}
                response["content"]["*/*"] = {"schema": {}}
        responses["default"] = {"description": "what the guest's own server answers, unchanged"}


def _header(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": True, "schema": schema}


def _errors(name: str, needs: RouteRequirements) -> dict[int, list[ErrorCode]]:
    """Status → codes."""
    codes: list[ErrorCode] = [ErrorCode.FORBIDDEN, ErrorCode.TIMED_OUT, *ERRORS.get(name, ())]
    if needs.scope is not None:
        codes += [ErrorCode.UNAUTHENTICATED, ErrorCode.TOO_MANY_REQUESTS, ErrorCode.DATABASE_UNAVAILABLE]
    if needs.token:
        codes.append(ErrorCode.NOT_FOUND)
    by_status: dict[int, list[ErrorCode]] = {status: [ErrorCode.INVALID] for status in COMMON_ERROR_STATUSES}
    for code in dict.fromkeys(codes):
        statuses: Iterable[int] = GUEST_STATUSES if code is ErrorCode.GUEST_ERROR else (STATUS[code],)
        for status in statuses:
            by_status.setdefault(status, []).append(code)
    return dict(sorted(by_status.items()))


def _error(status: int, codes: list[ErrorCode]) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": DESCRIPTIONS[status],
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/ErrorBody"},
                "examples": {code.value: {"value": error_example(code)} for code in codes},
            }
        },
    }
    if status in (429, 503):
        response["headers"] = {"Retry-After": {"description": "seconds", "schema": {"type": "integer", "minimum": 0}}}
    if status == 401:
        response["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return response
