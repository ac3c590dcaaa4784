"""How long one worker has been doing what.

Role: `ActivityClock` sums the seconds in which a worker serves and in which it takes new weights. Rule: the states are those of
`docs/metrics.md`: a worker that takes new weights, or stands still until others have, does not serve, whatever it has to do. Non-goals:
shares of a run (`dart_train.utilisation`).
"""

from __future__ import annotations

from dart_server.wire import Clock


class ActivityClock:
    """Sums of one worker, from its start on; they never fall.

    Args:
        clock: Measures them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s = self._since_s = clock.monotonic()
        self._serving = self._updating = False
        self._serving_s = self._updating_s = 0.0

    @property
    def serving_s(self) -> float:
        """Seconds with at least one request that is computed."""
        self._add()
        return self._serving_s

    @property
    def updating_s(self) -> float:
        """Seconds in which requests stood still for new weights, or would have."""
        self._add()
        return self._updating_s

    @property
    def up_s(self) -> float:
        """Seconds since the start."""
        return self._clock.monotonic() - self._began_s

    def change(self, *, in_flight: int, updating: bool) -> None:
        """Note what the worker does from now on.

        Args:
            in_flight: Requests that it has.
            updating: Whether they stand still.
        """
        self._add()
        self._updating = updating
        self._serving = in_flight > 0 and not updating

    def _add(self) -> None:
        now_s = self._clock.monotonic()
        self._serving_s += (now_s - self._since_s) * self._serving
        self._updating_s += (now_s - self._since_s) * self._updating
        self._since_s = now_s
