"""The work folder of an ablation: which runs are done, and how the next one is started.

Role: `Session` runs the jobs of seeds and arms, one after the other, each in a process of its own. Rule: whatever is finished has a record
in the work folder and is never run again; whatever is not resumes where it was stopped, be it by a signal or a lost host. Non-goals: which
arms there are (`arms`), figures (`figures`), settings that calls agree on (`benchmarks.work_folder`).

    WORK/settings.json                    what every call must agree on
    WORK/seed-1/warm-start/               run folder; `warm` is what every arm of the seed starts from
    WORK/seed-1/full/                     run folder of an arm
    WORK/seed-1/full.json                 its record, once it is finished
    WORK/seed-1/logs/full.log             what its processes said
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ablation.dialogs import install
from benchmarks.ablation.late_inference import EVERY_S
from benchmarks.ablation.perturbed_engine import NOISE
from benchmarks.ablation.process import Job
from benchmarks.farm.load import say
from benchmarks.machine import commit, machine
from benchmarks.work_folder import write_json
from dart_agent.inference.process_group import set_parent_death_signal
from dart_envs.errors import UnsupportedCapabilityError
from dart_train.config import Recipe, load_recipe

ROOT = Path(__file__).resolve().parents[2]
RECIPE = Path(__file__).with_name("ablation.toml")


@dataclass(frozen=True, slots=True)
class Session:
    """The jobs of one work folder.

    Attributes:
        work: The work folder.
        settings: Overrides of the common recipe that every run of the folder shares.
        minutes: Minutes of training of each arm.
        noise: Noise of the perturbed engine.
        every_s: Seconds between two versions that the perturbed engine takes.
        judged_tasks: Tasks of each split that a version is judged on; None: all.
    """

    work: Path
    settings: Mapping[str, Any]
    minutes: float
    noise: float
    every_s: float
    judged_tasks: int | None = None

    def noted(self) -> dict[str, Any]:
        """Return what every call on the folder must agree on."""
        own = {"minutes": self.minutes, "noise": self.noise, "every_s": self.every_s, "judged_tasks": self.judged_tasks}
        return {**self.settings, **own}

    def open(self) -> None:
        """Bring suite and perturbed engine along in the work folder."""
        install(self.work / "plugins")

    def recipe(self, overrides: Mapping[str, Any]) -> Recipe:
        """Read the common recipe with the settings of the folder and those of a run.

        Args:
            overrides: Values by `section.key`.

        Returns:
            The recipe.
        """
        values = {**self.settings, **overrides}
        return load_recipe(RECIPE, tuple(f"{key}={_toml(value)}" for key, value in values.items()))

    def folder(self, seed: int) -> Path:
        """The folder of a seed.

        Args:
            seed: The seed.

        Returns:
            The folder, which is made.
        """
        folder = self.work / f"seed-{seed}"
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        return folder

    def recorded(self, seed: int, name: str, body: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Do something once for a seed.

        Args:
            seed: The seed.
            name: What it is called.
            body: Does it, and returns its figures.

        Returns:
            The figures, of this call or of an earlier one.
        """
        file = self.folder(seed) / f"{name}.json"
        if file.exists():
            found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return found
        began_s = time.monotonic()
        say(f"seed {seed}, {name}: begins or goes on")
        figures = {
            "commit": commit(),
            "cpu": machine()["cpu"],
            **body(),
            "seconds_of_last_call": round(time.monotonic() - began_s, 1),
        }
        write_json(file, figures)
        say(f"seed {seed}, {name}: done in {figures['seconds_of_last_call']:.0f} s")
        return figures

    def records(self, name: str) -> dict[int, dict[str, Any]]:
        """Read the records of one name, of all seeds that have one.

        Args:
            name: What it is called.

        Returns:
            Records by seed; those that were skipped are left out.
        """
        files = {int(file.parent.name.removeprefix("seed-")): file for file in self.work.glob(f"seed-*/{name}.json")}
        found = {seed: json.loads(file.read_text(encoding="utf-8")) for seed, file in sorted(files.items())}
        return {seed: record for seed, record in found.items() if "skipped" not in record}

    def do(self, seed: int, name: str, job: Job, *, perturbed: bool = False) -> None:
        """Do one job in a process of its own, which ends with this one.

        Args:
            seed: Its seed.
            name: Name of its log.
            job: The job.
            perturbed: Whether the engine of the job is perturbed.

        Raises:
            UnsupportedCapabilityError: It failed; the same call goes on where it stopped.
        """
        folder = self.folder(seed)
        file, log = folder / f"{name}.job", folder / "logs" / f"{name}.log"
        file.write_text(job.model_dump_json(), encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.ablation.process", str(file)]
        environment = self._environment(perturbed)
        with log.open("a", encoding="utf-8") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, preexec_fn=_end_with_parent
            )
            try:
                code = process.wait()
            except BaseException:  # also an interrupt: the job ends before this process goes on
                process.send_signal(signal.SIGTERM)
                process.wait()
                raise
        if code:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it said nothing"]
            raise UnsupportedCapabilityError(
                f"seed {seed}, {name} failed: {lines[-1]} (log: {log}); the same call goes on where it stopped"
            )

    def remove(self, folder: Path) -> None:
        """Remove what a call that was killed left unfinished.

        Args:
            folder: A folder below the work folder.
        """
        shutil.rmtree(folder, ignore_errors=True)

    def record_demonstration(self, task_id: str, folder: Path) -> None:
        """Record the solution of a task on a simulated desktop.

        Args:
            task_id: The task.
            folder: Where to.
        """
        command = [sys.executable, "-m", "dart_envs.cli.main", "demos", "record", "--oracle", task_id, str(folder)]
        environment = self._environment(False) | {"DART_PROVIDER": "sim"}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)

    def call(self, *arguments: str) -> None:
        """Run `dart-train` in the environment of the jobs.

        Args:
            arguments: Its arguments.
        """
        command = [sys.executable, "-m", "dart_train.cli", *arguments]
        subprocess.run(command, cwd=ROOT, env=self._environment(False), check=True, stdout=subprocess.DEVNULL)

    def stop_farm(self) -> None:
        """Stop the farm that recordings started, or that a killed job left behind: it has not the desktops of the next job."""
        command = [sys.executable, "-m", "dart_server.cli", "stop"]
        subprocess.run(command, env=self._environment(False), check=False, capture_output=True)

    def close(self) -> None:
        """Stop a farm that is left, and remove its folder."""
        self.stop_farm()
        shutil.rmtree(self._runtime, ignore_errors=True)

    @property
    def _runtime(self) -> Path:
        """Short enough for Unix sockets, and the same for the same work folder."""
        return Path("/tmp") / f"dart-abl-{hashlib.sha256(str(self.work.resolve()).encode()).hexdigest()[:8]}"

    def _environment(self, perturbed: bool) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("DART_")}
        self._runtime.mkdir(mode=0o700, exist_ok=True)
        paths = [str(ROOT), str(ROOT / "server"), str(self.work.resolve() / "plugins")]
        noise = {NOISE: f"{self.noise:g}", EVERY_S: f"{self.every_s:g}"} if perturbed else {}
        return own | {
            "DART_RUNTIME_DIR": str(self._runtime),
            "DART_STATE_DIR": str(self._runtime),
            "DART_SNAPSHOT_DIR": str(self._runtime / "snapshots"),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            **noise,
        }


def _toml(value: Any) -> str:
    return "null" if value is None else json.dumps(value)


def _end_with_parent() -> None:
    set_parent_death_signal(signal.SIGTERM)
