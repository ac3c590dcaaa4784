"""Wire, weight files, supervisor, addresses and settings of the inference workers: nothing here starts vLLM."""

from __future__ import annotations

import asyncio
import json
import struct
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dart_agent.errors import ConfigError, PolicyUnavailableError, WeightUpdateError, WorkerError, WorkerKilledError
from dart_agent.inference import wire
from dart_agent.inference.addresses import WorkerAddress, read_addresses, wait_for_addresses, write_addresses
from dart_agent.inference.client import WorkerClient
from dart_agent.inference.component import ACTIVITY_S, record_activity
from dart_agent.inference.decisions.worker_activity import activity_line
from dart_agent.inference.settings import KEY_NAME, PublishedWeights, WorkerSettings
from dart_agent.inference.supervisor import Supervisor
from dart_agent.inference.weights.files import check_weights_match, tensor_shapes
from dart_agent.inference.weights.leases import make_leasable, try_remove
from dart_agent.inference.worker_process import WorkerProcess, start_seed
from tests.unit.dart_agent.fakes import FakeClock, FakeWorkerClient, completion, request


def test_a_request_survives_the_wire() -> None:
    plain = request("r7", np.random.default_rng(0).integers(0, 255, (5, 7, 3), dtype=np.uint8))
    sent = replace(plain, image_sha256=("ab" * 32,), prefix_ids_P=(7, 8, 9), prefix_messages=2)
    got = wire.decode_request(wire.encode_request(sent))
    assert (got.messages, got.sampling, got.request_id) == (sent.messages, sent.sampling, sent.request_id)
    assert (got.image_sha256, got.prefix_ids_P, got.prefix_messages) == (("ab" * 32,), (7, 8, 9), 2)
    assert np.array_equal(got.images[0], sent.images[0])


@pytest.mark.parametrize("key", [None, "secret"], ids=["no-key-yet", "no-socket-yet"])
async def test_a_worker_that_is_starting_is_not_told_as_a_missing_file(key: str | None, tmp_path: Path) -> None:
    if key is not None:
        (tmp_path / KEY_NAME).write_text(key)
    async with WorkerClient("policy-0", tmp_path) as client:
        with pytest.raises(WorkerError, match=r"^policy-0 does not answer: it is still starting, or has ended$"):
            await client.health()


@pytest.mark.parametrize(
    "damage", [lambda b: b[:2], lambda b: b[:-1], lambda b: b + b"x", lambda b: b"\0\0\0\2{}" + b[6:]]
)
def test_a_damaged_request_is_refused(damage: object) -> None:
    assert callable(damage)
    with pytest.raises(ValueError):
        wire.decode_request(damage(wire.encode_request(request())))


def test_a_completion_survives_the_wire_and_its_lengths_are_checked() -> None:
    sent = replace(completion("Action: wait()", 3, "policy-1"), queue_s=1.5)
    reply = json.loads(json.dumps(wire.encode_completion(sent)))
    assert wire.decode_completion(reply, worker="policy-1") == sent
    reply["logprobs"].pop()
    with pytest.raises(ValueError, match="2 tokens, 1 log-probs"):
        wire.decode_completion(reply, worker="policy-1")


