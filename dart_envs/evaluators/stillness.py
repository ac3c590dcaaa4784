"""Stops the user's programs while a verdict reads files, so that all that it reads is of one moment.

Role: `standing_still`, around a second round of getters that need no program of the user. Rule: a verdict of several looks is right only
where nothing changes between them, and a program in the background can see when it is looked at (inotify). Root stops all of the user's
processes by one call, which no new process escapes (kill(2) with -1). Non-goals: what a program shows or says, which it must run for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dart_envs.evaluators.artifacts import InvalidArtifact
from dart_envs.evaluators.evidence import run_program
from dart_envs.task_parts import EvaluatorLike
from dart_envs.types import Desktop

STILL_GETTERS = frozenset(
    {
        *("vm_file", "content_from_vm_file", "list_directory", "file_names", "file_tree", "copies", "trash"),
        "present_files",
        *("access_lists", "default_application", "rule"),
    }
)
"""Getters that ask no program of the user."""
SINGLE_LOOK_GETTERS = frozenset(
    {"vm_file", "content_from_vm_file", "list_directory", "file_names", "file_tree", "rule"}
)
SIGNAL_SCRIPT = """import os, pwd, signal, sys
user = pwd.getpwnam("user").pw_uid
os.setresuid(user, user, 0)
try:
    os.kill(-1, getattr(signal, sys.argv[1]))
except ProcessLookupError:
    pass
"""
"""Root sends a signal to all of the user's processes: only those may be signalled by this one, which is not among them."""
TIMEOUT_S = 20.0
NO_SUCH_PROGRAM = 127
"""Exit code on a desktop that has no Python at that place. Whether the policy took it away, `run_program` looks before."""


def needs_standing_still(evaluator: EvaluatorLike) -> bool:
    """Whether an evaluator looks more than once, and none of its getters needs a program of the user."""
    if len(evaluator.functions) == 1 and all(
        config is None or (config.get("type") in SINGLE_LOOK_GETTERS and not config.get("multi"))
        for config in (*evaluator.result_configs, *evaluator.expected_configs)
    ):
        return False
    configs = [*evaluator.result_configs, *evaluator.expected_configs]
    return all(config is None or config.get("type") in STILL_GETTERS for config in configs)


@asynccontextmanager
async def standing_still(desktop: Desktop) -> AsyncIterator[None]:
    """The user's programs are stopped meanwhile. Raises InvalidArtifact where they cannot be."""
    await _signal(desktop, "SIGSTOP")
    try:
        yield
    finally:
        await _signal(desktop, "SIGCONT")


async def _signal(desktop: Desktop, name: str) -> None:
    argv = ["/usr/bin/python3", "-I", "-c", SIGNAL_SCRIPT, name]
    reply = await run_program(desktop, argv, user="root", timeout_s=TIMEOUT_S)
    if reply.returncode not in (0, NO_SUCH_PROGRAM):
        raise InvalidArtifact(f"the user's programs cannot be stopped or go on: {reply.stderr.strip()[-200:]}")
