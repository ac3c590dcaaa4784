"""The page of a scripted desktop: an address that leads nowhere, for tests of what shows it. Fake, as its name says."""

from __future__ import annotations

from datetime import UTC, datetime

from dart_envs.farm.transport import Address
from dart_server.wire import LiveViewTicket


class ScriptedPage:
    """What a lease tells of its live view (`dart_envs.farm.live.Showable`)."""

    lease_id: str
    farm_address = Address("http://scripted.invalid")

    async def live_view(self) -> LiveViewTicket:
        """A ticket that no farm knows."""
        path = f"/dashboard/#/leases/{self.lease_id}"
        return LiveViewTicket(path=path, ticket="scripted", expires_at=datetime.now(UTC))
