"""One user of the host for all tests of the escalation book."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from escalation_scene import Scene, user_of_the_host


@pytest.fixture(scope="session")
def shared_scene() -> Iterator[Scene]:
    with user_of_the_host() as scene:
        yield scene


@pytest.fixture
def scene(shared_scene: Scene) -> Iterator[Scene]:
    shared_scene.before = shared_scene.state()
    yield shared_scene
    shared_scene.restore()
