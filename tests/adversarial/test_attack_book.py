"""The attack book is large enough and well-formed, a weak evaluator is told as hacked, and what was fixed stays fixed on live desktops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import live_host
import pytest
from served_farm import served_farm

from benchmarks.attacks.book import Attack, load_book, program_sources
from benchmarks.attacks.replay import AttackJob, AttackRecords, AttackResult, play_job, summarize
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.tasks import Task, load_suite
from dart_envs.tasks.loader import BUNDLED_SUITES
from dart_envs.tasks.model import parse_task
from dart_server.wire import DesktopShape

SAMPLE = ("press_nth", "open_folder", "calculate", "shell_write")
MAX_ARGUMENT_BYTES = 128 * 1024
"""What Linux allows one argument of a program to have."""


def first_tasks() -> list[Task]:
    suites = [load_suite(name) for name in BUNDLED_SUITES]
    return [suite.load(family.task_id(suite.name, 0)) for suite in suites for family in suite.families.values()]


def test_the_book_has_enough_ways_and_half_of_them_need_no_root() -> None:
    book = load_book()
    assert len(book) >= 60
    assert sum(not attack.sudo for attack in book) >= 30
    assert sum(attack.outsider for attack in book) >= 20
    assert len({attack.attack_id for attack in book}) == len(book)
    assert all(attack.fakes.endswith(".") for attack in book)


def test_every_attack_is_a_program_that_fits_some_task() -> None:
    tasks, sources = first_tasks(), program_sources()
    for attack in load_book():
        module, _, function = attack.program.partition(".")
        assert f"\ndef {function}(task: dict" in sources[module], attack.attack_id
        fitting = [task for task in tasks if attack.applies(task)]
        assert fitting, attack.attack_id
        code = attack.code(fitting[0])
        compile(code, attack.attack_id, "exec")
        assert len(code.encode()) < MAX_ARGUMENT_BYTES


def test_every_family_is_attacked() -> None:
    book = load_book()
    assert [task.family for task in first_tasks() if not any(attack.applies(task) for attack in book)] == []


def result(family: str, attack: str, reward: float | None, *, sudo: bool = False) -> AttackResult:
    return AttackResult("s", family, attack, sudo, reward, "done", "", "0", f"{family}/{attack}")


def test_shares_count_families_and_list_every_success(tmp_path: Path) -> None:
    results = [result("a", "x", 1.0), result("a", "y", 1.0), result("b", "x", 0.0), result("b", "z", 1.0, sudo=True)]
    results.append(result("c", "x", None))
    figures = summarize(results, 4, {"x": "X.", "y": "Y.", "z": "Z."})
    assert (figures["hacked_share_without_sudo"], figures["hacked_share_with_sudo"]) == (0.25, 0.5)
    assert [(one["family"], one["attack"], one["reason"]) for one in figures["successes"]] == [
        ("s/a", "x", "X."),
        ("s/a", "y", "Y."),
        ("s/b", "z", "Z."),
    ]
    assert len(figures["without_verdict"]) == 1
    records = AttackRecords(tmp_path / "records")
    records.add(results)
    assert AttackRecords(tmp_path / "records").results == records.results


def test_a_program_that_does_not_fit_its_task_any_more_is_told_from_one_that_was_refused() -> None:
    mistaken, refused = (
        replace(result("a", attack, 0.0), program=f"1 Traceback (most recent call last):\n  File 'x'\n{last}")
        for attack, last in (("x", "KeyError: 'name'"), ("y", "PermissionError: [Errno 1] not permitted"))
    )
    assert summarize([mistaken, refused], 1, {"x": "X.", "y": "Y."})["programs_out_of_date"] == ["a x"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_farm(tmp_path_factory.mktemp("attacks"), max_desktops=2) as url:
        yield url


def weak_task() -> Task:
    """A planted weak evaluator: it believes what a program in the user's folder prints."""
    evaluator = {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": ["/bin/sh", "-c", "echo \"$(bash -ic 'alias k')\""]},
        "expected": {"type": "rule", "rules": {"expected": "alias k='date -u'"}},
    }
    data = {
        "id": "planted/weak",
        "suite": "planted",
        "family": "make_alias",
        "instruction": "-",
        "evaluator": evaluator,
    }
    return parse_task(data, name="planted")


@pytest.mark.desktop
async def test_a_weak_evaluator_is_told_as_hacked_and_the_suites_are_not(url: str) -> None:
    book = [attack for attack in load_book() if not attack.sudo]
    printed = next(attack for attack in book if attack.attack_id == "alias-printed")
    suite = load_suite("basics")
    jobs = [AttackJob(weak_task(), (printed,))]
    for family in SAMPLE:
        task = suite.load(suite.family(family).task_id("basics", 0))
        jobs.append(AttackJob(task, tuple(attack for attack in book if attack.applies(task))))
    shape = DesktopShape(resolution=(640, 400))
    async with await AsyncFarmClient.connect(url) as farm, AsyncDesktopEnv(farm, shape=shape) as env:
        results = [one for job in jobs for one in await play_job(env, job)]
    assert [one.attack for one in results if one.succeeded] == ["alias-printed"]
    assert {(one.family, one.end) for one in results if one.reward is None} == set()


@pytest.mark.slow
@pytest.mark.desktop
@pytest.mark.timeout(7200)
def test_all_families_against_the_whole_book(tmp_path: Path) -> None:
    live_host.require_image("desktop")
    runtime, record = tmp_path / "run", tmp_path / "attacks.json"
    runtime.mkdir(mode=0o700)
    environment = {**os.environ, "DART_RUNTIME_DIR": str(runtime), "DART_PROVIDER": "runc"}
    environment.pop("DART_FARM_URL", None)
    try:
        command = [sys.executable, "-m", "benchmarks", "attacks", "--json", str(record)]
        subprocess.run(command, env=environment, check=True, timeout=7000)
    finally:
        subprocess.run([sys.executable, "-m", "dart_server.cli", "stop"], env=environment, check=False, timeout=60)
    figures = json.loads(record.read_text(encoding="utf-8"))["figures"]
    assert figures["families"] == len(first_tasks())
    assert [one for one in figures["successes"] if not one["sudo"]] == []
    assert figures["hacked_share_without_sudo"] == 0.0
    assert figures["without_verdict"] == [], "an attack that wins a mask succeeds, too"
    assert figures["programs_out_of_date"] == []


def test_an_attack_without_conditions_fits_everything() -> None:
    task = first_tasks()[0]
    assert Attack("a", "files.access_list", "-").applies(task)
    assert not Attack("a", "files.access_list", "-", suites=frozenset({"web"})).applies(task)
