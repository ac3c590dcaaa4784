"""The desktop's own clock: the page, the preloaded library on real programs, and the agent's routes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dart_guest.clock import PAGE_BYTES, DesktopClock, kernel_time_ns, make_page
from guest_bench import Bench, running_agent

SOURCE = Path(__file__).parents[3] / "vm_images" / "guest" / "clock" / "dart_clock.c"
DAY_2024_S = 1_709_164_200.0
AGREE_S = 1.0
WAITS = """
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdint.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static double now(clockid_t clock) { struct timespec t; clock_gettime(clock, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static struct timespec in_200_ms(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_nsec += 200000000;
    if (t.tv_nsec >= 1000000000) { t.tv_sec += 1; t.tv_nsec -= 1000000000; }
    return t;
}
#define MEASURE(name, clock, wait) do { \\
    double began = now(CLOCK_MONOTONIC); struct timespec due = in_200_ms(clock); (void)due; wait; \\
    printf("%s %f\\n", name, now(CLOCK_MONOTONIC) - began); } while (0)

int main(void)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond = PTHREAD_COND_INITIALIZER, steady;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&steady, &attributes);
    sem_t semaphore;
    sem_init(&semaphore, 0, 0);
    uint64_t count;
    int timer = timerfd_create(CLOCK_REALTIME, 0);
    struct itimerspec setting = {{0, 0}, in_200_ms(CLOCK_REALTIME)};
    pthread_mutex_lock(&mutex);
    MEASURE("cond", CLOCK_REALTIME, pthread_cond_timedwait(&cond, &mutex, &due));
    MEASURE("steady", CLOCK_MONOTONIC, pthread_cond_timedwait(&steady, &mutex, &due));
    MEASURE("clockwait", CLOCK_REALTIME, pthread_cond_clockwait(&cond, &mutex, CLOCK_REALTIME, &due));
    MEASURE("sem", CLOCK_REALTIME, sem_timedwait(&semaphore, &due));
    MEASURE("sleep", CLOCK_REALTIME, clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &due, NULL));
    MEASURE("sleep steady", CLOCK_MONOTONIC, clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL));
    setting.it_value = in_200_ms(CLOCK_REALTIME);
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &setting, NULL);
    MEASURE("timerfd", CLOCK_REALTIME, read(timer, &count, sizeof count));
    return 0;
}
"""
TICKS = "import sys, time\nfor line in sys.stdin: print(time.time(), flush=True)"


@pytest.fixture
def clock(tmp_path: Path) -> DesktopClock:
    made = DesktopClock(tmp_path / "page")
    make_page(made.path)
    return made


def compiled(source: Path, target: Path, *options: str) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("this host has no C compiler: install gcc and libc6-dev")
    argv = ["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", *options, "-o", str(target), str(source)]
    subprocess.run(argv, check=True)
    return target


@pytest.fixture
def preloaded(clock: DesktopClock, tmp_path: Path) -> dict[str, str]:
    """An environment in which programs have the library, with this test's page."""
    library = compiled(SOURCE, tmp_path / "clock.so", "-fPIC", "-shared", f'-DPAGE="{clock.path}"')
    return {**os.environ, "LD_PRELOAD": str(library)}


def says(argv: list[str], environment: dict[str, str]) -> float:
    return float(subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout)


def test_programs_tell_the_declared_time_and_the_real_one_when_it_is_taken_back(
    clock: DesktopClock, preloaded: dict[str, str]
) -> None:
    looks = (
        ["date", "+%s.%N"],
        ["bash", "-c", "echo $EPOCHREALTIME"],
        [sys.executable, "-c", "import time; print(time.time())"],
    )
    for wanted_s in (None, DAY_2024_S, 3_900_000_000.0, None):
        clock.declare(wanted_s)
        for look in looks:
            assert abs(says(look, preloaded) - (wanted_s or time.time())) < 10 * AGREE_S, (look, wanted_s)
        assert abs(clock.now_s() - (wanted_s or time.time())) < 10 * AGREE_S


