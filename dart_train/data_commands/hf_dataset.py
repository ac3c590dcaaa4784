"""Export to a Hugging Face dataset: Parquet files with a dataset card, read by `datasets.load_dataset(FOLDER, NAME)`.

Role: three configurations. `trajectories` has a row per episode; `steps` a row per step with ids, log-probs, versions, advantage and why
it was trained on; `images` each screenshot once, by its content hash. Rule: sampled ids are exported as they were sampled; the schema
carries the features that `datasets` decodes images by. Files are replaced one by one, the card last. Non-goals: uploading (`hf upload`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from dart_agent.data_client.image_store import BlobError, BlobStorage, encode_png
from dart_agent.types import Trajectory
from dart_train.data_commands.provenance import TrajectoryProvenance
from dart_train.data_commands.redaction import Redaction

ROWS_PER_GROUP = 512
"""Rows of a Parquet row group, and so of the memory that the export takes at once."""
IMAGE_FEATURES = {"sha256": {"dtype": "string", "_type": "Value"}, "image": {"_type": "Image"}}
CARD = """---
configs:
- config_name: trajectories
  data_files: trajectories.parquet
  default: true
- config_name: steps
  data_files: steps.parquet
- config_name: images
  data_files: images.parquet
tags:
- computer-use
- reinforcement-learning
---
# Trajectories of {name}

{trajectories} trajectories with {steps} steps and {images} screenshots, exported by DART.

- `trajectories`: task, instruction, reward in [0, 1] (empty: masked) and what judged it, stop reason, and what became of it in training.
- `steps`: sampled ids and log-probs of the distribution that was sampled from, exact prompt ids, version spans, action, advantage, entropy,
  and why the step was trained on. `image_sha256` names the screenshots of the prompt in their order.
- `images`: each screenshot once.

