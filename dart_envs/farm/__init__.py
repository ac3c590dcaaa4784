"""Client of the farm: async core, sync facade, embedded daemon."""

from dart_envs.farm.base import FarmLike, GuestReply, LeaseLike
from dart_envs.farm.client import AsyncFarm
from dart_envs.farm.lease import AsyncLease

__all__ = ["AsyncFarm", "AsyncLease", "FarmLike", "GuestReply", "LeaseLike"]
