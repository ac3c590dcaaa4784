"""Hostile guests against a real farm, real clients and a real rollout worker: growth, a neighbour's steps, exceptions, what is lost.

Role: starts a hostile guest, a farm, and its clients, each as a process of its own, and fuzzes the decoder itself afterwards. Rule: growth
is the farm's resident memory above what it took before the attack, at its highest, over the hostile desktops. `answers` is all answers;
`answers_through_farm` are those that hostile desktops sent, `answers_to_decoder` those that were decoded in this process.
Non-goals: live desktops, verdicts.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.adversarial.answers import Answers
from benchmarks.adversarial.clients import ATTACKED
from benchmarks.farm.http import ask_json
from benchmarks.farm.load import at_rest, ledger_leaks, say
from benchmarks.farm.process import FarmProcess, own_farm, weigh
from dart_envs.errors import UnsupportedCapabilityError
from dart_envs.farm.channel import decode_frame
from dart_server.guest import answers as guest_answers
from dart_server.wire import FrameSpec
from dart_server.wire.guest_answers import MalformedAnswer, split_frame

HOSTILE, HONEST = (80, 64), (96, 64)
WORKER_DESKTOPS = 2
JSON_SHARE = 0.0005
ENCODINGS = ("raw",) * 8 + ("none",) * 8 + ("png", "jpeg", "webp")
SAMPLE_EVERY_S = 0.25
END_GRACE_S = 120.0
DECODERS = (guest_answers.elements, guest_answers.ended_program, guest_answers.clock)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this benchmark."""
    parser.add_argument("--answers", type=int, default=1_000_000, help="hostile answers, at least")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long the farm is attacked")
    parser.add_argument("--seed", type=int, default=7, help="of all answers")
    parser.add_argument(
        "--screen",
        type=int,
        nargs=2,
        default=HOSTILE,
        metavar=("WIDTH", "HEIGHT"),
        help="of the hostile desktops, pixels",
    )


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """What the attack did."""
    screen: tuple[int, int] = tuple(args.screen)
    if screen == HONEST:
        raise UnsupportedCapabilityError("--screen is that of the honest neighbour: choose another size")
    with tempfile.TemporaryDirectory(prefix="dart-hostile-", dir="/tmp") as made:
        place = Path(made)
        path, report = place / "guest.sock", place / "report.json"
        command = [sys.executable, "-m", "benchmarks.adversarial.hostile_guest", str(path), str(args.seed)]
        guest = subprocess.Popen([*command, *map(str, screen)])
        try:
            while not path.exists():
                time.sleep(0.05)
            program = [sys.executable, "-m", "benchmarks.adversarial.hostile_farm", str(path), str(report)]
            settings = {
                "DART_PROVIDER": "sim",
                "DART_MAX_DESKTOPS": str(ATTACKED + WORKER_DESKTOPS + 4),
                "DART_WARM_DESKTOPS": "0",
                "DART_LOG_LEVEL": "error",
            }
            with own_farm(settings, program=[*program, *map(str, screen)]) as farm:
                figures = _attack(farm, args.seconds, screen)
                figures["answers_through_farm"] = _sent(path)
            figures["lost_bytes"] = json.loads(report.read_text())["reserved_bytes"]
        finally:
            guest.terminate()
            guest.wait(timeout=10)
    decoded, foreign = _fuzz_decoder(max(0, args.answers - figures["answers_through_farm"]), args.seed)
    figures["answers_to_decoder"] = decoded
    figures["foreign_exceptions"] += len(foreign)
    figures["first_foreign"] += foreign[:5]
    return {"answers": figures["answers_through_farm"] + decoded, **figures, "screen_wh": screen, "seed": args.seed}


