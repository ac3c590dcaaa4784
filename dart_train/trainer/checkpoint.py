"""Trainer states on disk, for exact resuming.

Role: save and load everything that a train step depends on: trained weights, optimiser, version, the last batch. Tensors are written by
torch.distributed.checkpoint: every process writes the shards that it holds, and may read them with another number of processes. Nothing in
a train step is random but the order of rows, which the seed and the number of updates give. Rule: a state is written into a directory of a
temporary name, synced and renamed. It is complete when every file has the size that its `state.json` names; where the newest is not, the
one before it is used. Loading runs no code from the files. Non-goals: publishing (`dart_train.model.weights`).
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_train.model.weights import sync_path
from dart_train.trainer.ranks import Ranks

if TYPE_CHECKING:
    from torch import Tensor

_NAME = re.compile(r"update(\d+)")
_STATE = "state.json"
_METADATA = ".metadata"
_METADATA_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_METADATA_NAMES = (
    ("torch", "Size"), ("torch.serialization", "_get_layout"), ("pathlib", "PosixPath"), ("pathlib", "Path"),
)  # fmt: skip
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What a train step depends on.

    Attributes:
        version: Policy version of the weights.
        updates: Train steps so far.
        last_batch: Id of the last batch, None before the first.
        steps: What became of the rows of the last batch (`dart_agent.data_client.wire.StepUse` as dictionaries).
        metrics: Metrics of the last train step.
        trained_s: Seconds since training began.
        lineage: Digests of the weights that the present ones were trained from, the first version first.
        tensors: Trained weights and optimiser's state by name, those of the trainer itself; empty in a state from disk.
        directory: Where a state from disk is; None: the state is not from disk.
    """

    version: int
    updates: int
    last_batch: str | None
    steps: list[dict[str, Any]]
    metrics: dict[str, float]
    trained_s: float
    lineage: list[str] = field(default_factory=list)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    directory: Path | None = None

    def load(self, into: Mapping[str, Tensor], ranks: Ranks | None = None) -> set[str]:
        """Read the tensors of a state from disk into tensors that exist.

        Args:
            into: Tensors by name, sharded or not; the values of those that the state has in the same shape are replaced.
            ranks: The processes that read together; None: this one alone.

        Returns:
            Names of the tensors that were read.
        """
        from torch.distributed.checkpoint.state_dict_loader import load

        assert self.directory is not None
        reader = _reader(self.directory)
        stored = reader.read_metadata().state_dict_metadata
        found = {name: into[name] for name, item in stored.items() if name in into and item.size == into[name].shape}
        with _one_process_is_meant():
            load(found, storage_reader=reader, no_dist=ranks is None or ranks.size == 1)
        return set(found)


_PLAIN = tuple(item.name for item in fields(TrainerState) if item.name not in ("tensors", "directory"))


