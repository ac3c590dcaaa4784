"""Requests are checked whole, and refused in a sentence that says where."""

import pytest
from dart_guest import events
from dart_guest.events import BadRequest, parse_step


def test_an_empty_step_has_the_documented_defaults() -> None:
    assert parse_step({}) == events.StepRequest(None, (), None, events.Frame("png", 90, False))


def test_every_event_kind() -> None:
    listed = [
        {"type": "move", "x": 1, "y": 2.0},
        {"type": "down", "button": 1},
        {"type": "up", "button": 3},
        {"type": "key_down", "key": "ctrl"},
        {"type": "key_up", "key": "Ж"},
        {"type": "text", "text": "a\r\nb"},
        {"type": "scroll", "dy": -3},
        {"type": "wait", "ms": 5},
        {"type": "release_all"},
    ]
    assert parse_step({"seq": 4, "events": listed}).events == (
        events.Move(1, 2),
        events.Button(1, True),
        events.Button(3, False),
        events.Key("ctrl", 0xFFE3, True),
        events.Key("Ж", 0x01000416, False),
        events.Text((0x61, 0xFF0D, 0x62)),
        events.Scroll(0, -3),
        events.Wait(5),
        events.ReleaseAll(),
    )


@pytest.mark.parametrize(
    ("request_", "code", "said"),
    [
        ([], "bad_request", "a step must be an object"),
        ({"event": []}, "bad_request", "unknown fields: event"),
        ({"seq": "1"}, "bad_request", "'seq'"),
        ({"events": [{"type": "wait", "ms": 1}, {"type": "move", "x": 1}]}, "bad_request", "event 1: 'y'"),
        ({"events": [{"type": "move", "x": 1.5, "y": 0}]}, "bad_request", "'x'"),
        ({"events": [{"type": "move", "x": True, "y": 0}]}, "bad_request", "'x'"),
        ({"events": [{"type": "down", "button": 4}]}, "bad_request", "from 1 to 3"),
        ({"events": [{"type": "key_down", "key": "hyper9"}]}, "unknown_key", "event 0"),
        ({"events": [{"type": "text", "text": "a\x02"}]}, "unknown_key", "U+0002"),
        ({"events": [{"type": "text", "text": 1}]}, "bad_request", "'text'"),
        ({"events": [{"type": "wait", "ms": 60001}]}, "bad_request", "60000"),
        ({"events": [{"type": "zap"}]}, "bad_request", "'zap'"),
        ({"events": [{"type": "release_all", "x": 1}]}, "bad_request", "unknown fields: x"),
        ({"events": ["move"]}, "bad_request", "object"),
        ({"frame": {"encoding": "bmp"}}, "bad_request", "raw, png"),
        ({"frame": {"quality": 0}}, "bad_request", "'quality'"),
        ({"frame": {"cursor": 1}}, "bad_request", "'cursor'"),
        ({"settle": {"quiet_ms": -1}}, "bad_request", "'quiet_ms'"),
        ({"settle": 60}, "bad_request", "'settle'"),
    ],
)
def test_refusals(request_: object, code: str, said: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_step(request_)
    assert caught.value.code == code
    assert said in str(caught.value)
