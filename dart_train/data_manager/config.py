"""Settings of the data manager process, one JSON file.

Role: the schema. Rule: unknown keys are errors; the module imports neither torch nor FastAPI. Non-goals: the recipe (`dart_train.config`),
from which `dart_train.run.components` derives this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from dart_agent.strict_model import StrictModel
from dart_agent.task_suites import TaskFolderSettings
from dart_train.scheduling.settings import BatchSettings, CurationSettings, SchedulerSettings, SchedulingSettings


class DataManagerConfig(StrictModel):
    """Everything that the data manager needs.

    Attributes:
        database: The SQLite file, or the URL of a PostgreSQL database.
        images: Directory of image blobs, or the URL of a file system of fsspec.
        socket: The Unix socket to serve on.
        listen: `HOST:PORT` to serve on as well; None: nowhere.
        key_file: File of the key that `listen` asks for; made where it is missing.
        insecure_plain_http: Whether `listen` may be beyond loopback.
        seed: Seed of the choice of tasks.
        assignment_timeout_s: Seconds after which an assignment without heartbeat and report expires.
        scheduling: How rollouts are scheduled.
        batch: When a batch is formed.
        curation: What to run next.
        task_folder: Folder of task files that is a suite in this run; None: there is none.
        checkpoint: Directory of the run's first policy, which says how prompts stand for images. None, or while it does not exist: images
            are not compared with prompts.
    """

    database: Path | str
    images: Path | str
    socket: Path
    listen: str | None = None
    key_file: Path | None = None
    insecure_plain_http: bool = False
    seed: int = 0
    assignment_timeout_s: float = Field(default=300.0, gt=0)
    scheduling: SchedulingSettings = SchedulingSettings()
    batch: BatchSettings = BatchSettings()
    curation: CurationSettings = CurationSettings()
    task_folder: TaskFolderSettings | None = None
    checkpoint: Path | None = None

    @model_validator(mode="after")
    def _address_has_a_key(self) -> Self:
        if (self.listen is None) != (self.key_file is None):
            raise ValueError("`listen` and `key_file` go together")
        return self

    @property
    def scheduler(self) -> SchedulerSettings:
        """The settings of the scheduler."""
        return SchedulerSettings(
            seed=self.seed,
            assignment_timeout_s=self.assignment_timeout_s,
            scheduling=self.scheduling,
            batch=self.batch,
            curation=self.curation,
        )
