"""Facts about the programs that a task started in the protected group: which they are, where they listen, what they show.

Role: one look at those processes, by the host, else by a program that root starts in their group, and the getters that need it. Rule:
the group comes from the kernel, not from a name: what the user starts is never in it. A look inside may be ended by the user, and then
there is nothing to judge: `InvalidArtifact`. Non-goals: files, which survive the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dart_envs.evaluators.artifacts import InvalidArtifact, load_json
from dart_envs.evaluators.evidence import list_processes, run_program
from dart_envs.evaluators.getters.base import Getter, GetterConfig, GetterContext, required_text
from dart_envs.setup.protected import AS_PROTECTED, PROTECTED_GID
from dart_envs.setup.steps import BASELINE_FILE, EXECUTABLES_ARGV
from dart_server.wire import A11yElement

TIMEOUT_S = 20.0
PYTHON = ("/usr/bin/python3", "-I", "-c")

INSPECT_SCRIPT = """import json, os, re, sys
listening = {}
for table in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{table}").read().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A":
            listening[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
found = []
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try:
        status = open(f"/proc/{pid}/status").read()
        groups = re.search(r"^Gid:\\s+(.*)$", status, re.M)[1].split()
        if set(groups) != {sys.argv[1]} or int(pid) == os.getpid() or re.search(r"^State:\\s+[ZX]", status, re.M):
            continue
        links = {}
        for number in os.listdir(f"/proc/{pid}/fd"):
            links[number] = os.readlink(f"/proc/{pid}/fd/{number}")
        found.append({
            "pid": int(pid), "executable": os.readlink(f"/proc/{pid}/exe"),
            "ports": sorted(listening[link] for link in links.values() if link in listening),
        })
    except OSError:
        continue
print(json.dumps(found))
"""

END_OTHERS_SCRIPT = """import os, re, signal, subprocess, sys
gid, uid = sys.argv[1], sys.argv[2]
kept = {tuple(line.split(None, 1)) for line in open(sys.argv[3]).read().splitlines()}
noted = set(open(sys.argv[3] + ".executables").read().splitlines())
listed = set(subprocess.run(sys.argv[4:], capture_output=True, text=True).stdout.splitlines())
exchanged = {line.split()[0].rpartition("/")[2] for line in noted ^ listed}
kept = {(pid, name) for pid, name in kept if pid not in exchanged}

def others():
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            status = open(f"/proc/{pid}/status").read()
        except OSError:
            continue
        read = dict(re.findall(r"^(\\w+):\\s+(.*)$", status, re.M))
        own = uid in read["Uid"].split() and not read["State"].startswith(("Z", "X"))
        if own and set(read["Gid"].split()) != {gid} and (pid, read["Name"]) not in kept:
            yield int(pid)

for signal_sent in (signal.SIGSTOP, signal.SIGKILL):
    seen = set()
    for _ in range(20):
        new = set(others()) - seen
        if not new:
            break
        for pid in new:
            try:
                os.kill(pid, signal_sent)
            except ProcessLookupError:
                pass
        seen |= new
    else:
        sys.exit("programs start faster than they can be ended")
"""
"""Ends every program of the user that was not there at the end of the setup, or executes something else since, and is not one of the
task's: first all stop, then all die."""


@dataclass(frozen=True, slots=True)
class ProtectedProcess:
    """One process of the protected group.

    Attributes:
        pid: Its number inside the desktop.
        executable: Path of what it runs.
        ports: TCP ports that it listens on.
    """

    pid: int
    executable: str
    ports: tuple[int, ...]


async def protected_processes(context: GetterContext, executable: str | None = None) -> list[ProtectedProcess]:
    """Return the processes of the protected group, or those of one executable.

    The host tells them where it can. Raises InvalidArtifact where a look by the desktop's programs did not end well.
    """
    seen = await list_processes(context.desktop)
    if seen is not None and any(one.gid is not None for one in seen):  # an older farm does not tell groups
        return [
            ProtectedProcess(one.pid, one.executable, tuple(socket.port for socket in one.listening))
            for one in seen
            if one.gid == PROTECTED_GID and (executable is None or (one.executable == executable and one.from_image))
        ]
    argv = [*AS_PROTECTED, *PYTHON, INSPECT_SCRIPT, str(PROTECTED_GID)]
    reply = await run_program(context.desktop, argv, timeout_s=TIMEOUT_S, user="root")
    if reply.returncode != 0:
        raise InvalidArtifact(f"the task's programs cannot be looked at: {reply.stderr.strip()[-200:]}")
    try:
        found = [
            ProtectedProcess(one["pid"], one["executable"], tuple(one["ports"])) for one in load_json(reply.stdout)
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArtifact(f"the task's programs cannot be looked at: {error}") from error
    return [one for one in found if executable in (None, one.executable)]


async def end_other_programs(context: GetterContext) -> None:
    """End what the user started beside the task's programs, so that only those show anything. Raises InvalidArtifact."""
    argv = [*PYTHON, END_OTHERS_SCRIPT, str(PROTECTED_GID), "1000", BASELINE_FILE, *EXECUTABLES_ARGV]
    reply = await run_program(context.desktop, argv, timeout_s=TIMEOUT_S, user="root")
    if reply.returncode != 0:
        raise InvalidArtifact(f"other programs cannot be ended: {reply.stderr.strip()[-200:]}")


async def protected_elements(context: GetterContext, config: GetterConfig) -> list[A11yElement]:
    """{executable[, role]}: the showing elements of the accessibility tree when every program but the task's own has been ended.

    Raises InvalidArtifact where the task's program does not run.
    """
    executable = required_text(config, "executable")
    if not await protected_processes(context, executable):
        raise InvalidArtifact(f"{executable} does not run")
    await end_other_programs(context)
    role = config.get("role")
    return [element for element in await context.desktop.a11y() if role in (None, element.role)]


async def check_listener(context: GetterContext, port: int, executable: str) -> None:
    """Raise InvalidArtifact unless the task's program listens on a port."""
    if not any(port in process.ports for process in await protected_processes(context, executable)):
        raise InvalidArtifact(f"the program that the task started does not listen on port {port}")


GETTERS: Mapping[str, Getter] = {"protected_elements": protected_elements}
