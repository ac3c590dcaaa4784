"""A data manager on a temporary store, in virtual time, over made-up tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import select

from dart_agent.data_client.fake_trajectories import fake_image, fake_trajectory
from dart_agent.data_client.image_store import BlobStorage, ImageStore
from dart_agent.data_client.payloads import SamplingPayload, TrajectoryPayload
from dart_agent.data_client.wire import AbandonRequest, Batch, PhaseSpec, TaskSelection
from dart_agent.errors import StoreError
from dart_agent.types import Purpose, VersionSpan, WorkItem
from dart_train.data_manager.catalog import interleave_families
from dart_train.data_manager.config import DataManagerConfig
from dart_train.data_manager.service import DataManager
from dart_train.data_manager.store.models import GroupTable
from dart_train.data_manager.store.trajectories import TrajectoryStore

FAMILIES = ("tick", "type")
SPLITS = {
    f"s/{family}/{number}": split
    for family in FAMILIES
    for number, split in enumerate(["train"] * 6 + ["validation"] * 2 + ["test"] * 2)
}


class FakeTaskCatalog:
    """A catalog over `SPLITS`."""

    def split_of(self, task_id: str) -> str:
        if task_id not in SPLITS:
            raise StoreError(f"there is no task {task_id}")
        return SPLITS[task_id]

    def select(self, selection: TaskSelection) -> list[str]:
        families = selection.families or FAMILIES
        ids = [[i for i, split in SPLITS.items() if split == selection.split and f"/{name}/" in i] for name in families]
        return interleave_families(ids, selection.count)


class DataManagerHarness:
    """A data manager with the moves that tests make; images are in a directory below `root` where no storage is given."""

    def __init__(self, root: Path, images: BlobStorage | None = None, **settings: Any) -> None:
        self.root = root
        self.now_s = 1000.0
        self.requests = 0
        self.images: BlobStorage = images or ImageStore(root / "images")
        self.config = DataManagerConfig.model_validate(
            {"database": root / "data.db", "images": root / "images", "socket": root / "data.sock"} | settings
        )
        self.open()

    def open(self) -> None:
        self.store = TrajectoryStore.open(self.config.database, FakeTaskCatalog().split_of, now=lambda: self.now_s)
        self.manager = DataManager(self.store, self.images, FakeTaskCatalog(), self.config)

    def restart(self) -> None:
        self.store.close()
        self.open()

    def phase(self, name: str = "train", **changes: Any) -> None:
        spec: dict[str, Any] = {
            "name": name,
            "purpose": Purpose.TRAIN,
            "select": TaskSelection(suite="s", split="train"),
            "rollouts_per_task": 4,
            "sampling": SamplingPayload(max_tokens=8),
            "max_steps": 10,
            "endless": True,
        }
        self.manager.start_phase(PhaseSpec.model_validate(spec | changes))

    def acquire(self, worker: str = "w1", request: str | None = None) -> WorkItem | None:
        self.requests += 1
        reply = self.manager.assign(worker, request or f"request-{self.requests}")
        return None if reply.item is None else reply.item.to_value()

    def must_acquire(self, worker: str = "w1") -> WorkItem:
        item = self.acquire(worker)
        assert item is not None
        return item

    def abandon(self, item: WorkItem, cause: str = "no desktop", *, uses_attempt: bool = True) -> int:
        return self.manager.abandon(
            AbandonRequest(
                rollout_id=item.rollout_id, assignment=item.assignment, cause=cause, uses_attempt=uses_attempt
            )
        )

    def report(self, item: WorkItem, reward: float | None = 1.0, **options: Any) -> bool:
        image = fake_image(self.requests)
        self.images.put(image)
        return self.manager.report(
            TrajectoryPayload.from_value(fake_trajectory(item, reward=reward, image=image, **options)[0])
        )

    def group(self, rewards: list[float | None], **options: Any) -> str:
        """Claim and report one whole group; returns its id."""
        items = [self.must_acquire() for _ in rewards]
        assert len({item.group_id for item in items}) == 1
        for item, reward in zip(items, rewards, strict=True):
            self.report(item, reward, **options)
        return items[0].group_id

    def state_of(self, group_id: str) -> tuple[str, str | None]:
        with self.store.begin() as session:
            group = session.scalars(select(GroupTable).where(GroupTable.group_id == group_id)).one()
            return group.state, group.reason

    def batch(self, version: int = 0) -> Batch | None:
        return self.manager.next_batch(version).batch

    def must_batch(self, version: int = 0) -> Batch:
        batch = self.batch(version)
        assert batch is not None
        return batch


SPANS = (VersionSpan(0, 0, 2), VersionSpan(3, 2, 4))
