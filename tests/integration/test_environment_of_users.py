"""The environment that `make setup` makes serves programs of users as well: transformers and vLLM work there without anything of ours."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from served_farm import free_port

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

VLLM = [sys.executable, "-m", "vllm.entrypoints.cli.main"]
"""The command `vllm`."""
START_LIMIT_S = 200.0


def environment() -> dict[str, str]:
    """This process's, without what a checkout adds to the path."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(argv: list[str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )


def test_a_users_script_imports_the_processors_of_transformers(tmp_path: Path) -> None:
    script = "from transformers import AutoProcessor, Qwen2VLImageProcessor\nprint(AutoProcessor.__name__)"
    done = run([sys.executable, "-c", script], tmp_path)
    assert (done.returncode, done.stdout) == (0, "AutoProcessor\n"), done.stderr[-2_000:]


def test_vllm_serves_a_model_of_ours(tmp_path: Path) -> None:
    made = run([sys.executable, "-m", "dart_train.cli", "init-model", str(tmp_path / "tiny")], tmp_path)
    assert made.returncode == 0, made.stderr[-2_000:]
    port = free_port()
    options = ["--port", str(port), "--max-model-len", "512", "--enforce-eager", "--kv-cache-memory-bytes", "100000000"]
    with (tmp_path / "log").open("w", encoding="utf-8") as log:
        server = subprocess.Popen(
            [*VLLM, "serve", str(tmp_path / "tiny"), "--served-model-name", "tiny", *options],
            cwd=tmp_path, env=environment(), stdout=log, stderr=log,
        )  # fmt: skip
    try:
        url, until_s = f"http://127.0.0.1:{port}", time.monotonic() + START_LIMIT_S
        while not answers(url):
            assert server.poll() is None, (tmp_path / "log").read_text(encoding="utf-8")[-3_000:]
            assert time.monotonic() < until_s, "vLLM does not answer"
            time.sleep(0.2)
        asked = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        reply = httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=60.0)
        assert reply.json()["usage"]["completion_tokens"] >= 1, reply.text
    finally:
        server.terminate()
        server.wait(30)


def answers(url: str) -> bool:
    """Whether the server serves."""
    try:
        return httpx.get(f"{url}/health", timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False
