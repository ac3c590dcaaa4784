"""The commands of docs/any-language.md work as they stand there, in their order, with curl, against a served farm."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from served_farm import free_port, served_farm

from dart_server.wire import ErrorCode

PAGE = Path(__file__).resolve().parents[2] / "docs" / "any-language.md"
JQ = """import json, sys
value = json.load(open(sys.argv[3]) if len(sys.argv) > 3 else sys.stdin)
print(value[sys.argv[2].lstrip(".")])
"""


def commands() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    assert len(commands()) == 6
    place, tools = tmp_path / "farm", tmp_path / "tools"
    place.mkdir()
    tools.mkdir()
    jq = tools / "jq"
    jq.write_text("#!/usr/bin/env python3\n" + JQ)
    jq.chmod(0o755)
    with served_farm(place, provider="sim", max_desktops=2, port=free_port()) as url:
        script = "set -eu\n" + "\n".join(commands()) + '\necho "fencing_token $FENCING_TOKEN"\n'
        key = (place / "farm.key").read_text().strip()
        environment = {**os.environ, "FARM": url, "KEY": key, "PATH": f"{tools}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"error"' not in done.stdout, done.stdout
    assert done.stderr == ""
    lease = json.loads((tmp_path / "lease.json").read_text())
    assert int(done.stdout.rpartition("fencing_token ")[2]) > lease["fencing_token"]
    assert (tmp_path / "screen.png").read_bytes().startswith(b"\x89PNG")
    frame = (tmp_path / "frame.bin").read_bytes()
    length = int.from_bytes(frame[:4], "big")
    assert json.loads(frame[4 : 4 + length])["encoding"] == "png"
    assert frame[4 + length :].startswith(b"\x89PNG")
    assert "event: granted" in (tmp_path / "events.txt").read_text()


def test_the_table_has_every_error() -> None:
    assert {code.value for code in ErrorCode} <= set(re.findall(r"`(\w+)`", PAGE.read_text()))
