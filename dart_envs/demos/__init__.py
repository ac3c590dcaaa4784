"""Demonstrations: what a person or a task's own solution did on a desktop, kept so that it can be replayed and learnt from.

Reading order: `coalesce` (raw input → actions), `store` (the files), `person` (a person in the live view), `oracle` (the task's solution),
`replay` (does it still earn the same?). `dart-envs demos record` and `dart-envs demos replay` run them.
"""

from dart_envs.demos.coalesce import Coalescer, RecordedAction
from dart_envs.demos.store import Demonstration, DemonstrationError, DemoStep, DemoWriter, read_demonstration

__all__ = [
    "Coalescer",
    "DemoStep",
    "DemoWriter",
    "Demonstration",
    "DemonstrationError",
    "RecordedAction",
    "read_demonstration",
]
