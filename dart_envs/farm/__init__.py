"""Client of the farm, in a synchronous and an asynchronous form with the same names, arguments and errors.

    with dart_envs.farm.connect("http://127.0.0.1:8700", KEY) as farm, farm.lease() as desktop:
        frame = desktop.step([])

The synchronous classes are `FarmClient`, `Lease` and `Claim`; the asynchronous ones are `AsyncFarmClient`,
`AsyncLease` and `AsyncClaim`. Errors are in `dart_envs.errors`. The page "Clients of the farm" describes the client.
"""

from __future__ import annotations

from dart_envs.farm.base import FarmLike, GuestResponse, LeaseLike
from dart_envs.farm.claims import AsyncClaim
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.farm.retry import RetryPolicy
from dart_envs.farm.sync import Claim, FarmClient
from dart_envs.farm.sync_lease import Lease

__all__ = [
    "AsyncClaim",
    "AsyncFarmClient",
    "AsyncLease",
    "Claim",
    "FarmClient",
    "FarmLike",
    "GuestResponse",
    "Lease",
    "LeaseLike",
    "RetryPolicy",
    "connect",
    "connect_async",
]


def connect(url: str | None = None, api_key: str | None = None, *, retries: RetryPolicy | None = None) -> FarmClient:
    """Connect to a farm.

    Args:
        url: Address of the farm; None takes `DART_FARM_URL`, and without that the embedded farm of this user, which is
            started on demand.
        api_key: The key; None takes `DART_API_KEY`, and without that the key file beside a Unix socket.
        retries: When a failed request is repeated; None is the default policy.

    Returns:
        The client; close it, or use it as a context manager.

    Raises:
        FarmError: If the farm cannot be reached or the embedded farm does not start.
    """
    return FarmClient.connect(url, api_key, retries=retries)


async def connect_async(
    url: str | None = None, api_key: str | None = None, *, retries: RetryPolicy | None = None
) -> AsyncFarmClient:
    """Connect to a farm, for async code.

    Args:
        url: As `connect`.
        api_key: As `connect`.
        retries: As `connect`.

    Returns:
        The client; close it with `aclose`, or use it as an async context manager.

    Raises:
        FarmError: If the farm cannot be reached or the embedded farm does not start.
    """
    return await AsyncFarmClient.connect(url, api_key, retries=retries)
