"""Who gives up first: the guest agent, then the farm, then its client; whoever is late is named by one that can look at the desktop."""

from __future__ import annotations

from dart_guest.a11y import GRACE_S as WALK_GRACE_S
from dart_guest.osworld import A11Y_LIMIT_S as WALK_LIMIT_S

from dart_server import wire
from dart_server.guest import access
from dart_server.guest.client import DIAL_TIMEOUT_S
from dart_server.providers.health import RECHECK_DELAY_S, RECHECKS
from dart_server.providers.runc.provider import HEALTH_TIMEOUT_S
from dart_server.wire.desktop import client_limit_s, passed_through_limit_s, step_limit_s


def test_the_guest_gives_up_before_the_farm_and_the_farm_before_its_client() -> None:
    assert WALK_LIMIT_S + WALK_GRACE_S < passed_through_limit_s("/accessibility") == passed_through_limit_s("terminal")
    assert passed_through_limit_s("/setup/launch") > passed_through_limit_s("/terminal")
    looks_s = 2 * (HEALTH_TIMEOUT_S + RECHECKS * RECHECK_DELAY_S) + access.RECHECK_DELAY_S
    assert client_limit_s(10.0) > 10.0 + 2 * DIAL_TIMEOUT_S + looks_s
    press = [{"type": kind, "key": "a"} for kind in ("key_down", "key_up")]
    many = wire.StepRequest.model_validate({"events": press * 1000})
    assert client_limit_s(step_limit_s(many)) > step_limit_s(many) > step_limit_s(wire.StepRequest()) + 90
