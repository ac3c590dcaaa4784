"""Files that tasks need from the internet, cached under the names of OSWorld's own cache.

This module lists the files of a task (`task_assets`), returns one of them as a path (`fetch_asset`) and imports an
existing cache (`import_assets`). A file appears in the cache complete or not at all, also when several processes fetch
it. A file whose task declares its sha256 is checked when it is fetched, imported and used. A broken download is
continued. With `DART_OFFLINE=1` the network is not used, and a missing file is an `AssetError` with the task, the
address and the fix. The directory has OSWorld's layout, `<task id>/<name>`, so that OSWorld's code can use it as its
cache. Bringing files into a desktop is in `dart_envs.setup`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

import httpx

from dart_envs.errors import AssetError, TaskError
from dart_envs.task_parts import EvaluatorLike, SetupStepLike
from dart_server.wire.paths import data_dir

OFFLINE_VARIABLE, CACHE_DIR_VARIABLE, MAX_BYTES_VARIABLE = "DART_OFFLINE", "DART_ASSETS_DIR", "DART_ASSET_MAX_BYTES"
MAX_BYTES = 4 * 2**30
"""The largest file that is fetched, unless `DART_ASSET_MAX_BYTES` says otherwise."""
MIN_FREE_BYTES = 256 * 2**20
"""So much room stays free on the cache's disk."""
MAX_ATTEMPTS = 5
INITIAL_BACKOFF_S = 1.0
"""Before the second attempt; doubled for each further one."""
TIMEOUT_S = 60.0
REACHABILITY_TIMEOUT_S = 10.0
HF = "https://huggingface.co"


