"""The inference component whose workers get new weights rarely: `python -m benchmarks.ablation.late_inference --config FILE`.

Role: everything is the real component's but how often a published version is taken. Rule: at most one version in `DART_ABLATION_EVERY_S`
seconds, the newest; the last version of a run is reached, too. Non-goals: noise (`perturbed_engine`).
"""

from __future__ import annotations

import os

from dart_agent.inference.__main__ import main
from dart_agent.inference.settings import PublishedWeights
from dart_agent.inference.weight_updater import WeightUpdater
from dart_envs.clock import SYSTEM_CLOCK
from dart_server.wire import Clock

EVERY_S = "DART_ABLATION_EVERY_S"


def publish_rarely(every_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
    """Make every weight updater of this process take a version at most once in a time.

    Args:
        every_s: Seconds from one version to the next.
        clock: Clock of them.
    """
    at_once = WeightUpdater.publish
    last_s = float("-inf")

    def publish(self: WeightUpdater, published: PublishedWeights) -> None:
        nonlocal last_s
        now_s = clock.monotonic()
        if published.identity == self.planner.target or now_s - last_s < every_s:
            return
        last_s = now_s
        at_once(self, published)

    WeightUpdater.publish = publish  # type: ignore[method-assign]


if __name__ == "__main__":
    publish_rarely(float(os.environ.get(EVERY_S, "0")))
    main()