def _attack(farm: FarmProcess, seconds: float, hostile_wh: tuple[int, int]) -> dict[str, Any]:
    environment = {**farm.environment, "DART_FARM_URL": f"unix://{farm.uds}", "DART_API_KEY": farm.key}

    def client(role: str, screen: tuple[int, int], lasting_s: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "benchmarks.adversarial.clients", role, str(lasting_s), *map(str, screen)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    alone = _ended(client("neighbour", HONEST, 10.0))[0]
    before_mib = weigh(farm.pid).rss_mib
    peak_mib, over = before_mib, threading.Event()

    def watch() -> None:
        nonlocal peak_mib
        while not over.wait(SAMPLE_EVERY_S):
            peak_mib = max(peak_mib, weigh(farm.pid).rss_mib)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    running = {
        "attacked": client("attacked", hostile_wh, seconds),
        "worker": client("worker", hostile_wh, seconds),
        "neighbour": client("neighbour", HONEST, seconds),
    }
    try:
        told = {role: _ended(process, seconds + END_GRACE_S) for role, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
        over.set()
        watching.join()
    say(f"adversarial: {told}")
    lost = _lost(farm)
    attacked, neighbour = told["attacked"][0], told["neighbour"][0]
    return {
        "farm_growth_mib_per_desktop": round((peak_mib - before_mib) / (ATTACKED + WORKER_DESKTOPS), 2),
        "farm_growth_mib": round(peak_mib - before_mib, 1),
        "neighbour_step_p99_ms": neighbour.get("p99_ms"),
        "neighbour_step_p50_ms": neighbour.get("p50_ms"),
        "neighbour_step_max_ms": neighbour.get("max_ms"),
        "neighbour_alone_p99_ms": alone.get("p99_ms"),
        "foreign_exceptions": attacked.get("foreign", 1) + sum("Error" in error for _, error in told.values()),
        "first_foreign": attacked.get("first_foreign", [])
        + [error[-300:] for _, error in told.values() if "Error" in error],
        "worker_restarts": 0 if told["worker"][0] else 1,
        "worker_ends": told["worker"][0].get("ends"),
        "client_saw": attacked.get("seen"),
        "lost_slots": len(lost),
        "lost": lost,
        "farm_log_errors": farm.log.read_text(errors="replace").count("Traceback"),
    }


def _ended(process: subprocess.Popen[str], limit_s: float = 60.0) -> tuple[dict[str, Any], str]:
    """What a client printed, and what it complained of."""
    output, errors = process.communicate(timeout=limit_s)
    found: dict[str, Any] = json.loads(output) if process.returncode == 0 and output.strip() else {}
    return found, "" if found else errors


def _lost(farm: FarmProcess) -> list[str]:
    """Leases and desktops that are not back once everybody has gone."""
    try:
        at_rest(farm)
    except RuntimeError as error:
        return [str(error)]
    left = [
        view["desktop_id"]
        for view in asyncio.run(ask_json(farm.uds, farm.key, "GET", "/v1/desktops"))
        if view["lease_id"]
    ]
    return left + ledger_leaks(farm)


def _sent(path: Path) -> int:
    """How many answers the hostile guest has sent."""
    connection = http.client.HTTPConnection("guest")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    connection.request("GET", "/count")
    told: dict[str, int] = json.loads(connection.getresponse().read())
    connection.close()
    return told["sent"]


def _fuzz_decoder(count: int, seed: int) -> tuple[int, list[str]]:
    """Decode so many hostile answers here; what was raised beside `MalformedAnswer`."""
    rng = random.Random(seed + 1)
    screen = (64, 48)
    drawn, foreign = Answers(rng, screen, malformed_share=1.0), []
    encodings = [FrameSpec.model_validate({"encoding": name}) for name in ENCODINGS]
    for number in range(count):
        spec = rng.choice(encodings)
        try:
            if rng.random() < JSON_SHARE:
                rng.choice(DECODERS)(drawn.json_body("/v1/a11y"))
            else:
                message, _ = drawn.frame({"seq": number, "frame": {"encoding": spec.encoding}})
                header, payload = split_frame(message)
                if "error" not in header:
                    decode_frame(header, payload, spec, screen, number)
        except MalformedAnswer:
            pass
        except Exception as error:  # noqa: BLE001 - exceptions of other kinds are what is counted
            foreign.append(f"{type(error).__name__}: {error}"[:300])
    return count, foreign
