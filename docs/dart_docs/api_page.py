"""The pages of the REST API and of its error codes.

Role: what the OpenAPI document of the farm says, as tables. Rule: the document is made by the application itself. Non-goals: the client.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from dart_docs.fields import field_meanings
from dart_docs.markdown import cell, code, table
from dart_server.errors import STATUS
from dart_server.http.app import create_routes
from dart_server.wire import ErrorCode

METHODS = ("get", "post", "put", "delete", "patch")


@functools.cache
def openapi() -> dict[str, Any]:
    """The OpenAPI document of a farm."""
    return create_routes().openapi()


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every operation of the API.

    Yields:
        Path, method and description, in the order of the document.
    """
    for path, methods in openapi()["paths"].items():
        for method, operation in methods.items():
            if method in METHODS:
                yield path, method, operation


def rest_page() -> str:
    """Render the page of the REST API."""
    parts = [
        "# REST API\n\n",
        "This page is for people who talk to a farm without the Python client. After it you know every "
        "operation with its parameters, bodies and statuses. "
        "A running farm serves the same as `/openapi.json`. [The farm from any language](../any-language.md) "
        "shows a whole session with `curl`, "
        "WebSockets included.\n\n",
    ]
    for path, method, operation in operations():
        described = (operation.get("description") or operation.get("summary", "")).strip()
        parts.append(f"## `{method.upper()} {path}`\n\n{described}\n\n")
        parameters = operation.get("parameters", ())
        if parameters:
            parts.append(
                table(
                    ("parameter", "in", "type", "meaning"),
                    (
                        (
                            code(each["name"]) + ("" if each.get("required") else " (optional)"),
                            each["in"],
                            schema_name(each.get("schema", {})),
                            each.get("description", ""),
                        )
                        for each in parameters
                    ),
                )
            )
        body = operation.get("requestBody", {}).get("content", {})
        if body:
            parts.append(f"Body: {', '.join(_content(kind, found) for kind, found in body.items())}.\n\n")
        answers = operation.get("responses", {})
        parts.append(
            table(
                ("status", "answer", "meaning"),
                (
                    (
                        status,
                        ", ".join(_content(kind, found) for kind, found in answer.get("content", {}).items()),
                        answer.get("description", ""),
                    )
                    for status, answer in answers.items()
                ),
            )
        )
    parts.append("# Data types\n\n")
    for name, schema in sorted(openapi()["components"]["schemas"].items()):
        parts.append(_schema_section(name, schema))
    return "".join(parts)


def _content(kind: str, found: dict[str, Any]) -> str:
    shown = schema_name(found.get("schema", {}))
    return f"{shown} ({code(kind)})" if shown else code(kind)


def schema_name(schema: dict[str, Any]) -> str:
    """Name a JSON schema for a reader.

    Args:
        schema: The schema.

    Returns:
        A link to the data type where it has a name; else its kind.
    """
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    for joined in ("anyOf", "oneOf", "allOf"):
        if joined in schema:
            return " or ".join(dict.fromkeys(schema_name(each) for each in schema[joined]))
    if "enum" in schema:
        return " or ".join(code(each) for each in schema["enum"])
    if "const" in schema:
        return code(schema["const"])
    kind = schema.get("type", "")
    if kind == "array":
        return f"list of {schema_name(schema.get('items', {})) or 'any'}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {schema_name(schema['additionalProperties'])}"
    return str(schema.get("format") or kind)


def _schema_section(name: str, schema: dict[str, Any]) -> str:
    head = f"## {name}\n\n{cell(schema.get('description', ''))}\n\n"
    required = set(schema.get("required", ()))
    fields = schema.get("properties", {})
    if not fields:
        return f"{head}{schema_name(schema)}\n\n"
    return head + table(
        ("field", "type", "meaning"),
        (
            (
                code(field) + ("" if field in required else " (optional)"),
                schema_name(found),
                found.get("description", ""),
            )
            for field, found in fields.items()
        ),
    )


def errors_page() -> str:
    """Render the page of the error codes."""
    meanings = field_meanings(ErrorCode)
    return (
        "# Error codes\n\n"
        "This page is for people who handle errors of a farm. After it you know what each code means, and what to do. Every error "
        "of the REST API and of its WebSockets "
        "has one of these codes in the field "
        "`error`. `detail` is one sentence about this case, and `hint` says what to do. The Python client "
        "raises a subclass of `FarmError` with the "
        "same code.\n\n"
    ) + table(
        ("code", "HTTP status", "meaning and what to do"),
        ((code(each.value), str(STATUS[each]), meanings.get(each.name, "")) for each in ErrorCode),
    )
