"""Make the environment `.ecosystem`: the RL libraries that the examples of docs/examples train with, and this project.

Role: one command, `python server/deploy/ecosystem.py`, that is quick when nothing changed. Rule: the libraries are not in `.venv`, because
they pin what the project does not need. Non-goals: running the examples (`make test-ecosystem`).
"""

from __future__ import annotations

import hashlib
import subprocess
import sys

from setup_host import ROOT, TORCH, install_cpu_torch, run, say

HOME = ROOT / ".ecosystem"
STAMP = HOME / "ecosystem.sha256"
WANTED = ROOT / "tests" / "ecosystem" / "requirements.txt"
WITHOUT_DEPENDENCIES = ROOT / "tests" / "ecosystem" / "no-deps.txt"


def main() -> int:
    """Install what is missing; 2 with one sentence where that fails."""
    content = b"".join(path.read_bytes() for path in (WANTED, WITHOUT_DEPENDENCIES, ROOT / "pyproject.toml"))
    digest = hashlib.sha256(content + TORCH.encode()).hexdigest()
    if STAMP.exists() and STAMP.read_text(encoding="ascii") == digest:
        say("RL libraries: up to date")
        return 0
    python = str(HOME / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    try:
        run([sys.executable, "-m", "venv", str(HOME)])
        install_cpu_torch(pip)
        say("installing the RL libraries (some minutes the first time)")
        run([*pip, "install", "-q", "-r", str(WANTED), "-e", f"{ROOT}[server,agent,train]"])
        run([*pip, "install", "-q", "--no-deps", "--no-build-isolation", "-r", str(WITHOUT_DEPENDENCIES)])
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"ecosystem: the RL libraries could not be installed: {error}", file=sys.stderr)
        return 2
    STAMP.write_text(digest, encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