def write_tensors(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A safetensors file of float32 zeros, written byte by byte."""
    header, end = dict[str, object](), 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def test_weights_must_have_exactly_the_tensors_of_the_model(tmp_path: Path) -> None:
    expected: dict[str, tuple[int, ...]] = {"a": (2, 3), "b": (4,)}
    write_tensors(tmp_path / "v1/model.safetensors", expected)
    assert tensor_shapes(tmp_path / "v1") == expected
    check_weights_match(tmp_path / "v1", expected)
    wrong: list[tuple[str, dict[str, tuple[int, ...]], str]] = [
        ("missing", {"a": (2, 3)}, "1 missing"),
        ("unknown", {**expected, "c": (1,)}, "1 unknown"),
        ("shape", {"a": (3, 2), "b": (4,)}, "1 of another shape"),
    ]
    for name, shapes, words in wrong:
        write_tensors(tmp_path / name / "model.safetensors", shapes)
        with pytest.raises(WeightUpdateError, match=words):
            check_weights_match(tmp_path / name, expected)


def test_a_tied_output_embedding_may_be_stored_or_not(tmp_path: Path) -> None:
    once: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (8, 4)}
    twice = once | {"lm_head.weight": (8, 4)}
    write_tensors(tmp_path / "once/model.safetensors", once)
    write_tensors(tmp_path / "twice/model.safetensors", twice)
    check_weights_match(tmp_path / "once", twice, tied=True)
    check_weights_match(tmp_path / "twice", once, tied=True)
    with pytest.raises(WeightUpdateError, match="1 missing"):
        check_weights_match(tmp_path / "once", twice)


def test_a_cut_off_or_missing_weight_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightUpdateError, match="holds no"):
        tensor_shapes(tmp_path)
    file = tmp_path / "model.safetensors"
    write_tensors(file, {"a": (8,)})
    whole = file.read_bytes()
    for cut in (0, 5, 20, len(whole) - 1):
        file.write_bytes(whole[:cut])
        with pytest.raises(WeightUpdateError, match="not a complete safetensors file"):
            tensor_shapes(tmp_path)


class FakeSupervisedWorker:
    """A worker process in memory: the test ends it with `end`."""

    def __init__(self, name: str, failing_starts: int = 0) -> None:
        self.name = name
        self.failing_starts = failing_starts
        self.starts = 0
        self.stopped = False
        self.events: list[str] = []
        self._ended = asyncio.Event()

    async def start(self) -> None:
        self.starts += 1
        self._ended = asyncio.Event()

    async def wait_until_ready(self) -> None:
        if self.starts > 1 and self.failing_starts:
            self.failing_starts -= 1
            raise WorkerError(f"{self.name} did not start")

    async def wait(self) -> int:
        await self._ended.wait()
        return -9

    async def drain(self) -> None:
        self.events.append("drained")

    def kill(self) -> None:
        self.events.append("killed")
        self._ended.set()

    async def stop(self) -> None:
        self.stopped = True

    def end(self) -> None:
        self._ended.set()


async def test_a_worker_that_ends_is_started_again_and_no_other_is_touched() -> None:
    first, second = FakeSupervisedWorker("a", failing_starts=2), FakeSupervisedWorker("b")
    async with Supervisor([first, second], clock=FakeClock()) as supervisor:
        first.end()
        for _ in range(50):
            await asyncio.sleep(0)
        assert (first.starts, second.starts, supervisor.restarts) == (4, 1, 1)
    assert first.stopped
    assert second.stopped


async def test_a_replaced_worker_is_drained_first_and_started_again_once() -> None:
    first, second = FakeSupervisedWorker("a"), FakeSupervisedWorker("b")
    async with Supervisor([first, second], clock=FakeClock()) as supervisor:
        supervisor.replace("a", "it hangs")
        supervisor.replace("a", "it hangs")
        for _ in range(50):
            await asyncio.sleep(0)
        assert (first.starts, second.starts, first.events) == (2, 1, ["drained", "killed"])
    assert second.events == ["drained"], "a stopped worker finishes what runs, too"


async def test_a_worker_that_cannot_be_started_again_is_an_error_of_the_run() -> None:
    worker = FakeSupervisedWorker("a", failing_starts=3)
    async with Supervisor([worker], clock=FakeClock()) as supervisor:
        worker.end()
        with pytest.raises(WorkerError, match="a did not start"):
            await supervisor.wait_for_failure()


class NeverReadyWorker(FakeSupervisedWorker):
    """Its first starts end with these errors."""

    def __init__(self, name: str, *errors: WorkerError) -> None:
        super().__init__(name)
        self.errors = list(errors)

    async def wait_until_ready(self) -> None:
        if self.errors:
            raise self.errors.pop(0)


async def test_a_worker_that_is_killed_while_it_starts_for_the_first_time_is_started_again() -> None:
    worker = NeverReadyWorker(
        "a", WorkerKilledError("a ended with code -15"), WorkerKilledError("a ended with code -9")
    )
    async with Supervisor([worker], clock=FakeClock()):
        assert worker.starts == 3


async def test_a_worker_that_ends_by_itself_at_its_first_start_is_an_error_at_once() -> None:
    worker = NeverReadyWorker("a", WorkerError("a ended with code 1"), WorkerError("a ended with code 1"))
    with pytest.raises(WorkerError, match="code 1"):
        await Supervisor([worker], clock=FakeClock()).start()
    assert (worker.starts, worker.stopped) == (1, True)


async def test_a_worker_process_that_a_signal_ends_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dart_agent.inference.settings.resolve_checkpoint", lambda name: tmp_path)
    monkeypatch.setattr("dart_agent.inference.settings.read_checkpoint_info", lambda path: None)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "kill_me.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    place = Path(tempfile.mkdtemp(prefix="dart-"))  # a socket's path must be short
    for module, kind in (("kill_me", WorkerKilledError), ("no_such_module_of_ours", WorkerError)):
        worker = WorkerProcess(
            "w", WorkerSettings(model="m"), directory=place, log_path=tmp_path / "log", module=module
        )
        await worker.start()
        try:
            with pytest.raises(kind, match="while starting") as raised:
                await worker.wait_until_ready()
        finally:
            await worker.stop()
        assert type(raised.value) is kind


async def test_a_worker_that_is_late_names_the_setting_that_gives_it_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dart_agent.inference.settings.WorkerSettings.check", lambda self: None)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "load_for_ever.py").write_text("import signal\nsignal.pause()\n")
    place = Path(tempfile.mkdtemp(prefix="dart-"))  # a socket's path must be short
    settings = WorkerSettings(model="m", start_timeout_s=40.0)
    worker = WorkerProcess(
        "w", settings, directory=place, log_path=tmp_path / "log", clock=FakeClock(), module="load_for_ever"
    )
    await worker.start()
    try:
        with pytest.raises(WorkerError, match=r"within 40 s of its start: .*: inference\.start_timeout_s\)$"):
            await worker.wait_until_ready()
    finally:
        worker.kill()
        await worker.stop()


async def test_a_worker_that_starts_again_does_not_repeat_its_random_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the launcher is another process: the second worker here is that of a run that goes on."""
    monkeypatch.setattr("dart_agent.inference.settings.WorkerSettings.check", lambda self: None)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "tell_settings.py").write_text(
        "import sys\nprint(sys.argv[sys.argv.index('--settings') + 1], end='')\n"
    )
    place = Path(tempfile.mkdtemp(prefix="dart-"))  # a socket's path must be short
    settings, log = WorkerSettings(model="m", seed=7), tmp_path / "logs" / "w.log"
    for starts in (2, 1):
        worker = WorkerProcess("w", settings, directory=place, log_path=log, module="tell_settings")
        for _ in range(starts):
            await worker.start()
            assert await worker.wait() == 0
        await worker.stop()
    told = log.read_text().splitlines()
    seeds = [json.loads(line)["seed"] for line in told[1::2]]
    assert seeds == [start_seed(7, starts) for starts in range(3)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    assert told[::2] == [f"--- start {number} of w, seed {seed}" for number, seed in enumerate(seeds, 1)]


async def test_weights_are_held_while_a_worker_starts_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newer versions are published meanwhile, and older ones are pruned; a start that failed holds nothing."""
    monkeypatch.setattr("dart_agent.inference.settings.WorkerSettings.check", lambda self: None)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "wait_for_input.py").write_text(
        "import pathlib, sys, time\n"
        "while not pathlib.Path(__file__).with_name('end').exists():\n"
        "    time.sleep(0.02)\n"
        "sys.exit(1)\n"
    )
    weights = tmp_path / "v1"
    weights.mkdir()
    make_leasable(weights)
    place = Path(tempfile.mkdtemp(prefix="dart-"))  # a socket's path must be short
    worker = WorkerProcess(
        "w",
        WorkerSettings(model="m", start_timeout_s=40.0),
        directory=place,
        log_path=tmp_path / "log",
        module="wait_for_input",
    )
    worker.published = PublishedWeights(1, weights)
    await worker.start()
    try:
        starting = asyncio.create_task(worker.wait_until_ready())
        assert not try_remove(weights)
        (tmp_path / "end").touch()
        with pytest.raises(WorkerError, match="while starting"):
            await starting
        assert try_remove(weights)
    finally:
        await worker.stop()
    with pytest.raises(WorkerError, match=r"w cannot start: the weights in .* were removed: take the newest version"):
        await worker.start()


async def test_addresses_are_read_as_written_and_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "addresses.json"
    with pytest.raises(PolicyUnavailableError, match="did not appear within 2 s"):
        await wait_for_addresses(path, FakeClock(), timeout_s=2.0)
    addresses = [WorkerAddress("policy-0", tmp_path / "0"), WorkerAddress("policy-1", tmp_path / "1")]
    write_addresses(path, addresses)
    assert read_addresses(path) == addresses
    assert await wait_for_addresses(path, FakeClock()) == addresses
    path.write_text("{}")
    with pytest.raises(ConfigError):
        read_addresses(path)


def test_a_missing_model_and_a_long_directory_are_found_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no complete model, config\.json is missing"):
        WorkerSettings(model=str(tmp_path)).check()
    settings = WorkerSettings(model=str(tmp_path))
    with pytest.raises(ConfigError, match="DART_RUNTIME_DIR"):
        WorkerProcess("policy-0", settings, directory=Path("/tmp") / ("x" * 70) / "0", log_path=tmp_path / "log")


def health(pid: int, up_s: float, serving_s: float, updating_s: float) -> wire.WorkerHealth:
    return wire.WorkerHealth(1, 0, pid, up_s=up_s, serving_s=serving_s, updating_s=updating_s)


def test_a_line_says_what_each_worker_did_since_the_last_one() -> None:
    before = {"busy": health(1, 100.0, 50.0, 5.0), "killed": health(2, 100.0, 90.0, 0.0)}
    now = {"busy": health(1, 110.0, 57.0, 6.0), "killed": health(3, 4.0, 3.0, 0.0), "away": None}
    line = activity_line(before, now, 10.0)
    assert line["window_s"] == 10.0
    assert line["workers"] == {
        "busy": {"serving": 7.0, "updating": 1.0, "down": 0.0},
        "killed": {"serving": 3.0, "updating": 0.0, "down": 6.0},
        "away": {"serving": 0.0, "updating": 0.0, "down": 10.0},
    }


async def test_the_inference_component_records_what_its_workers_do(tmp_path: Path) -> None:
    clock, alive, dead = FakeClock(), FakeWorkerClient("a"), FakeWorkerClient("b")
    dead.alive = False
    recording = asyncio.create_task(record_activity([alive, dead], tmp_path / "metrics.jsonl", clock))
    for _ in range(1000):
        await asyncio.sleep(0)
    recording.cancel()
    await asyncio.gather(recording, return_exceptions=True)
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert (line["kind"], line["window_s"]) == ("workers", ACTIVITY_S)
    assert (line["workers"]["a"]["down"], line["workers"]["b"]["down"]) == (0.0, ACTIVITY_S)
