"""`python -m dart_train.data_manager --config FILE`: the data manager as a process.

Role: read the configuration, take the lock of the database, serve until SIGTERM. Rule: mistakes in the configuration, a database of another
version and a second data manager on the same database end with exit code 2 and one sentence. Non-goals: sockets and the key (`serving`),
routes (`app`), operations (`service`).
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import gc
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvloop

from dart_agent.data_client.image_location import open_images
from dart_agent.errors import ConfigError, StoreError
from dart_agent.inference.checkpoint_files import read_checkpoint_info
from dart_agent.key_file import make_key_file
from dart_agent.strict_model import read_config_file
from dart_envs.clock import SYSTEM_CLOCK
from dart_server.wire import Clock
from dart_train.data_manager.catalog import SuiteCatalog, TaskCatalog
from dart_train.data_manager.config import DataManagerConfig
from dart_train.data_manager.service import DataManager
from dart_train.data_manager.serving import AsgiApp, KeyGuard, serve_app, tcp_listener, unix_listener
from dart_train.data_manager.store.database import DatabaseLocation, parse_location
from dart_train.data_manager.store.postgres import NOTICE_LIMIT_S, DatabaseInUseError
from dart_train.data_manager.store.step_checks import ImagePlaceholders, Placeholders
from dart_train.data_manager.store.trajectories import TrajectoryStore

EXIT_BAD_CONFIG = 2
LOCK_TIMEOUT_S, LOCK_POLL_S = NOTICE_LIMIT_S + 5.0, 0.2


def main(argv: Sequence[str] | None = None, catalog: TaskCatalog | None = None) -> int:
    """Run the data manager until SIGTERM.

    Args:
        argv: The command line without the program name; None: that of the process.
        catalog: The tasks; None: those of `dart_envs.tasks`.

    Returns:
        The exit code: 0, or 2 for a configuration or database that cannot be used.
    """
    parser = argparse.ArgumentParser(prog="python -m dart_train.data_manager", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file (dart_train.data_manager.config)")
    try:
        config = read_config(parser.parse_args(argv).config)
        with ExitStack() as opened:
            opened.enter_context(writer_lock(config.database))
            listeners = [opened.enter_context(unix_listener(config.socket))]
            if config.listen is not None:
                bound = tcp_listener(config.listen, insecure_plain_http=config.insecure_plain_http)
                listeners.append(opened.enter_context(bound))
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve(config, listeners, catalog or SuiteCatalog(config.task_folder)))
    except (ConfigError, StoreError) as error:
        print(f"data manager: {error}", file=sys.stderr)
        return EXIT_BAD_CONFIG
    return 0


def read_config(path: Path) -> DataManagerConfig:
    """Read and check the configuration.

    Args:
        path: The JSON file.

    Returns:
        The configuration.

    Raises:
        ConfigError: The file cannot be read or has mistakes.
    """
    return read_config_file(path, DataManagerConfig)


async def serve(config: DataManagerConfig, listeners: Sequence[socket.socket], catalog: TaskCatalog) -> None:
    """Serve on open sockets until SIGTERM or SIGINT.

    Args:
        config: The configuration.
        listeners: The listening Unix socket and, where the configuration has an address, the TCP socket, which asks for the key.
        catalog: The tasks.

    Raises:
        ConfigError: The key file cannot be used.
        StoreError: The database cannot be used.
    """
    from dart_train.data_manager.app import create_app

    placeholders = placeholders_of(config.checkpoint)
    store = await open_store(config, catalog, placeholders)
    try:
        app = create_app(DataManager(store, open_images(config.images), catalog, config))
        guards: list[AsgiApp] = [app]
        if config.key_file is not None:
            guards.append(KeyGuard(app, make_key_file(config.key_file)))
        gc.collect()
        gc.freeze()  # what is there now lives as long as the process: the collector need not look at it again and again
        await serve_app(app, list(zip(guards, listeners, strict=True)))
    finally:
        store.close()


async def open_store(
    config: DataManagerConfig, catalog: TaskCatalog, placeholders: Placeholders, clock: Clock = SYSTEM_CLOCK
) -> TrajectoryStore:
    """Open the database; the server needs `NOTICE_LIMIT_S` at most to notice that the host of the last data manager has vanished.

    Args:
        config: The configuration.
        catalog: The tasks.
        placeholders: Image placeholders of the model, once they are known.
        clock: Time.

    Returns:
        The database.

    Raises:
        DatabaseInUseError: Another data manager still holds it.
        StoreError: It cannot be used.
    """
    give_up_at_s = clock.monotonic() + LOCK_TIMEOUT_S
    told = False
    while True:
        try:
            return TrajectoryStore.open(config.database, catalog.split_of, placeholders=placeholders)
        except DatabaseInUseError:
            if clock.monotonic() >= give_up_at_s:
                raise
        if not told:
            limit = f"{LOCK_TIMEOUT_S:.0f} s"
            print(f"data manager: another one holds the database, and has {limit} to end", file=sys.stderr, flush=True)
            told = True
        await clock.sleep(LOCK_POLL_S)


def placeholders_of(checkpoint: Path | None) -> Placeholders:
    """Make the look-up of a checkpoint's image placeholders; a run makes its model after the data manager has started.

    Args:
        checkpoint: Directory of the checkpoint; None: it is not known.

    Returns:
        The look-up, which reads the files once they are there.
    """
    found: list[ImagePlaceholders] = []

    def look_up() -> ImagePlaceholders | None:
        if not found and checkpoint is not None and (checkpoint / "config.json").is_file():
            info = read_checkpoint_info(checkpoint)
            found.append(ImagePlaceholders(info.image_token_id, info.image_token_px))
        return found[0] if found else None

    return look_up


@contextmanager
def writer_lock(where: DatabaseLocation) -> Iterator[None]:
    """Hold the lock of a SQLite database; PostgreSQL's is held by the connection (`dart_train.data_manager.store.postgres`).

    Args:
        where: The SQLite file, or the URL of a database.

    Yields:
        Nothing; the lock is held as long as the context lasts.

    Raises:
        ConfigError: Another data manager holds the lock.
        StoreError: It is no URL of a database.
    """
    url = parse_location(where)
    if url.get_backend_name() != "sqlite":
        yield
        return
    database = Path(str(url.database))
    database.parent.mkdir(parents=True, exist_ok=True)
    with database.with_suffix(".lock").open("w", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another data manager writes to {database}: stop it first") from None
        yield


if __name__ == "__main__":
    sys.exit(main())