{redacted}
"""


def write_dataset(
    items: Iterable[tuple[Trajectory, TrajectoryProvenance, str]],
    images: BlobStorage,
    folder: Path,
    name: str,
    redaction: Redaction,
) -> dict[str, int]:
    """Write a dataset.

    Args:
        items: Trajectories, redacted already, with their provenance and instruction.
        images: Where their images are.
        folder: The folder; its files are replaced.
        name: Name of the run.
        redaction: What was taken out.

    Returns:
        Number of rows by configuration.
    """
    import pyarrow as pa

    trajectories: list[dict[str, Any]] = []
    hashes: dict[str, None] = {}

    def steps() -> Iterator[dict[str, Any]]:
        for trajectory, known, instruction in items:
            trajectories.append(_trajectory_row(trajectory, known, instruction))
            for row in _step_rows(trajectory, known, redaction):
                hashes.update(dict.fromkeys(row["image_sha256"]))
                yield row

    def screens() -> Iterator[dict[str, Any]]:
        for sha256 in hashes:
            try:
                content = encode_png(images.get(sha256))
            except BlobError:
                continue
            yield {"sha256": sha256, "image": {"bytes": content, "path": f"{sha256}.png"}}

    folder.mkdir(parents=True, exist_ok=True)
    span = pa.struct([("version", pa.int32()), ("start", pa.int32()), ("end", pa.int32()), ("kept_kv", pa.bool_())])
    step_schema = pa.schema(
        [
            ("rollout_id", pa.string()), ("index", pa.int32()),
            ("prompt_ids", pa.list_(pa.int32())), ("token_ids", pa.list_(pa.int32())),
            ("logprobs", pa.list_(pa.float32())), ("version_spans", pa.list_(span)),
            ("image_sha256", pa.list_(pa.string())), ("text", pa.string()), ("action", pa.string()),
            ("parse_error", pa.string()), ("finish_reason", pa.string()), ("temperature", pa.float32()),
            ("model_s", pa.float32()), ("env_s", pa.float32()), ("advantage", pa.float64()), ("entropy", pa.float64()),
            ("trained", pa.bool_()), ("updates", pa.list_(pa.int32())), ("provenance", pa.list_(pa.string())),
        ]
    )  # fmt: skip
    image_schema = pa.schema(
        [("sha256", pa.string()), ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())]))],
        metadata={"huggingface": json.dumps({"info": {"features": IMAGE_FEATURES}})},
    )
    trajectory_schema = pa.schema(
        [
            ("rollout_id", pa.string()), ("group_id", pa.string()), ("task_id", pa.string()),
            ("instruction", pa.string()), ("purpose", pa.string()), ("phase", pa.string()), ("reward", pa.float64()),
            ("reward_source", pa.string()),
            ("stop", pa.string()), ("cause", pa.string()), ("started_at_s", pa.float64()),
            ("duration_s", pa.float64()), ("steps", pa.int32()), ("fate", pa.string()), ("why", pa.string()),
            ("info", pa.string()),
        ]
    )  # fmt: skip
    counts = {"steps": _write(folder / "steps.parquet", step_schema, steps())}
    counts["images"] = _write(folder / "images.parquet", image_schema, iter(()) if redaction.screens else screens())
    counts["trajectories"] = _write(folder / "trajectories.parquet", trajectory_schema, iter(trajectories))
    taken_out = [word for word, out in (("typed text", redaction.text), ("screenshots", redaction.screens)) if out]
    redacted = f"Taken out: {' and '.join(taken_out)}." if taken_out else "Nothing was taken out."
    (folder / "README.md").write_text(CARD.format(name=name, redacted=redacted, **counts), encoding="utf-8")
    return counts


def _write(path: Path, schema: Any, rows: Iterator[dict[str, Any]]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    written = 0
    temporary = path.with_name(f".{path.name}.tmp")
    with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        while chunk := list(islice(rows, ROWS_PER_GROUP)):
            writer.write_table(pa.Table.from_pylist(chunk, schema=schema))
            written += len(chunk)
    os.replace(temporary, path)
    return written


def _trajectory_row(trajectory: Trajectory, known: TrajectoryProvenance, instruction: str) -> dict[str, Any]:
    return {
        "rollout_id": trajectory.rollout_id,
        "group_id": trajectory.group_id,
        "task_id": trajectory.task_id,
        "instruction": instruction,
        "purpose": trajectory.purpose.value,
        "phase": trajectory.phase,
        "reward": trajectory.reward,
        "reward_source": trajectory.reward_source.value,
        "stop": trajectory.stop.value,
        "cause": trajectory.cause,
        "started_at_s": trajectory.started_at_s,
        "duration_s": trajectory.duration_s,
        "steps": len(trajectory.steps_S),
        "fate": known.fate,
        "why": known.why,
        "info": json.dumps(dict(trajectory.info)),
    }


def _step_rows(trajectory: Trajectory, known: TrajectoryProvenance, redaction: Redaction) -> Iterator[dict[str, Any]]:
    provenance = {each.index: each for each in known.steps}
    for step in trajectory.steps_S:
        uses = provenance[step.index].uses
        trained = [use for use in uses if use.trained]
        told = trained or list(uses)
        yield {
            "rollout_id": trajectory.rollout_id,
            "index": step.index,
            "prompt_ids": [] if redaction.text else list(step.prompt_ids_P),
            "token_ids": [] if redaction.text else list(step.token_ids_T),
            "logprobs": list(step.logprobs_T),
            "version_spans": [
                {"version": span.version, "start": span.start, "end": span.end, "kept_kv": span.kept_kv}
                for span in step.version_spans
            ],
            "image_sha256": [] if redaction.screens else list(step.image_sha256),
            "text": step.text,
            "action": None if step.action is None else json.dumps(dict(step.action)),
            "parse_error": step.parse_error,
            "finish_reason": step.finish_reason.value,
            "temperature": step.sampling.temperature,
            "model_s": step.model_s,
            "env_s": step.env_s,
            "advantage": told[-1].advantage if told else None,
            "entropy": told[-1].entropy if told else None,
            "trained": bool(trained),
            "updates": [use.version for use in trained],
            "provenance": list(provenance[step.index].verdict),
        }
