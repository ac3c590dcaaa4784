"""A farm whose pretended desktops of one screen size are a hostile guest: `dart-farm` with a provider `sim` that dials that guest.

`python -m benchmarks.adversarial.hostile_farm GUEST_SOCKET REPORT WIDTH HEIGHT serve ...`. All else is the farm as it is; at its end it
writes how many bytes of answers it still counts as being under way.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import socket
import sys
from pathlib import Path
from typing import Any

from dart_server.http.ingress.limits import RequestLimiter
from dart_server.providers.base import CONTROL, DialPort
from dart_server.providers.sim.provider import SimProvider


def plant(guest: str, report: Path, screen: tuple[int, int]) -> None:
    """Let desktops of that screen be dialled at the hostile guest."""
    calm_dial, calm_init = SimProvider.dial, RequestLimiter.__init__
    limiters: list[RequestLimiter] = []

    async def dial(self: SimProvider, desktop_id: str, port: DialPort) -> socket.socket:
        live = self._live.get(desktop_id)
        if port != CONTROL or live is None or tuple(live.spec.resolution) != screen:
            return await calm_dial(self, desktop_id, port)
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, guest)
        return connection

    def init(self: RequestLimiter, *given: Any, **named: Any) -> None:
        calm_init(self, *given, **named)
        limiters.append(self)

    def tell() -> None:
        report.write_text(json.dumps({"reserved_bytes": sum(one.reserved_bytes for one in limiters)}))

    SimProvider.dial = dial  # type: ignore[method-assign]
    RequestLimiter.__init__ = init  # type: ignore[method-assign]
    atexit.register(tell)


def main() -> None:
    """Plant, and then the arguments of `dart-farm`."""
    guest, report, width, height = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    del sys.argv[1:5]
    plant(guest, report, (width, height))
    from dart_server.cli import main as serve

    serve()


if __name__ == "__main__":
    main()