class TaskWithAssets(Protocol):
    """The parts of a task that name files; implemented by `dart_envs.tasks.Task`."""

    @property
    def id(self) -> str:
        """Id of the task."""
        ...

    @property
    def config(self) -> Sequence[SetupStepLike]:
        """Setup steps."""
        ...

    @property
    def active_evaluators(self) -> Sequence[EvaluatorLike]:
        """What judges the task on its desktop; none where it is judged otherwise."""
        ...


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of a task.

    Attributes:
        task_id: Id of the task.
        kind: Kind of the step or getter that needs the file.
        url: Where the file comes from.
        name: Name in the cache directory of the task.
        sha256: What the task declares as the file's digest (hex), if it does.
    """

    task_id: str
    kind: str
    url: str
    name: str
    sha256: str | None = None

    @property
    def cache_name(self) -> str:
        """Path inside the cache."""
        return f"{self.task_id}/{self.name}"


def download_name(url: str, path: str) -> str:
    """Return the name that OSWorld's cache gives to the file of a `download` step.

    Args:
        url: Where the file comes from.
        path: Where the step puts it inside the desktop.

    Returns:
        The file name.
    """
    return f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{PurePosixPath(path).name}"


def task_assets(task: TaskWithAssets) -> tuple[Asset, ...]:
    """List every file that setup, post-configuration and evaluator of a task fetch.

    Args:
        task: The task.

    Returns:
        The files in order, each cache name once.

    Raises:
        TaskError: If a step or getter has not the fields that it needs, or a digest is none.
    """
    found: dict[str, Asset] = {}
    try:
        for step in (*task.config, *(step for evaluator in task.active_evaluators for step in evaluator.postconfig)):
            if step.type == "download":
                for file in step.parameters["files"]:
                    url = str(file["url"])
                    name, digest = download_name(url, str(file["path"])), _declared(file.get("sha256"))
                    asset = Asset(task.id, "download", url, name, digest)
                    found.setdefault(asset.name, asset)
        for evaluator in task.active_evaluators:
            for config in (*evaluator.result_configs, *evaluator.expected_configs):
                if config and config["type"] == "cloud_file":
                    for url, name, digest in cloud_files(config):
                        found.setdefault(name, Asset(task.id, "cloud_file", url, name, digest))
    except (KeyError, TypeError) as error:
        raise TaskError(f"Task {task.id}: a download step or a cloud_file getter lacks {error}.") from error
    return tuple(found.values())


def cloud_files(config: Mapping[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    """List the files of a `cloud_file` getter.

    Args:
        config: The getter: `path` and `dest`, each a text or a list, and perhaps `sha256` in the same form.

    Yields:
        Address, name in the cache, and declared digest of each file.

    Raises:
        TypeError: If the lists do not belong together.
        TaskError: If a digest is none.
    """
    urls, names, digests = config["path"], config["dest"], config.get("sha256")
    if isinstance(urls, str) != isinstance(names, str) or (
        digests and isinstance(urls, str) != isinstance(digests, str)
    ):
        raise TypeError("as many 'dest' and 'sha256' as 'path'")
    if isinstance(urls, str):
        yield urls, str(names), _declared(digests)
    else:
        declared = map(_declared, digests) if digests else [None] * len(urls)
        try:
            yield from zip(map(str, urls), map(str, names), declared, strict=True)
        except ValueError as error:
            raise TypeError("as many 'dest' and 'sha256' as 'path'") from error


def _declared(digest: object) -> str | None:
    """A declared digest. Raises TaskError for what is none."""
    if digest is None:
        return None
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise TaskError(f"sha256: {digest!r} is no digest; write 64 lower-case hexadecimal digits.")
    return digest


def is_offline() -> bool:
    """Return whether `DART_OFFLINE` forbids using the network."""
    return os.environ.get(OFFLINE_VARIABLE, "").strip().lower() not in ("", "0", "no", "false")


def default_cache_dir() -> Path:
    """Return the cache directory.

    Returns:
        `DART_ASSETS_DIR`, else `$DART_HOME/assets`, `$XDG_DATA_HOME/dart/assets` or `~/.local/share/dart/assets`.
    """
    if named := os.environ.get(CACHE_DIR_VARIABLE):
        return Path(named)
    return data_dir() / "assets"


def cache_path(cache_name: str, cache_dir: Path | None = None) -> Path:
    """Return the path of a file in the cache, whether it exists or not.

    Args:
        cache_name: Path inside the cache (`Asset.cache_name`).
        cache_dir: The cache; None is the default directory.

    Returns:
        The path.

    Raises:
        TaskError: If the name leads out of the cache.
    """
    parts = PurePosixPath(cache_name).parts
    if not parts or PurePosixPath(cache_name).is_absolute() or ".." in parts or "\0" in cache_name:
        raise TaskError(f"{cache_name!r} is not a name inside the asset cache.")
    return (cache_dir or default_cache_dir()).joinpath(*parts)


def missing_assets(task: TaskWithAssets, cache_dir: Path | None = None) -> tuple[Asset, ...]:
    """List the files of a task that the cache does not have.

    Args:
        task: The task.
        cache_dir: The cache; None is the default directory.

    Returns:
        The missing files; one that has another digest than its task declares is missing, too.
    """
    return tuple(
        asset for asset in task_assets(task) if not _is_sound(cache_path(asset.cache_name, cache_dir), asset.sha256)
    )


def file_sha256(path: Path) -> str:
    """Return the sha256 (hex) of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_sound_files: set[tuple[str, int, int, str]] = set()
"""Path, size, time of change and digest of files that this process has checked."""


def _is_sound(path: Path, sha256: str | None) -> bool:
    """Whether a file is there and has the declared digest, if there is one."""
    if not path.is_file():
        return False
    if sha256 is None:
        return True
    status = path.stat()
    identity = (str(path), status.st_size, status.st_mtime_ns, sha256)
    if identity not in _sound_files:
        if file_sha256(path) != sha256:
            return False
        _sound_files.add(identity)
    return True


