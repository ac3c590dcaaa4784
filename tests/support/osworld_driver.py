"""Runs one call of OSWorld's own client, in the interpreter that has it, and tells what came of it as JSON.

Role: `python osworld_driver.py HOST PORT CHROMIUM_PORT CACHE_DIR` with a JSON list of `[controller, method, arguments, keywords]` on stdin;
prints one JSON object per call: `{"value": ...}` (bytes as `{"bytes": base64}`) or `{"raised": ...}`.
Rule: the controllers run unchanged; the metrics package, whose only use here is one function of its module `utils`, is not imported as
a whole, since that needs a gigabyte of packages.
"""

import base64
import importlib.util
import json
import logging
import sys
import types
from pathlib import Path
from typing import Any


def spare_the_metrics() -> None:
    """Make `desktop_env.evaluators.metrics` a package of which only what is asked for is imported."""
    found = importlib.util.find_spec("desktop_env")
    assert found is not None
    assert found.submodule_search_locations is not None
    name = "desktop_env.evaluators.metrics"
    package = types.ModuleType(name)
    package.__path__ = [str(Path(found.submodule_search_locations[0]) / "evaluators" / "metrics")]
    sys.modules[name] = package


def told(value: Any) -> Any:
    """A value as JSON can carry it."""
    return {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def main() -> None:
    """Perform the calls in order; a call that raises does not keep the next ones from running."""
    host, port, chromium_port, cache = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    logging.disable(logging.CRITICAL)
    spare_the_metrics()
    from desktop_env.controllers.python import PythonController
    from desktop_env.controllers.setup import SetupController

    controllers = {
        "python": PythonController(host, port),
        "setup": SetupController(host, port, chromium_port, cache_dir=cache, client_password="password"),
    }
    for controller, method, arguments, keywords in json.load(sys.stdin):
        try:
            answer = {"value": told(getattr(controllers[controller], method)(*arguments, **keywords))}
        except Exception as error:  # noqa: BLE001 - the test judges what was raised
            answer = {"raised": f"{type(error).__name__}: {error}"}
        print("\x1e" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
