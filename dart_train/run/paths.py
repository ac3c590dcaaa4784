"""Every path of a run folder, in one place.

Role: names of files and folders of `runs/<name>/`. Rule: no other module spells one of these names. Non-goals: I/O other than `make`.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from pathlib import Path

from dart_envs.farm.embedded import runtime_dir


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Paths of one run.

    Attributes:
        root: The run folder.
    """

    root: Path

    def make(self) -> None:
        """Create the folders, and the id of the run."""
        for folder in (self.root, self.images, self.weights, self.checkpoints, self.logs, self.configs, self.report):
            folder.mkdir(parents=True, exist_ok=True)
        if not self.run_id.exists():
            self.run_id.write_text(f"{secrets.token_hex(8)}\n", encoding="ascii")

    @property
    def resolved_recipe(self) -> Path:
        """The whole recipe with every default written out."""
        return self.root / "resolved.json"

    @property
    def state(self) -> Path:
        """Which stages are done."""
        return self.root / "state.json"

    @property
    def run_id(self) -> Path:
        """A random id, which tells the run from others of its name where they share storage."""
        return self.root / "run-id"

    @property
    def lock(self) -> Path:
        """Held by the one `dart-train` process that works on this folder."""
        return self.root / "run.lock"

    @property
    def database(self) -> Path:
        """The SQLite file of the data manager."""
        return self.root / "data.db"

    @property
    def data_socket(self) -> Path:
        """The data manager's Unix socket: in the runtime directory, as a socket's path may not exceed about 100 bytes."""
        return runtime_dir() / f"data-{self._digest}.sock"

    @property
    def data_key(self) -> Path:
        """The key of the data manager's TCP address."""
        return self.root / "data-manager.key"

    @property
    def _digest(self) -> str:
        return hashlib.sha256(str(self.root.resolve()).encode()).hexdigest()[:12]

    @property
    def images(self) -> Path:
        """Image blobs by content hash."""
        return self.root / "images"

    @property
    def screens(self) -> Path:
        """Annotated screens of the demonstrations."""
        return self.root / "screens"

    @property
    def addresses(self) -> Path:
        """Where the inference workers are."""
        return self.configs / "inference-addresses.json"

    @property
    def served_versions(self) -> Path:
        """Which version each rollout worker with an action head acts with, a file for each."""
        return self.root / "served"

    @property
    def inference_dir(self) -> Path:
        """Sockets and keys of the inference workers: in the runtime directory, for the same reason as `data_socket`."""
        return runtime_dir() / f"policy-{self._digest}"

    @property
    def initial_model(self) -> Path:
        """The policy before the warm start."""
        return self.root / "model"

    @property
    def warm_start_model(self) -> Path:
        """The warm-started policy: version 0."""
        return self.root / "warm"

    @property
    def weights(self) -> Path:
        """Published policy versions, `v<N>/`."""
        return self.root / "weights"

    @property
    def imitated_images(self) -> Path:
        """Pictures of the demonstrations that the imitation term learns from."""
        return self.root / "imitated"

    @property
    def fine_tuning(self) -> Path:
        """Supervised fine-tuning of the recipe's policy: a run folder of its own."""
        return self.root / "sft"

    @property
    def fine_tuned_model(self) -> Path:
        """The result of a supervised fine-tuning, in its own folder."""
        return self.root / "fine-tuned"

    @property
    def evaluations(self) -> Path:
        """Evaluations of stored versions: a run folder for each."""
        return self.root / "evaluations"

    @property
    def checkpoints(self) -> Path:
        """Trainer states for resuming."""
        return self.root / "checkpoints"

    @property
    def logs(self) -> Path:
        """One log file per component."""
        return self.root / "logs"

    @property
    def configs(self) -> Path:
        """The JSON configuration that each component was started with."""
        return self.root / "configs"

    @property
    def metrics(self) -> Path:
        """One JSON object per line: everything the components measured."""
        return self.root / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """Event files of TensorBoard, made from the metrics."""
        return self.root / "tensorboard"

    @property
    def wandb(self) -> Path:
        """Files of the client of Weights & Biases, which chooses this name."""
        return self.root / "wandb"

    @property
    def report(self) -> Path:
        """The HTML report and its figures."""
        return self.root / "report"
