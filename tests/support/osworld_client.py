"""OSWorld's own client bound to a live desktop, for the tests that run it unchanged.

Role: `driver` starts the interpreter that has the controllers (`make osworld-client`); `Client` runs calls of them there, through the
tunnels of a lease.
Rule: what the client is told is what OSWorld's own runner tells it: addresses, ports, a cache directory, the password.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dart_envs.farm.lease import AsyncLease

ROOT = Path(__file__).resolve().parents[2]
CLIENT = Path(os.environ.get("DART_OSWORLD_CLIENT") or ROOT / ".osworld-client") / "bin" / "python"
DRIVER = ROOT / "tests" / "support" / "osworld_driver.py"
OSWORLD_PORT, DEBUGGING_PORT = 5000, 9222
"""OSWorld's server, and where its tasks put the browser's debugging port."""
Address = tuple[str, int]
Call = tuple[str, str, list[Any], dict[str, Any]]
Answer = dict[str, Any]


@contextmanager
def driver(directory: Path) -> Iterator[Path]:
    """The Unix socket of an interpreter that has imported OSWorld's client; it ends with the block."""
    path = directory / "driver.sock"
    with path.with_suffix(".log").open("w", encoding="utf-8") as log:
        command = [str(CLIENT), str(DRIVER), str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n", path.with_suffix(".log").read_text(encoding="utf-8")
                yield path
            finally:
                process.terminate()


class Client:
    """OSWorld's controllers, bound to one desktop."""

    def __init__(self, driver: Path, lease: AsyncLease, address: Address, debugging: Address, cache_dir: Path) -> None:
        self.driver = driver
        self.lease = lease
        self.address = address
        self.debugging = debugging
        self.cache_dir = cache_dir

    async def run(self, *calls: Call) -> list[Answer]:
        """What came of each call, in order."""
        host, port = self.address
        asked = {"host": host, "port": port, "chromium_port": self.debugging[1], "cache_dir": str(self.cache_dir)}
        reader, writer = await asyncio.open_unix_connection(self.driver)
        writer.write(json.dumps(asked | {"calls": calls}).encode())
        writer.write_eof()
        answers = [json.loads(line) for line in (await reader.read()).splitlines()]
        writer.close()
        assert len(answers) == len(calls), self.driver.with_suffix(".log").read_text(encoding="utf-8")[-2000:]
        return answers

    async def python(self, method: str, *arguments: Any) -> Any:
        """The value of one call of the Python controller."""
        (answer,) = await self.run(("python", method, list(arguments), {}))
        assert "raised" not in answer, answer
        value = answer["value"]
        return base64.b64decode(value["bytes"]) if isinstance(value, dict) and set(value) == {"bytes"} else value

    async def setup(self, *steps: tuple[str, dict[str, Any]]) -> None:
        """Carry out a task's setup."""
        config = [{"type": kind, "parameters": parameters} for kind, parameters in steps]
        (answer,) = await self.run(("setup", "setup", [config], {}))
        assert answer == {"value": True}

    async def output(self, script: str) -> str:
        """What a script of the desktop's user prints, past OSWorld's paths."""
        ended = await self.lease.exec(["sh", "-c", script])
        assert ended.returncode == 0, ended
        return ended.stdout

    async def titles(self) -> list[str]:
        """Titles of the windows, the active one last."""
        reply = await self.lease.guest("GET", "/v1/windows")
        listed = json.loads(reply.content)["windows"]
        return [one["title"] for one in sorted(listed, key=lambda one: one["active"])]