def test_a_running_program_sees_the_change_at_once(clock: DesktopClock, preloaded: dict[str, str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TICKS], env=preloaded, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        for wanted_s in (None, DAY_2024_S, DAY_2024_S + 86_400, None):
            clock.declare(wanted_s)
            expected_s = wanted_s or time.time()
            program.stdin.write("\n")
            program.stdin.flush()
            assert abs(float(program.stdout.readline()) - expected_s) < AGREE_S
        program.stdin.close()


@pytest.mark.parametrize("wanted_s", [None, DAY_2024_S, 3_900_000_000.0])
def test_waits_until_a_time_of_day_last_as_long_as_they_should(
    clock: DesktopClock, preloaded: dict[str, str], tmp_path: Path, wanted_s: float | None
) -> None:
    (tmp_path / "waits.c").write_text(WAITS)
    program = compiled(tmp_path / "waits.c", tmp_path / "waits", "-pthread")
    clock.declare(wanted_s)
    said = subprocess.run([str(program)], env=preloaded, capture_output=True, text=True, check=True, timeout=60).stdout
    lasted_s = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in said.splitlines()}
    assert set(lasted_s) == {"cond", "steady", "clockwait", "sem", "sleep", "sleep steady", "timerfd"}
    assert all(0.19 < length_s < 5.0 for length_s in lasted_s.values()), lasted_s


def test_without_a_page_nothing_changes(tmp_path: Path) -> None:
    library = compiled(SOURCE, tmp_path / "clock.so", "-fPIC", "-shared", f'-DPAGE="{tmp_path / "none"}"')
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    assert abs(says(["date", "+%s.%N"], environment) - time.time()) < 10 * AGREE_S
    assert not DesktopClock(tmp_path / "none").declared


def test_the_hosts_time_is_followed_unless_another_is_declared(clock: DesktopClock) -> None:
    clock.follow(time.time() + 0.5)
    assert abs(clock.now_s() - time.time()) < 0.4, "an error that small is not corrected"
    clock.follow(time.time() + 3600)
    assert abs(clock.now_s() - time.time() - 3600) < AGREE_S
    clock.declare(DAY_2024_S)
    clock.follow(time.time() + 7200)
    assert abs(clock.now_s() - DAY_2024_S) < AGREE_S
    clock.declare(None)
    assert abs(clock.now_s() - time.time() - 7200) < AGREE_S
    assert clock.path.stat().st_size == PAGE_BYTES
    assert abs(kernel_time_ns() / 1e9 - time.time()) < AGREE_S


@pytest.fixture
async def bench(clock: DesktopClock) -> AsyncIterator[Bench]:
    async with running_agent() as bench:
        bench.agent.clock = clock
        yield bench


async def test_the_agent_declares_tells_and_keeps_it_over_a_restore(bench: Bench) -> None:
    status, answer = await bench.post("/v1/clock", {"time_s": DAY_2024_S})
    assert (status, answer["declared"]) == (200, True)
    body = {"entropy": "ab" * 32, "machine_id": "cd" * 16, "realtime_s": time.time() + 30 * 86_400}
    assert (await bench.post("/v1/restored", body))[0] == 200
    _, answer = await bench.get("/v1/clock")
    assert abs(answer["time_s"] - DAY_2024_S) < 10 * AGREE_S
    assert abs((await bench.get("/v1/health"))[1]["realtime_s"] - DAY_2024_S) < 10 * AGREE_S
    status, answer = await bench.post("/v1/clock", {"time_s": None})
    assert (status, answer["declared"]) == (200, False)
    assert abs(answer["time_s"] - time.time() - 30 * 86_400) < 10 * AGREE_S, "the host's word of the last restore"


@pytest.mark.parametrize("wrong", [0, "noon", True, 5e9, [1]])
async def test_a_time_that_no_clock_shows_is_refused(bench: Bench, wrong: object) -> None:
    status, answer = await bench.post("/v1/clock", {"time_s": wrong})
    assert (status, answer["error"]) == (400, "bad_request")


async def test_a_desktop_without_a_page_says_so(bench: Bench, tmp_path: Path) -> None:
    bench.agent.clock = DesktopClock(tmp_path / "none")
    assert (await bench.post("/v1/clock", {"time_s": DAY_2024_S}))[0] == 503
    status, answer = await bench.get("/v1/clock")
    assert (status, answer["declared"]) == (200, False)
