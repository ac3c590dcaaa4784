"""Make the environment `.osworld-client`: OSWorld's own client (desktop-env) as its users import it, and this project.

Role: one command, `python server/deploy/osworld_environment.py`, that is quick when nothing changed. Rule: desktop-env and easyocr come
without their own lists of dependencies, which pin a torch of 2024 and programs for other operating systems. What their modules import is
listed in `tests/support/osworld_client.txt`; torch is the CPU build. Non-goals: scoring (`dart-envs scorer install`), running the client.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys

from setup_host import ROOT, TORCH, SetupFailed, fit_torch_extras, install_cpu_torch, run, say

HOME = ROOT / ".osworld-client"
STAMP = HOME / "osworld-client.sha256"
WANTED = ROOT / "tests" / "support" / "osworld_client.txt"
WITHOUT_DEPENDENCIES = ("desktop-env==1.0.2", "easyocr==1.7.2", "torchvision==0.28.0")


def main() -> int:
    """Install what is missing; 2 with one sentence where that fails."""
    content = WANTED.read_bytes() + (ROOT / "pyproject.toml").read_bytes()
    digest = hashlib.sha256(content + TORCH.encode() + " ".join(WITHOUT_DEPENDENCIES).encode()).hexdigest()
    if STAMP.exists() and STAMP.read_text(encoding="ascii") == digest:
        say("OSWorld's client: up to date")
        return 0
    pip = [str(HOME / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    try:
        run([sys.executable, "-m", "venv", str(HOME)])
        install_cpu_torch(pip)
        say("installing OSWorld's client and what its metrics import (a minute or two the first time)")
        run([*pip, "install", "-q", "-r", str(WANTED), "-e", str(ROOT)])
        run([*pip, "install", "-q", "--no-deps", *WITHOUT_DEPENDENCIES])
        fit_torch_extras(pip)
    except (OSError, SetupFailed, subprocess.CalledProcessError) as error:
        print(f"osworld-client: OSWorld's client could not be installed: {error}", file=sys.stderr)
        return 2
    STAMP.write_text(digest, encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
