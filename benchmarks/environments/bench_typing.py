"""Whether typed text arrives exactly, character by character, in fields of four toolkits, whatever it is written in.

Role: starts a farm of its own, and on a fresh desktop for each field types random text of many scripts in parts, each read back from the
program and compared by code point. Rule: the public client only; the same seed types the same text. Non-goals: how programs show it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.desktops.bench_desktops import chosen
from benchmarks.environments.typing_fields import FIELDS, NO_FRAME, Field
from benchmarks.environments.typing_text import SCRIPTS, random_text
from dart_envs.farm.client import AsyncFarmClient
from dart_server.wire import DesktopShape, TextEvent

KEPT_DIFFERENCES = 5
RESOLUTION = (1280, 800)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this benchmark."""
    parser.add_argument("--image", default="desktop", help="an installed image that has the programs")
    parser.add_argument("--fields", default=",".join(FIELDS), help="which fields are typed into, separated by commas")
    parser.add_argument("--characters", type=int, default=10_000, help="per field")
    parser.add_argument("--seed", type=int, default=20, help="of the text")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run on a farm that is started for this and stopped at the end."""
    fields = chosen(args.fields, "--fields", tuple(FIELDS))
    with tempfile.TemporaryDirectory(prefix="dart-bench-") as runtime:
        os.environ.update(DART_RUNTIME_DIR=runtime, DART_PROVIDER="runc", DART_DESKTOP_MEMORY_MIB="2048")
        os.environ.pop("DART_FARM_URL", None)
        try:
            figures = asyncio.run(_measure(args, fields))
        finally:
            subprocess.run([sys.executable, "-m", "dart_server.cli", "stop"], check=True, stdout=sys.stderr)
    return {"image": args.image, "seed": args.seed, "scripts": len(SCRIPTS)} | figures


async def _measure(args: argparse.Namespace, fields: list[str]) -> dict[str, Any]:
    shape = DesktopShape(image=args.image, resolution=RESOLUTION)
    figures: dict[str, Any] = {}
    async with await AsyncFarmClient.connect() as farm:
        for kind in fields:
            async with await farm.lease(shape, ttl_s=300.0, wait_s=400.0) as desktop:
                typed = await typed_into(FIELDS[kind](desktop), args.characters, random.Random(args.seed))
            figures |= {f"{kind}_{name}": value for name, value in typed.items()}
            sys.stderr.write(f"{kind}: {typed}\n")
    return figures


async def typed_into(field: Field, characters: int, chosen_by: random.Random) -> dict[str, Any]:
    """`characters`, how many of them came in `exact` parts, `characters_per_s` and the first `differences` of one field."""
    await field.open()
    exact = done = 0
    typing_s = 0.0
    differences: list[str] = []
    while done < characters:
        text = random_text(chosen_by, min(field.part, characters - done), field.takes)
        began_s = time.perf_counter()
        await field.desktop.step([TextEvent(text=text)], frame=NO_FRAME)
        typing_s += time.perf_counter() - began_s
        arrived = await field.read(len(text))
        if arrived == text:
            exact += len(text)
        elif len(differences) < KEPT_DIFFERENCES:
            differences.append(difference(text, arrived, done))
        done += len(text)
        await field.empty()
    return {
        "characters": done,
        "exact": exact,
        "characters_per_s": round(done / typing_s),
        "differences": differences,
    }


def difference(text: str, arrived: str, before: int) -> str:
    """Where two texts begin to differ, and what stands there."""
    at = next((n for n, (a, b) in enumerate(zip(text, arrived, strict=False)) if a != b), min(len(text), len(arrived)))
    around = slice(max(at - 1, 0), at + 3)
    return f"at {before + at}: typed {text[around]!a}, arrived {arrived[around]!a} ({len(text)}, {len(arrived)})"
