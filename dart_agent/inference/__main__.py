"""The inference component of a run: `python -m dart_agent.inference --config FILE`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from dart_agent.component_process import run_until_signal
from dart_agent.errors import ConfigError
from dart_agent.inference.component import run_inference
from dart_agent.inference.config import load_inference_config
from dart_agent.inference.worker_process import ENGINE_MODULE


def main(engine_module: str = ENGINE_MODULE) -> None:
    """Entry point: `python -m dart_agent.inference --config FILE`.

    Args:
        engine_module: Program of the workers.
    """
    parser = argparse.ArgumentParser(description="Inference workers of one run: started, kept alive, kept up to date.")
    parser.add_argument("--config", required=True, type=Path, help="JSON file (dart_agent.inference.config)")
    path: Path = parser.parse_args().config

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        config = load_inference_config(path)
        for settings in config.worker_settings():
            settings.check()
    except ConfigError as error:
        parser.exit(2, f"{error}\n")
    sys.exit(asyncio.run(run_until_signal(run_inference(config, engine_module=engine_module))))


if __name__ == "__main__":
    main()
