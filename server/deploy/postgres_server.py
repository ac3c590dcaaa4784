#!/usr/bin/env python3
"""Run a command against a real PostgreSQL server of its own, which ends with it.

Role: the server behind `make test-postgres`. Rule: a private cluster in a temporary directory, reached by a Unix socket there and a
password; never the system's own cluster, never as root (PostgreSQL refuses that: root starts it as the account `postgres`); nothing of it
is left when the command has ended. Programs come from the distribution. Standard library only.
Non-goals: setting up a server that stays (that is the distribution's `postgresql.service`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from host_packages import SetupFailed, as_root, check_sudo, install_packages, say
from supervised_command import run_supervised

URL_VARIABLE = "DART_TEST_POSTGRES_URL"
ACCOUNT = "postgres"
DATABASE_NAME = "dart"
"""Of the role and of its database."""
START_TIMEOUT_S, STOP_TIMEOUT_S, POLL_S = 60.0, 30.0, 0.05
NO_MAIN_CLUSTER = Path("/etc/postgresql-common/createcluster.d/dart-tests.conf")
"""While the package is installed, it is told to make no cluster of the system's."""
TEST_SETTINGS = {
    "listen_addresses": "''",
    "fsync": "off",
    "max_connections": "50",
    "shared_buffers": "'16MB'",
    "timezone": "'UTC'",
    "log_timezone": "'UTC'",
}
"""Nothing of it outlives the tests, so nothing is forced to disk."""


def find_programs() -> Path:
    """The directory of `initdb` and `postgres`, installed from the distribution when they are missing."""
    found = newest_programs()
    if found is None:
        if shutil.which("apt-get") is None:
            raise SetupFailed("There is no PostgreSQL and no apt-get: install PostgreSQL 13 or newer.")
        with no_main_cluster():
            install_packages(["postgresql"])
        found = newest_programs()
    if found is None:
        raise SetupFailed("The package postgresql was installed, but there is no initdb.")
    return found


def newest_programs() -> Path | None:
    """Programs of the newest PostgreSQL of this host."""
    versions = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if versions:
        return max(versions, key=lambda path: int(path.parent.name))
    other = shutil.which("initdb")
    return Path(other).resolve().parent if other else None


@contextlib.contextmanager
def no_main_cluster() -> Iterator[None]:
    """While inside, Debian's package makes and starts no cluster of its own."""
    script = f"mkdir -p {NO_MAIN_CLUSTER.parent} && echo 'create_main_cluster = false' > {NO_MAIN_CLUSTER}"
    subprocess.run(as_root(["sh", "-c", script]), check=True)
    try:
        yield
    finally:
        subprocess.run(as_root(["rm", "-f", str(NO_MAIN_CLUSTER)]), check=False)


class Cluster:
    """One private cluster. `start` and `stop` as often as wanted; `remove` at the end."""

    def __init__(self, programs: Path) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="dart-pg-"))
        self.password = secrets.token_hex(16)
        self.url = (
            f"postgresql://{DATABASE_NAME}:{self.password}@/{DATABASE_NAME}?host={quote(str(self.directory), safe='/')}"
        )
        self._programs = programs
        self._server: subprocess.Popen[bytes] | None = None
        self._made = False

    def start(self) -> None:
        """Start the server, making the cluster first when there is none, and wait until it answers."""
        if not self._made:
            self._make()
        data = self.directory / "data"
        with (self.directory / "log").open("ab") as log:
            self._server = subprocess.Popen(
                self._as_account([str(self._programs / "postgres"), "-D", str(data), "-k", str(self.directory)]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._server.poll() is not None or time.monotonic() > deadline_s:
                raise SetupFailed(f"PostgreSQL did not start:\n{(self.directory / 'log').read_text()[-1500:]}")
            time.sleep(POLL_S)

    def _make(self) -> None:
        """The cluster's files: one role with a password, which owns one database."""
        if os.geteuid() == 0:
            shutil.chown(self.directory, ACCOUNT, ACCOUNT)
        # Others may reach the socket, which asks for the password; the data directory is the account's alone.
        self.directory.chmod(0o711)
        secret = self.directory / "password"
        secret.touch(mode=0o600)
        secret.write_text(self.password, encoding="ascii")
        if os.geteuid() == 0:
            shutil.chown(secret, ACCOUNT, ACCOUNT)
        options = [
            "--auth=scram-sha-256",
            f"--username={DATABASE_NAME}",
            f"--pwfile={secret}",
            "--encoding=UTF8",
            "--locale=C",
        ]
        self._run([str(self._programs / "initdb"), "-D", str(self.directory / "data"), "--no-sync", *options])
        secret.unlink()
        settings = "".join(f"{name} = {value}\n" for name, value in TEST_SETTINGS.items())
        with (self.directory / "data" / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(settings)
        self._single_user(f"CREATE DATABASE {DATABASE_NAME}")
        self._made = True

    def _single_user(self, statement: str) -> None:
        argv = [str(self._programs / "postgres"), "--single", "-D", str(self.directory / "data"), "postgres"]
        self._run(argv, given=statement + "\n")

    def _run(self, argv: list[str], given: str = "") -> None:
        done = subprocess.run(self._as_account(argv), input=given, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            raise SetupFailed(f"`{Path(argv[0]).name}` failed with exit code {done.returncode}:\n{done.stderr[-1500:]}")

    def _as_account(self, argv: list[str]) -> list[str]:
        if os.geteuid() != 0:
            return argv
        account = pwd.getpwnam(ACCOUNT)
        return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", *argv]

    def _answers(self) -> bool:
        argv = [
            str(self._programs / "pg_isready"),
            "-q",
            "-h",
            str(self.directory),
            "-d",
            DATABASE_NAME,
            "-U",
            DATABASE_NAME,
        ]
        return subprocess.run(argv, check=False).returncode == 0

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the server and to every process of it."""
        if self._server is None or self._server.poll() is not None:
            return
        family = [self._server.pid]
        with contextlib.suppress(OSError):
            family += map(int, Path(f"/proc/{family[0]}/task/{family[0]}/children").read_text().split())
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        """End the server at once, connections and all (`fast` shutdown). Idempotent."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End the server as a crash of the machine would."""
        self.send(signal.SIGKILL)
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, number)
        try:
            server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(STOP_TIMEOUT_S)

    def remove(self) -> None:
        """End it and delete its files."""
        self.stop()
        subprocess.run(["rm", "-rf", "--one-file-system", str(self.directory)], check=False)


@contextlib.contextmanager
def private_cluster(programs: Path) -> Iterator[Cluster]:
    """A running cluster, which is removed at the end."""
    cluster = Cluster(programs)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


def main() -> int:
    """The command's exit code; 2 with one sentence when the server cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND [ARGUMENT ...]")
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("no command was given")
    if URL_VARIABLE in os.environ:
        say(f"using the server of {URL_VARIABLE}")
        return run_supervised(command, dict(os.environ))
    # Asked to end, it still takes its server with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if newest_programs() is None:
            check_sudo()
        with private_cluster(find_programs()) as cluster:
            say(f"PostgreSQL runs in {cluster.directory}")
            return run_supervised(command, {**os.environ, URL_VARIABLE: cluster.url})
    except SetupFailed as error:
        print(f"[setup] {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