class CheckpointStore:
    """Trainer states in one directory.

    Args:
        root: The directory.
        keep: How many of the newest states are kept.
        ranks: The processes that save together; None: this one alone.
    """

    def __init__(self, root: Path, keep: int, ranks: Ranks | None = None) -> None:
        self.root = root
        self._keep = keep
        self._ranks = ranks or Ranks()

    def save(self, state: TrainerState) -> Path:
        """Write a state and remove the oldest ones; every rank calls this with its shards.

        Args:
            state: The state.

        Returns:
            The directory of the state.
        """
        target = self.root / f"update{state.updates:08d}"
        temporary = self.root / f".{target.name}.tmp"
        try:
            self._write(state, temporary, target)
        except BaseException:  # also where the process is to end: nothing else knows the folder
            if self._ranks.first:
                shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._ranks.gather(None)
        return target

    def _write(self, state: TrainerState, temporary: Path, target: Path) -> None:
        """Write a state under a temporary name, rename it, and remove the oldest ones."""
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        if self._ranks.first:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        self._ranks.gather(None)
        writer = FileSystemWriter(temporary, sync_files=True)
        with _one_process_is_meant():
            save(dict(state.tensors), storage_writer=writer, no_dist=self._ranks.size == 1)
        if self._ranks.first:
            sizes = {path.name: path.stat().st_size for path in temporary.iterdir()}
            plain = {name: getattr(state, name) for name in _PLAIN}
            _write_synced(temporary / _STATE, json.dumps(plain | {"files": sizes}) + "\n")
            sync_path(temporary)
            if target.exists():
                shutil.rmtree(target)
            os.replace(temporary, target)
            sync_path(self.root)
            for old in self._states()[: -self._keep]:
                shutil.rmtree(old)

    def remove_partial(self) -> None:
        """Remove what a killed process left partially written; the first rank calls this before it saves."""
        for leftover in self.root.glob(".update*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)

    def save_trained_s(self, trained_s: float) -> None:
        """Note how long training has gone on, also between and before states.

        Args:
            trained_s: Seconds since training began.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        replace_synced(self.root / "trained_s", f"{trained_s:.1f}\n")

    def trained_s(self) -> float:
        """Return the seconds that were noted last; 0 where none were, or the note cannot be read."""
        path = self.root / "trained_s"
        try:
            return float(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return 0.0
        except ValueError as error:
            log.warning("%s cannot be read (%s): the time of training before it is not known", path, error)
            return 0.0

    def updates(self) -> int:
        """Return the train steps of the newest state; 0 where there is none."""
        return max((int(match[1]) for path in self._states() if (match := _NAME.fullmatch(path.name))), default=0)

    def latest(self) -> TrainerState | None:
        """Find the newest complete state.

        Returns:
            The state without its tensors, which `TrainerState.load` reads; None where there is none.
        """
        for path in reversed(self._states()):
            try:
                content = json.loads((path / _STATE).read_text(encoding="utf-8"))
                sizes = {entry.name: entry.stat().st_size for entry in path.iterdir() if entry.name != _STATE}
                if sizes != content.pop("files"):
                    raise ValueError("a file is missing or has another size")
                _reader(path).read_metadata()
                return TrainerState(**content, directory=path)
            except (OSError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
                log.warning("checkpoint %s cannot be read (%s); trying the one before", path, error)
        return None

    def _states(self) -> list[Path]:
        return sorted(path for path in self.root.glob("update*") if _NAME.fullmatch(path.name))


class _MetadataUnpickler(pickle.Unpickler):
    """Reads what torch.distributed.checkpoint pickled, and builds nothing but its own records."""

    def find_class(self, module: str, name: str) -> Any:
        import torch

        found: Any = None
        if "." not in name and module in (*_METADATA_MODULES, *(known for known, _ in _METADATA_NAMES)):
            found = super().find_class(module, name)
        own = isinstance(found, type) and module in _METADATA_MODULES and found.__module__ == module
        if own or isinstance(found, torch.dtype) or (module, name) in _METADATA_NAMES:
            return found
        raise pickle.UnpicklingError(f"{module}.{name} does not belong in a checkpoint")


def _reader(directory: Path) -> Any:
    """A reader of tensors that runs no code from the files."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import StorageMeta

    class Reader(FileSystemReader):
        def read_metadata(self, *_: Any, **__: Any) -> Any:
            with (directory / _METADATA).open("rb") as file:
                metadata = _MetadataUnpickler(file).load()
            if metadata.storage_meta is None:
                metadata.storage_meta = StorageMeta()
            metadata.storage_meta.load_id = self.load_id
            return metadata

    return Reader(directory)


@contextmanager
def _one_process_is_meant() -> Iterator[None]:
    """Silence the warning about `no_dist`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def replace_synced(path: Path, text: str) -> None:
    """Write a file, or replace it, so that a power cut leaves its whole content before or after.

    Args:
        path: The file; its folder exists.
        text: The new content.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    _write_synced(temporary, text)
    os.replace(temporary, path)
    sync_path(path.parent)


def _write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