def fetch_asset(
    url: str,
    cache_name: str,
    *,
    task_id: str = "",
    sha256: str | None = None,
    cache_dir: Path | None = None,
    max_nbytes: int | None = None,
    client: httpx.Client | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Path:
    """Return a file as a path in the cache, and fetch it first where it is missing.

    This function blocks: call it in a thread from a coroutine.

    Args:
        url: Where the file comes from.
        cache_name: Path inside the cache (`Asset.cache_name`).
        task_id: Id of the task, for the error.
        sha256: Digest (hex) that the file must have; None takes any.
        cache_dir: The cache; None is the default directory.
        max_nbytes: Size limit in bytes; None takes `DART_ASSET_MAX_BYTES`, or 4 GiB.
        client: HTTP client to use; None makes one.
        pause: Sleeps for some seconds between attempts.

    Returns:
        Path of the complete file.

    Raises:
        AssetError: If the file is missing and cannot be fetched, or has another digest.
        TaskError: If the name leads out of the cache.
    """
    path = cache_path(cache_name, cache_dir)
    if _is_sound(path, sha256):
        return path
    if is_offline():
        raise _asset_error(url, path, task_id, f"{OFFLINE_VARIABLE} is set")
    if urlsplit(url).scheme not in ("http", "https"):
        raise _asset_error(url, path, task_id, "only http and https addresses are fetched")
    path.parent.mkdir(parents=True, exist_ok=True)
    limit = max_nbytes or int(os.environ.get(MAX_BYTES_VARIABLE) or MAX_BYTES)
    with _locked(path) as part:
        if not _is_sound(path, sha256):
            try:
                _download(url, part, limit, client, pause)
                _require_digest(part, sha256)
            except (_PermanentDownloadError, httpx.HTTPError, OSError) as error:
                raise _asset_error(url, path, task_id, str(error) or type(error).__name__) from error
            part.replace(path)
            _etag_path(part).unlink(missing_ok=True)
    return path


def fetch_task_assets(
    task: TaskWithAssets, *, cache_dir: Path | None = None, client: httpx.Client | None = None
) -> tuple[Path, ...]:
    """Fetch all files of a task.

    Args:
        task: The task.
        cache_dir: The cache; None is the default directory.
        client: HTTP client to use; None makes one.

    Returns:
        Paths of the files.

    Raises:
        AssetError: If a file is missing and cannot be fetched.
    """
    return tuple(
        fetch_asset(
            asset.url, asset.cache_name, task_id=task.id, sha256=asset.sha256, cache_dir=cache_dir, client=client
        )
        for asset in task_assets(task)
    )


def unreachable_origins(urls: Iterable[str], *, client: httpx.Client | None = None) -> dict[str, str]:
    """Ask every server of `urls` once whether it answers at all.

    Args:
        urls: Addresses of files.
        client: HTTP client to use; None makes one.

    Returns:
        The reason by origin (`https://host`), for the servers that cannot be reached.
    """
    own = client or httpx.Client(timeout=REACHABILITY_TIMEOUT_S)
    found: dict[str, str] = {}
    try:
        for origin in dict.fromkeys(map(asset_origin, urls)):
            try:
                own.head(_download_url(f"{origin}/"))
            except (httpx.TransportError, httpx.InvalidURL, OSError) as error:
                found[origin] = str(error) or type(error).__name__
    finally:
        if client is None:
            own.close()
    return found


def asset_origin(url: str) -> str:
    """Return the server of an address, as `https://host`."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def import_assets(folder: Path, task: TaskWithAssets, *, cache_dir: Path | None = None) -> tuple[Asset, ...]:
    """Copy the missing files of a task from a directory.

    Args:
        folder: A cache of OSWorld (`<task id>/<name>`, also under `cache/`), or a copy of the dataset that the
            addresses point into.
        task: The task.
        cache_dir: The cache to copy into; None is the default directory.

    Returns:
        The files that were copied.

    Raises:
        AssetError: If a file cannot be copied.
    """
    taken = []
    for asset in missing_assets(task, cache_dir):
        source = next((one for one in _import_candidates(folder, asset) if one.is_file()), None)
        if source is None:
            continue
        path = cache_path(asset.cache_name, cache_dir)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(path) as part:
                shutil.copyfile(source, part)
                _require_digest(part, asset.sha256)
                part.replace(path)
                _etag_path(part).unlink(missing_ok=True)
        except _PermanentDownloadError as error:
            raise _asset_error(asset.url, path, task.id, f"{source} is not it: {error}") from error
        except OSError as error:
            raise _asset_error(asset.url, path, task.id, f"{source} cannot be copied: {error.strerror}") from error
        taken.append(asset)
    return tuple(taken)


def _import_candidates(folder: Path, asset: Asset) -> Iterator[Path]:
    for root in (folder, folder / "cache"):
        yield cache_path(asset.cache_name, root)
    inside = unquote(urlsplit(asset.url).path).partition("/resolve/")[2].partition("/")[2]
    if inside and ".." not in PurePosixPath(inside).parts:
        yield folder / inside


class _PermanentDownloadError(Exception):
    """A failure that another attempt would not change."""


def _require_digest(part: Path, sha256: str | None) -> None:
    """Raise _PermanentDownloadError for a file that is not the declared one, and remove it."""
    if sha256 is None:
        return
    found = file_sha256(part)
    if found != sha256:
        part.unlink()
        _etag_path(part).unlink(missing_ok=True)
        raise _PermanentDownloadError(f"its sha256 is {found}, and the task declares {sha256}")


def _asset_error(url: str, path: Path, task_id: str, why: str) -> AssetError:
    who = f"Task {task_id} needs" if task_id else "This call needs"
    return AssetError(
        f"{who} {path.name} from {url}, which is not in the asset cache ({path.parent}): {why}. Run `dart-envs assets fetch TASKS` "
        "where there is a network, or `dart-envs assets import DIR TASKS` with an OSWorld cache of your own.",
        url=url,
        task_id=task_id,
    )


@contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Lock the cache directory of `path` for one process, and yield the unfinished file beside `path`."""
    with (path.parent / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield path.with_name(f".{path.name}.part")


def _etag_path(part: Path) -> Path:
    return part.with_suffix(".tag")


def _download_url(url: str) -> str:
    """Return the address that is asked: that of `HF_ENDPOINT` for files of Hugging Face."""
    endpoint = os.environ.get("HF_ENDPOINT")
    return endpoint.rstrip("/") + url.removeprefix(HF) if endpoint and url.startswith(HF) else url


def _download(url: str, part: Path, limit: int, client: httpx.Client | None, pause: Callable[[float], None]) -> None:
    """Fill `part`, going on after breaks; raise _PermanentDownloadError, httpx.HTTPError or OSError."""
    url = _download_url(url)
    own = client or httpx.Client(follow_redirects=True, timeout=TIMEOUT_S)
    try:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                _download_once(own, url, part, limit)
                return
            except (httpx.TransportError, _TemporaryDownloadError):
                if attempt == MAX_ATTEMPTS:
                    raise
            pause(INITIAL_BACKOFF_S * 2 ** (attempt - 1))
    finally:
        if client is None:
            own.close()


class _TemporaryDownloadError(httpx.HTTPError):
    """A failure after which the server accepts another attempt."""


def _download_once(client: httpx.Client, url: str, part: Path, limit: int) -> None:
    """Make one request: the rest of the file where the server says that it is the same one, else the whole file."""
    have = part.stat().st_size if part.exists() else 0
    tag = json.loads(_etag_path(part).read_text()) if have and _etag_path(part).exists() else None
    headers = {"Accept-Encoding": "identity"}
    if have and tag:
        headers |= {"Range": f"bytes={have}-", "If-Range": tag}
    with client.stream("GET", url, headers=headers) as reply:
        if reply.status_code in (408, 425, 429, 500, 502, 503, 504):
            raise _TemporaryDownloadError(f"the server answers {reply.status_code}")
        if reply.status_code == 416:
            part.unlink(missing_ok=True)
            raise _TemporaryDownloadError("the server has another file than the one that was begun")
        if reply.status_code not in (200, 206):
            raise _PermanentDownloadError(f"the server answers {reply.status_code}")
        start = have if reply.status_code == 206 else 0
        length = reply.headers.get("content-length")
        total = None if length is None or not length.isdecimal() else start + int(length)
        _check_disk_space(start if total is None else total, start, limit, part)
        known = reply.headers.get("etag", "")
        _etag_path(part).write_text(json.dumps(known if known and not known.startswith("W/") else None))
        with part.open("ab" if start else "wb") as file:
            _receive(reply, file, start, limit)
    size = part.stat().st_size
    if total is not None and size != total:
        raise _TemporaryDownloadError(f"{size} of {total} bytes came")


def _receive(reply: httpx.Response, file: BinaryIO, size: int, limit: int) -> None:
    for chunk in reply.iter_raw():
        size += len(chunk)
        if size > limit:
            raise _PermanentDownloadError(f"it is larger than {limit} bytes ({MAX_BYTES_VARIABLE})")
        file.write(chunk)


def _check_disk_space(total: int, start: int, limit: int, part: Path) -> None:
    if total > limit:
        raise _PermanentDownloadError(f"it has {total} bytes, more than {limit} ({MAX_BYTES_VARIABLE})")
    free = shutil.disk_usage(part.parent).free
    if total - start > free - MIN_FREE_BYTES:
        raise _PermanentDownloadError(f"it has {total} bytes and the disk has {free} left")
