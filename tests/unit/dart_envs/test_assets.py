"""The asset cache against a web server on this machine that breaks off, refuses and lies on demand."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import osworld_data
import pytest
from local_server import LocalHandler, LocalServer, serving
from typer.testing import CliRunner

from dart_envs import assets
from dart_envs.cli.main import app
from dart_envs.errors import AssetError, TaskError
from dart_envs.tasks import Task, load_file, parse_task

CONTENT = bytes(range(256)) * 400


class FileServer(LocalServer):
    """Serves CONTENT under every path; `cuts`: after so many bytes the next answers break off."""

    def __init__(self) -> None:
        super().__init__(FileHandler)
        self.cuts: list[int] = []
        self.tag = '"one"'
        self.ranges: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://{self.place}/resolve/main/calc/some%20sheet.xlsx"


class FileHandler(LocalHandler):
    server: FileServer

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        if self.refused():
            return
        same = wanted is not None and self.headers.get("If-Range") == self.server.tag
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and same else 0
        body = CONTENT[start:]
        self.send_response(206 if same else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", self.server.tag)
        self.end_headers()
        self.wfile.write(body[: self.server.cuts.pop(0)] if self.server.cuts else body)


@pytest.fixture
def site() -> Iterator[FileServer]:
    with serving(FileServer()) as server:
        yield server


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DART_ASSETS_DIR", str(tmp_path / "assets"))
    monkeypatch.delenv("DART_OFFLINE", raising=False)
    return tmp_path / "assets"


def fetch(url: str, name: str = "task/sheet.xlsx", **how: Any) -> Path:
    return assets.fetch_asset(url, name, task_id="task", pause=lambda _s: None, **how)


def task_with(url: str) -> Task:
    data = {
        "id": "task",
        "instruction": "Do it.",
        "config": [{"type": "download", "parameters": {"files": [{"url": url, "path": "/home/user/a.xlsx"}]}}],
        "evaluator": {
            "func": "compare_table",
            "result": {"type": "vm_file", "path": "/home/user/a.xlsx", "dest": "a.xlsx"},
            "expected": {"type": "cloud_file", "path": url, "dest": "gold.xlsx"},
        },
    }
    return parse_task(data, name="task")


def test_a_file_is_fetched_once(site: FileServer, place: Path) -> None:
    first = fetch(site.url)
    assert first == place / "task" / "sheet.xlsx"
    assert first.read_bytes() == CONTENT
    assert fetch(site.url) == first
    assert len(site.ranges) == 1
    assert sorted(path.name for path in first.parent.iterdir()) == [".lock", "sheet.xlsx"]


def test_a_broken_download_goes_on_where_it_broke(site: FileServer) -> None:
    site.cuts = [1000, 20_000]
    assert fetch(site.url).read_bytes() == CONTENT
    assert site.ranges == [None, "bytes=1000-", "bytes=21000-"]


def test_a_file_that_changed_meanwhile_is_begun_anew(site: FileServer) -> None:
    site.cuts = [1000] * assets.MAX_ATTEMPTS
    with pytest.raises(AssetError, match="bytes"):
        fetch(site.url)
    site.tag = '"two"'
    assert fetch(site.url).read_bytes() == CONTENT
    assert site.ranges[-1] == "bytes=5000-"


def test_a_server_that_is_busy_is_asked_again(site: FileServer) -> None:
    site.statuses = [503, 429]
    assert fetch(site.url).read_bytes() == CONTENT
    assert len(site.ranges) == 3


def test_a_file_that_is_not_there_names_task_address_and_cure(site: FileServer) -> None:
    site.statuses = [404]
    with pytest.raises(AssetError, match="the server answers 404") as raised:
        fetch(site.url)
    for part in ("Task task needs sheet.xlsx", site.url, "dart-envs assets fetch", "dart-envs assets import"):
        assert part in str(raised.value)
    assert (raised.value.url, raised.value.task_id) == (site.url, "task")
    assert len(site.ranges) == 1, "asking again would not help"


@pytest.mark.parametrize("told", [True, False])
def test_a_file_that_is_too_large_is_refused(site: FileServer, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not told:
        send = FileHandler.send_header
        monkeypatch.setattr(
            FileHandler, "send_header", lambda s, k, v: None if k == "Content-Length" else send(s, k, v)
        )
    with pytest.raises(AssetError, match="DART_ASSET_MAX_BYTES"):
        fetch(site.url, max_nbytes=5_000)
    assert not list(assets.default_cache_dir().rglob("sheet.xlsx"))


def test_offline_nothing_is_asked_of_the_network(site: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DART_OFFLINE", "1")
    with pytest.raises(AssetError, match="DART_OFFLINE is set"):
        fetch(site.url)
    assert site.ranges == []
    monkeypatch.setenv("DART_OFFLINE", "0")
    there = fetch(site.url)
    monkeypatch.setenv("DART_OFFLINE", "1")
    assert fetch(site.url) == there


def test_many_at_once_fetch_it_once_and_see_it_whole(site: FileServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda _n: fetch(site.url).read_bytes(), range(8)))
    assert seen == [CONTENT] * 8
    assert len(site.ranges) == 1


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a/../../b", "", "a\0b"])
def test_a_name_never_leads_out_of_the_cache(name: str) -> None:
    with pytest.raises(TaskError, match="not a name inside the asset cache"):
        fetch("http://127.0.0.1:1/x", name)


def test_only_web_addresses_are_fetched() -> None:
    with pytest.raises(AssetError, match="only http and https"):
        fetch("file:///etc/passwd")


def test_the_names_are_those_of_osworlds_cache() -> None:
    osworld = osworld_data.data()
    with (osworld / "hf_files.tsv").open(encoding="utf-8") as file:
        wanted = {(row[1], row[2], row[3], row[4]) for row in list(csv.reader(file, delimiter="\t"))[1:]}
    found = {
        (one.task_id, one.kind, one.url, one.name)
        for path in sorted((osworld / "examples").glob("*/*.json"))
        for one in assets.task_assets(load_file(path))
    }
    assert len(wanted) == 712
    assert wanted <= found
    assert not [one for one in found - wanted if "xlangai/ubuntu_osworld_file_cache" in one[2]]


def test_a_cache_of_ones_own_is_imported_and_a_dataset_too(tmp_path: Path) -> None:
    url = "https://example.invalid/datasets/x/resolve/main/calc/some%20sheet.xlsx"
    task = task_with(url)
    theirs = tmp_path / "theirs"
    (theirs / "cache" / "task").mkdir(parents=True)
    (theirs / "cache" / "task" / assets.download_name(url, "/home/user/a.xlsx")).write_bytes(b"input")
    assert [one.kind for one in assets.import_assets(theirs, task)] == ["download"]
    assert [one.name for one in assets.missing_assets(task)] == ["gold.xlsx"]
    (theirs / "calc").mkdir()
    (theirs / "calc" / "some sheet.xlsx").write_bytes(b"gold")
    assert [one.kind for one in assets.import_assets(theirs, task)] == ["cloud_file"]
    assert not assets.missing_assets(task)
    assert assets.fetch_task_assets(task)[1].read_bytes() == b"gold"


GOOD, BAD = hashlib.sha256(CONTENT).hexdigest(), "0" * 64


def test_a_file_with_another_digest_than_declared_is_refused(site: FileServer, place: Path) -> None:
    with pytest.raises(AssetError, match=f"its sha256 is {GOOD}, and the task declares {BAD}"):
        fetch(site.url, sha256=BAD)
    assert [path.name for path in (place / "task").iterdir()] == [".lock"], "nothing of it stays"
    assert fetch(site.url, sha256=GOOD).read_bytes() == CONTENT
    asked = len(site.ranges)
    fetch(site.url, sha256=GOOD)
    assert len(site.ranges) == asked


def test_a_file_that_was_changed_in_the_cache_is_fetched_again(site: FileServer) -> None:
    path = fetch(site.url, sha256=GOOD)
    path.write_bytes(b"changed")
    assert fetch(site.url, sha256=GOOD).read_bytes() == CONTENT


def test_a_task_declares_digests_of_all_its_files(site: FileServer, tmp_path: Path) -> None:
    data = task_with(site.url).model_dump(by_alias=True, mode="json", exclude={"oracle_script"})
    data["config"][0]["parameters"]["files"][0]["sha256"] = GOOD
    data["evaluator"]["expected"]["sha256"] = BAD
    task = parse_task(data, name="task")
    assert [asset.sha256 for asset in assets.task_assets(task)] == [GOOD, BAD]
    with pytest.raises(AssetError, match=BAD):
        assets.fetch_task_assets(task)
    assert [asset.sha256 for asset in assets.missing_assets(task)] == [BAD]
    theirs = tmp_path / "theirs" / "task"
    theirs.mkdir(parents=True)
    (theirs / "gold.xlsx").write_bytes(b"gold")
    with pytest.raises(AssetError, match="is not it"):
        assets.import_assets(tmp_path / "theirs", task)
    data["evaluator"]["expected"]["sha256"] = "sha"
    with pytest.raises(TaskError, match="64 lower-case"):
        assets.task_assets(parse_task(data, name="task"))


def test_digests_of_several_files_belong_to_them() -> None:
    config = {"type": "cloud_file", "multi": True, "path": ["http://a", "http://b"], "dest": ["a", "b"]}
    assert [digest for _, _, digest in assets.cloud_files(config)] == [None, None]
    assert [digest for _, _, digest in assets.cloud_files({**config, "sha256": [GOOD, BAD]})] == [GOOD, BAD]
    for wrong in ([GOOD], GOOD):
        with pytest.raises(TypeError):
            list(assets.cloud_files({**config, "sha256": wrong}))


def test_the_command_checks_fetches_and_imports(site: FileServer, tmp_path: Path) -> None:
    task_file = tmp_path / "task.json"
    task_file.write_text(task_with(site.url).model_dump_json(by_alias=True, exclude={"oracle_script"}))
    run = CliRunner().invoke
    checked = run(app, ["assets", "check", str(task_file), "--json", str(tmp_path / "files.json")])
    assert (checked.exit_code, checked.stdout.count("missing task/")) == (1, 2)
    assert '"cached": false' in (tmp_path / "files.json").read_text()
    fetched = run(app, ["assets", "fetch", str(task_file)])
    assert (fetched.exit_code, "2 of 2 files of 1 tasks" in fetched.stdout) == (0, True)
    other = ["--cache", str(tmp_path / "other")]
    imported = run(app, ["assets", "import", str(assets.default_cache_dir()), str(task_file), *other])
    assert (imported.exit_code, "2 files were taken" in imported.stdout) == (0, True)
    for wrong in (["check", "nothing"], ["import", str(tmp_path / "absent"), str(task_file)], ["fetch", "no.json"]):
        refused = run(app, ["assets", *wrong])
        assert (refused.exit_code, len(refused.stderr.strip().splitlines())) == (2, 1)
