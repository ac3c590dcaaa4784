"""The recipe's sections `run` and `limits`: the name and seed of a run, and what its host must have.

Role: the schema of both. Non-goals: checking the host (`dart_train.run.preflight`).
"""

from __future__ import annotations

from pydantic import Field

from dart_agent.strict_model import StrictModel


class RunSection(StrictModel):
    """Name and seed of the run.

    Attributes:
        name: Name of the run folder.
        seed: Seed from which everything random is derived.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    seed: int = Field(default=0, ge=0, lt=2**31)


class LimitSection(StrictModel):
    """What the host must have free, before the run starts and while it goes on, and how long a run waits.

    Attributes:
        min_free_disk_gib: Disk space in GiB.
        pause_disk_gib: Disk space in GiB below which a run that goes on pauses: no rollout and no train step begins until there is a
            quarter more; 0: it never pauses. At most `min_free_disk_gib` counts. A checkpoint and a version have to fit into it.
        min_free_memory_gib: Memory in GiB.
        stall_minutes: Minutes without any progress (an episode, an update, a worker that is ready) after which a run ends with the reason.
            At least twice as long as an update takes, which `dart-train plan` predicts.
    """

    min_free_disk_gib: float = Field(default=4.0, ge=0)
    pause_disk_gib: float = Field(default=1.0, ge=0)
    min_free_memory_gib: float = Field(default=6.0, ge=0)
    stall_minutes: float = Field(default=30.0, gt=0)
