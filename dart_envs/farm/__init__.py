"""Client of the farm, in two parallel forms: `FarmClient`, `Lease`, `Claim` and `AsyncFarmClient`, `AsyncLease`, `AsyncClaim`.

    with dart_envs.farm.connect("http://127.0.0.1:8700", KEY) as farm, farm.lease() as desktop:
        frame = desktop.step([])

Same names, arguments and errors (`dart_envs.errors`); docs/clients.md has the tour.
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
    """Connect to the farm at `url`, at `DART_FARM_URL`, or to this user's embedded farm, which is started on demand.

    `api_key` falls back to `DART_API_KEY`, then to the key file beside a Unix socket. Raises `FarmError`.
    """
    return FarmClient.connect(url, api_key, retries=retries)


async def connect_async(
    url: str | None = None, api_key: str | None = None, *, retries: RetryPolicy | None = None
) -> AsyncFarmClient:
    """The same for async code."""
    return await AsyncFarmClient.connect(url, api_key, retries=retries)
