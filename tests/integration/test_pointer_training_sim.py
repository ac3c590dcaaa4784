"""`dart-train run` trains a policy with an action head on simulated desktops: every process is real.

Once a vLLM worker plans and points, once the rollout worker does so itself, and once an adapter is trained beside the head.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.ablation import dialogs
from dart_agent.grounding.acting.planner import TransformersPlanner
from dart_agent.grounding.acting.settings import tell_of_targets
from dart_agent.grounding.model import GroundingModel, load_grounding_model
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.types import PolicyRequest, SamplingParams
from dart_server.providers.sim.dialog import read_dialog
from dart_server.providers.sim.screen import ScreenState, draw
from tests.unit.dart_agent.grounding_models import small_model

ROOT = Path(__file__).parents[2]
ANSWER = "Action: click(start_box='the button')"
PICTURE_WH = (256, 160)
UPDATES = 2
REWARD = """
import json, sys
steps = json.load(sys.stdin)["steps"]
print(json.dumps({"reward": float(any((step["action"] or {}).get("x", 640) < 320 for step in steps))}))
"""
"""A click in the left half of the screen is right."""
RECIPE = """
[run]
name = "points"
[desktops]
provider = "sim"
count = 2
[tasks]
suite = "ablation"
families = ["press_nth"]
max_steps = 1
[model]
path = "PLACE/model"
pointer = true
[warmup]
enabled = false
imitated_demos_per_family = 0
[demos]
per_family = 4
[inference]
engine = "ENGINE"
workers = 1
max_model_len = 512
[rollout]
group_size = 4
max_tokens = 40
[reward]
source = "program"
evaluation = "program"
[reward.program]
argv = ["PYTHON", "PLACE/reward.py"]
[train]
updates = 2
groups_per_batch = 2
max_minutes = 8
[eval]
episodes = 4
[limits]
min_free_disk_gib = 0
min_free_memory_gib = 0
stall_minutes = 5
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that is short enough for Unix sockets; the farm in it is stopped with it."""
    with tempfile.TemporaryDirectory(prefix="dart-pt-", dir="/tmp") as folder:
        made = Path(folder)
        (made / "r").mkdir(mode=0o700)
        yield made
        stop = [sys.executable, "-m", "dart_server.cli", "stop"]
        subprocess.run(stop, env=environment(made), check=False, capture_output=True, timeout=60)


def environment(place: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("DART_")}
    path = os.pathsep.join([str(ROOT), str(place / "plugins"), *filter(None, [os.environ.get("PYTHONPATH")])])
    folders = {"DART_RUNTIME_DIR": "r", "DART_STATE_DIR": "r", "DART_SNAPSHOT_DIR": "snapshots"}
    return own | {name: str(place / folder) for name, folder in folders.items()} | {"PYTHONPATH": path}


def teach_to_describe(model: GroundingModel) -> None:
    """Let the planner say the same description on every screen, so that everything depends on the head."""
    torch.manual_seed(0)
    tokenizer = model.tokenizer
    answer = [*tokenizer(ANSWER, add_special_tokens=False).input_ids, tokenizer.convert_tokens_to_ids("<|im_end|>")]
    planner, builder = TransformersPlanner(model), PromptBuilder(tell_of_targets(preset("tiny")))
    optimizer = torch.optim.AdamW(model.backbone.parameters(), lr=3e-3)
    losses: list[float] = []
    while len(losses) < 20 or max(losses[-20:]) > 0.005:
        number = len(losses)
        assert number < 1000, losses[-5:]
        task = dialogs.SUITE.family("press_nth").task(dialogs.SUITE.name, number % dialogs.VARIATIONS)
        dialog = read_dialog(task.config[0].parameters["content"].encode())
        screen = np.array(draw(ScreenState(*dialogs.RESOLUTION, dialog=dialog)).resize(PICTURE_WH))
        messages = builder.messages(task.instruction, builder.new_history(), PICTURE_WH)
        inputs, prompt = planner._inputs(PolicyRequest(messages, (screen,), SamplingParams(), "teach"))
        ids = torch.tensor([[*prompt, *answer]])
        pixels = {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}
        image = (ids == model.backbone.config.image_token_id).int()
        logits = model.backbone(input_ids=ids, mm_token_type_ids=image, **pixels).logits[0, len(prompt) - 1 : -1]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(answer))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))


def stored_steps(database: Path) -> list[tuple[list[Any], list[Any]]]:
    """Version spans and pointers of every stored step."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT version_spans, pointers FROM steps ORDER BY rowid").fetchall()
    return [(json.loads(spans), json.loads(pointers or "[]")) for spans, pointers in rows]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("engine", "adapter"),
    [pytest.param("vllm", "", marks=pytest.mark.vllm), ("transformers", ""), ("transformers", "lora_rank = 4\n")],
    ids=["vllm", "transformers", "adapter"],
)
def test_text_and_head_are_trained_and_every_version_acts(place: Path, engine: str, adapter: str) -> None:
    torch.set_num_threads(1)
    model = small_model("qwen3_vl", place, offset_parts=2)
    teach_to_describe(model)
    model.save(place / "model")
    dialogs.install(place / "plugins")
    (place / "reward.py").write_text(REWARD)
    recipe = RECIPE.replace("PLACE", str(place)).replace("PYTHON", sys.executable).replace("ENGINE", engine)
    recipe = recipe.replace("[train]\n", f"[train]\n{adapter}")
    (place / "recipe.toml").write_text(recipe)
    command = [sys.executable, "-m", "dart_train.cli", "run", "recipe.toml"]
    done = subprocess.run(
        command, cwd=place, env=environment(place), capture_output=True, text=True, timeout=800, check=False
    )
    run = place / "runs" / "points"
    logs = {file.name: file.read_text()[-2000:] for file in (run / "logs").glob("*.log")}
    assert done.returncode in (0, 1), (done.stdout, done.stderr, logs)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    updates = [line for line in lines if line["kind"] == "update"]
    assert [line["version"] for line in updates] == list(range(1, UPDATES + 1)), (done.stdout, logs)
    for line in updates:
        assert line["targets"] > 0
        assert line["tokens"] > line["targets"]
    assert updates[0]["target_mismatch_k3"] < 1e-3, "the trainer finds the log-probs that the rollout worker stored"
    steps = stored_steps(run / "data.db")
    acted = {span[0] for spans, pointers in steps if pointers for span in spans}
    assert {0, UPDATES} <= acted, "the start model, and the last version in the evaluation after training"
    pointed = [spans for spans, pointers in steps if pointers]
    assert all(spans[-1][2] - spans[-1][1] >= 1 for spans in pointed), "each point has a version"
    if engine == "transformers":
        assert json.loads((run / "served" / "rollout-transformers.json").read_text()) == {"version": UPDATES}
    first, last = (load_grounding_model(path).head for path in (place / "model", run / "weights" / f"v{UPDATES}"))
    assert not torch.equal(first.projection_dec[0].weight, last.projection_dec[0].weight)
    assert not torch.equal(first.offset.key.weight, last.offset.key.weight)
    assert (run / "weights" / f"v{UPDATES}" / "adapter" / "adapter_model.safetensors").exists() == bool(adapter)
