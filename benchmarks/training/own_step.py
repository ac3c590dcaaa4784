"""The train step of this project on a recorded batch: `python -m benchmarks.training.own_step DIRECTORY SETTINGS REPEATS`.

Role: prints one JSON object of `step_meter`, with the token streams that a step computed. Rule: the whole of `Trainer.step` is measured,
with reading and converting images. `SETTINGS` are those of the trainer as JSON; `"share_prefixes": false` gives each step a stream of its
own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.wire import Batch
from dart_train.bench.step_meter import measure_steps
from dart_train.trainer.config import TrainerConfig
from dart_train.trainer.trainer import Trainer


def main(directory: Path, settings: dict[str, Any], repeats: int) -> None:
    """Measure and print.

    Args:
        directory: Holds `model`, `images` and `batch.json`.
        settings: Settings of the trainer.
        repeats: Measured steps.
    """
    import torch

    torch.set_num_threads(1)
    places = {name: directory / name for name in ("socket", "images", "weights", "checkpoints", "metrics")}
    fixed = {"start_model": str(directory / "model"), "device": "cpu", "dtype": "float32"}
    trainer = Trainer(TrainerConfig.model_validate(places | fixed | settings), ImageStore(directory / "images"))
    trainer.setup(str(directory / "model"), 0, None)
    batch = Batch.model_validate_json((directory / "batch.json").read_bytes())
    streams: list[int] = []
    trainer._policy.scorer.register_forward_pre_hook(lambda _, given: streams.extend(given[0].segments))
    figures = measure_steps(lambda: trainer.step(batch), repeats)
    steps = repeats + 1  # with the one for warm-up
    print(json.dumps(figures | {"streams": len(streams) // steps, "stream_tokens": sum(streams) // steps}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]))
