"""What an error says about the desktop of an unfinished rollout: whether it is gone, or the same may go well later."""

from __future__ import annotations

from pathlib import Path

import pytest

from dart_agent.data_client.image_store import BlobError, ImageStore
from dart_agent.errors import StoreError, StoreUnavailableError
from dart_agent.rollouts.partial import is_desktop_gone
from dart_envs.envs.parking import RESET_CODE
from dart_envs.errors import (
    ERROR_CLASSES,
    DartEnvError,
    DesktopFailedError,
    FarmError,
    FarmTimeoutError,
    FarmUnreachableError,
    GuestError,
    HostFaultError,
    InvalidRequestError,
    LeaseExpiredError,
    NotFoundError,
    SnapshotBrokenError,
    SnapshotNotFoundError,
    StaleFencingTokenError,
    UnsupportedCapabilityError,
)
from dart_server.wire import ErrorCode

GONE = {
    InvalidRequestError,
    NotFoundError,
    SnapshotBrokenError,
    SnapshotNotFoundError,
    UnsupportedCapabilityError,
}


@pytest.mark.parametrize(("code", "kind"), ERROR_CLASSES.items(), ids=lambda value: str(value))
def test_a_refusal_of_the_farm(code: ErrorCode, kind: type[FarmError]) -> None:
    assert is_desktop_gone(kind("refused", code=code.value)) == (kind in GONE)


@pytest.mark.parametrize(
    "error",
    [
        DesktopFailedError("dead"),
        LeaseExpiredError("ended"),
        StaleFencingTokenError("reset"),
        GuestError("no answer"),
        FarmError("another desktop", code=RESET_CODE),
        BlobError("missing"),
    ],
    ids=repr,
)
def test_the_desktop_or_an_image_is_gone(error: DartEnvError | StoreError) -> None:
    assert is_desktop_gone(error)


@pytest.mark.parametrize(
    "error",
    [
        HostFaultError("the host failed"),
        FarmUnreachableError("no connection", code="unreachable"),
        FarmTimeoutError("no answer", code="timeout"),
        FarmError("the channel broke", code="channel_lost"),
        FarmError("a proxy answered", code="http_502"),
        StoreUnavailableError("the storage is away"),
    ],
    ids=repr,
)
def test_the_same_may_go_well_later(error: DartEnvError | StoreError) -> None:
    assert not is_desktop_gone(error)


def test_an_image_that_the_file_system_does_not_give_is_not_gone(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    store.path("0" * 64).mkdir(parents=True)  # reading a directory fails, as reading from a disk that is away does
    with pytest.raises(BlobError, match="cannot be read") as caught:
        store.get("0" * 64)
    assert not is_desktop_gone(caught.value)
    with pytest.raises(BlobError, match="is not in") as caught:
        store.get("1" * 64)
    assert is_desktop_gone(caught.value)
