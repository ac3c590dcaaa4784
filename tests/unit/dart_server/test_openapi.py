"""The OpenAPI document is whole: a summary, what it needs, every error with an example, requests and answers with valid examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from farm_harness import Api
from fastapi.routing import APIRoute
from openapi_spec_validator import validate
from pydantic import TypeAdapter

from dart_server.http.app import create_app
from dart_server.http.openapi import CONTENT, ERRORS
from dart_server.wire import ErrorBody, ErrorCode
from dart_server.wire.examples import EXAMPLES, error_example

JSON = "application/json"
OPEN = {"healthz", "readyz"}


@pytest.fixture
def document(api: Api) -> dict[str, Any]:
    return create_app(api.farm).openapi()


def operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for item in document["paths"].values():
        yield from item.values()


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    validate(document)
    schemas = document["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document))) <= set(schemas)
    ids = [operation["operationId"] for operation in operations(document)]
    assert len(ids) == len(set(ids))


def test_every_operation_has_its_rows(document: dict[str, Any]) -> None:
    ids = {operation["operationId"] for operation in operations(document)}
    assert not ids - set(ERRORS), "say in apidoc.ERRORS what it can answer"
    assert not ids - set(EXAMPLES), "give an example in wire/examples.py"
    assert not set(ERRORS) - ids, "there is no such operation any more"
    assert not set(EXAMPLES) - ids, "there is no such operation any more"


def test_every_operation_tells_what_it_is(document: dict[str, Any]) -> None:
    for operation in operations(document):
        name = operation["operationId"]
        assert operation["summary"], name
        assert operation["description"], name
        assert operation["tags"], name
        assert ("security" in operation) == (name not in OPEN), name
        for parameter in operation.get("parameters", ()):
            assert "example" in parameter, f"{name}: give {parameter['name']} a row in examples.PARAMETERS"


def test_every_error_has_an_example(document: dict[str, Any]) -> None:
    for operation in operations(document):
        for status, response in operation["responses"].items():
            if status == "default" or status.startswith("2"):
                continue
            content = response["content"][JSON]
            guests = operation["operationId"].startswith("guest_")
            assert content["schema"] == ({} if guests else {"$ref": "#/components/schemas/ErrorBody"})
            for code, example in content["examples"].items():
                assert ErrorBody.model_validate(example["value"]).error == code
        assert "default" not in operation["responses"] or operation["operationId"].startswith("guest_")


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_an_example_of_its_own(code: ErrorCode) -> None:
    body = ErrorBody.model_validate(error_example(code))
    assert body.error is code
    assert body.detail != "what went wrong, in one sentence", f"add {code} to wire/examples.py"


def test_examples_are_valid(api: Api) -> None:
    routes = [route for route in create_app(api.farm).routes if isinstance(route, APIRoute) and route.include_in_schema]
    assert len(routes) > 30
    for route in routes:
        name = route.operation_id or ""
        example = EXAMPLES[name]
        if route.body_field is not None:
            assert example.request is not None, f"{name}: an example of its request is missing"
            TypeAdapter(route.body_field.field_info.annotation).validate_python(example.request)
        else:
            assert example.request is None, name
        if route.response_model is not None:
            assert example.reply is not None, f"{name}: an example of its answer is missing"
            TypeAdapter[Any](route.response_model).validate_python(example.reply)
        else:
            assert example.reply is None or name in CONTENT, name
