#!/usr/bin/env python3
"""Run the quickstart of README.md exactly as it is written, in a fresh copy of this checkout.

`make quickstart` runs this script. It unpacks the source distribution, as a clone has it. There it executes the code blocks
of the section Quickstart in order: `sh` blocks with bash, `python` blocks with the environment that the first block made.
Exit code 1: a block failed, or the quickstart took longer than its limit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 300.0
"""README promises five minutes."""


def blocks() -> list[tuple[str, str]]:
    """Return (language, code) of the section's code blocks."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("\n## Quickstart\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"```(sh|python)\n(.*?)```", section, re.S)


def unpack_sources(place: Path) -> Path:
    """Return a folder with what the source distribution of this checkout holds."""
    build = [sys.executable, "-m", "build", "--sdist", "--outdir", str(place / "dist"), str(ROOT)]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    (archive,) = (place / "dist").glob("*.tar.gz")
    shutil.unpack_archive(archive, place, filter="data")
    return place / archive.name.removesuffix(".tar.gz")


def main() -> int:
    """Run all blocks; return the exit code."""
    found = blocks()
    if [language for language, _ in found] != ["sh", "python"]:
        print("quickstart: README's section Quickstart must have one sh block, then one python block.", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="dart-quickstart-") as name:
        place = Path(name)
        clone = unpack_sources(place)
        environment = {key: value for key, value in os.environ.items() if key not in ("DART_FARM_URL", "PYTHONPATH")}
        environment |= {"DART_RUNTIME_DIR": str(place / "run"), "PIP_NO_CACHE_DIR": "0"}
        started = time.monotonic()
        try:
            for language, code in found:
                file = clone / ("first_episode.py" if language == "python" else "setup.sh")
                file.write_text(code, encoding="utf-8")
                program = (
                    [str(clone / "dart-venv/bin/python")] if language == "python" else ["bash", "-euo", "pipefail"]
                )
                subprocess.run([*program, file.name], cwd=clone, env=environment, check=True)
        except subprocess.CalledProcessError as error:
            print(f"quickstart: {error.cmd[-1]} failed with exit code {error.returncode}.", file=sys.stderr)
            return 1
        finally:
            farm = clone / "dart-venv/bin/dart-farm"
            if farm.exists():
                subprocess.run([farm, "stop"], cwd=place, env=environment, check=False)
        seconds = time.monotonic() - started
    print(f"quickstart: {seconds:.0f} s")
    if seconds > LIMIT_S:
        print(f"quickstart: it took {seconds:.0f} s, README promises {LIMIT_S:.0f}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
