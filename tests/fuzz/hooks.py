"""What schemathesis needs to know of the farm: a live lease behind the ids, tokens and fences that it makes up, and no patience.

Role: loaded by `schemathesis run` (see `schemathesis.toml`). Rule: only what is valid is made better; what was made wrong on purpose stays.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from typing import Any

import requests
import schemathesis
from schemathesis.core.parameters import ParameterLocation

URL, KEY = os.environ["FUZZ_URL"], os.environ["FUZZ_KEY"]
OWN = {"Authorization": f"Bearer {KEY}"}
TOKEN, FENCE = "X-Dart-Lease-Token", "X-Dart-Fencing-Token"
HASTE = {
    "wait_s": (600, 0.02),
    "deadline_s": (86_400, 0.5),
    "ttl_s": (3600, 5),
    "timeout_s": (600, 1),
    "ms": (60_000, 1),
    "cap_ms": (30_000, 2),
    "quiet_ms": (5_000, 1),
}
"""Largest valid value, and what is sent instead of all larger ones."""
MOST_WAIT_S = {"get_human_inputs": 60}
"""The largest valid wait where it is another one."""
UNSAID = {
    "create_lease": ("wait_s", "ttl_s"),
    "acquire_setup": ("wait_s",),
    "submit_claim": ("deadline_s", "ttl_s"),
}
"""What is sent where the default is long."""
_numbers = itertools.count()
_lease: dict[str, Any] = {}


def _live() -> dict[str, Any]:
    """The fuzzer's own lease as it is now."""
    if _lease:
        view = requests.get(f"{URL}/v1/leases/{_lease['lease_id']}", headers=OWN, timeout=30)
        if view.ok and view.json()["state"] == "active":
            _lease["fencing_token"] = view.json()["fencing_token"]
            return _lease
    body = {"client_request_id": f"fuzzer-{os.getpid()}-{next(_numbers)}", "ttl_s": 3600, "wait_s": 60}
    reply = requests.post(f"{URL}/v1/leases", json=body, headers=OWN, timeout=90)
    reply.raise_for_status()
    _lease.clear()
    _lease.update(reply.json())
    return _lease


@functools.cache
def _own_key_id() -> str:
    """The id of the fuzzer's own key, which it may revoke once it has made another for an administrator: that would end the run."""
    keys = requests.get(f"{URL}/v1/keys", headers=OWN, timeout=30)
    keys.raise_for_status()
    return str(min(keys.json(), key=lambda key: key["created_at"])["key_id"])


def _hasten(value: Any) -> Any:
    if isinstance(value, list):
        return [_hasten(item) for item in value]
    if not isinstance(value, dict):
        return value
    hastened = {}
    for name, item in value.items():
        most, sent = HASTE.get(name, (0, 0))
        hastened[name] = sent if sent < _number(item) <= most else _hasten(item)
    return hastened


def _number(value: Any) -> float:
    """A number, or a text that is one, as all values of an address are; not a number (which is in no range) for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def _wrong(case: schemathesis.Case, location: ParameterLocation) -> bool:
    return case.meta is not None and case.meta.is_negative_at(location)


@schemathesis.hook
def before_call(context: Any, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    """Put the live lease in, and take the waiting out."""
    operation = case.operation.definition.raw.get("operationId")
    if operation in UNSAID and isinstance(case.body, dict):
        for name in UNSAID[operation]:
            case.body.setdefault(name, HASTE[name][1])
    case.body = _hasten(case.body)
    if case.query:  # a query that is wrong in something else waits as long
        most = MOST_WAIT_S.get(str(operation), HASTE["wait_s"][0])
        if not _number(case.query.get("wait_s")) > most:  # else the wait is what was made wrong
            case.query = _hasten(dict(case.query))
    path = case.path_parameters or {}
    if operation == "revoke_key" and path.get("key_id") == _own_key_id():
        path["key_id"] = "key_00000000000000000000000000"
    if "lease_id" in path and operation not in ("release_lease",) and not _wrong(case, ParameterLocation.PATH):
        lease = _live()
        path["lease_id"] = lease["lease_id"]
        if case.headers and not _wrong(case, ParameterLocation.HEADER):
            for name, value in ((TOKEN, lease["token"]), (FENCE, str(lease["fencing_token"]))):
                if name in case.headers:
                    case.headers[name] = value
    if operation == "create_lease" and isinstance(case.body, dict) and not _wrong(case, ParameterLocation.BODY):
        case.body["client_request_id"] = f"fuzzed-{os.getpid()}-{next(_numbers)}"


@schemathesis.hook
def after_call(context: Any, case: schemathesis.Case, response: Any) -> None:
    """A farm that was told to drain is told to go on."""
    if case.operation.definition.raw.get("operationId") == "drain_farm" and response.status_code < 300:
        requests.delete(f"{URL}/v1/farm/drain", headers=OWN, timeout=30)
