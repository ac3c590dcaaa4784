from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import osworld_data
import pytest
from typer.testing import CliRunner

from dart_envs.cli.main import app
from dart_envs.envs.task_sources import select_tasks
from dart_envs.errors import TaskError
from dart_envs.tasks import Task, load, load_file, parse_task
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_server.wire import DesktopShape

SHAPE = DesktopShape(resolution=(640, 400), font_size=16)


def data(**changes: Any) -> dict[str, Any]:
    return {
        "id": "one",
        "instruction": "Do it.",
        "config": [{"type": "sleep", "parameters": {"seconds": 1}}],
        "evaluator": {"func": "exists", "result": {"type": "vm_file", "path": "/a"}},
    } | changes


def task(**changes: Any) -> Task:
    return parse_task(data(**changes), name="one")


def test_a_minimal_task_and_its_defaults() -> None:
    made = task(config=None)
    assert made.config == ()
    assert made.evaluator.functions == ("exists",)
    assert made.evaluator.expected_configs == (None,)
    assert made.publish_setup
    assert made.unsupported == ()


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"colour": "red"}, "colour", "Extra inputs"),
        ({"instruction": ""}, "instruction", "at least 1 character"),
        ({"max_steps": 0}, "max_steps", "greater than or equal to 1"),
        ({"proxy": "perhaps"}, "proxy", "valid boolean"),
        ({"config": [{"type": "sleep", "parameters": {"seconds": "x"}}]}, "config.0", "seconds"),
        ({"config": [{"type": "dance"}]}, "config.0", "unknown setup step 'dance'"),
        ({"evaluator": {"func": "exists", "result": {"path": "/a"}}}, "evaluator.result", "'type'"),
        ({"evaluator": {"func": "exists", "conj": "xor"}}, "evaluator.conj", "'and' or 'or'"),
        ({"evaluator": {"func": ["exists", "exists"], "result": [None]}}, "evaluator", "1 entries for 2 functions"),
        ({"oracle": [{"do": "fly"}]}, "oracle.0.do", "Input should be"),
        ({"origin": "/etc"}, "origin", "not a field"),
        ({"starts_at": "2024-05-01T09:00:00"}, "starts_at", "timezone"),
        ({"starts_at": "1999-12-31T23:59:00Z"}, "starts_at", "from 2001-09-10"),
    ],
)
def test_a_bad_field_is_named_in_one_sentence(changes: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(TaskError) as caught:
        task(**changes)
    message = str(caught.value)
    assert message.startswith(f"one: field '{field}")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"{", "is not JSON: "), (b"\xff", "is not UTF-8"), (b"[]", "a task is a JSON object, not list")],
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(TaskError, match=words) as caught:
        load(str(path))
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"absent\.json: cannot be read: No such file"):
        load(str(tmp_path / "absent.json"))


def test_the_content_hash_is_about_the_task_not_about_teaching_it() -> None:
    plain = task()
    taught = task(oracle=[{"do": "done"}], near_miss=[{"do": "fail"}], split="train")
    assert plain.content_hash == taught.content_hash
    assert len({plain.content_hash, task(max_steps=3).content_hash, task(instruction="Other.").content_hash}) == 3


def test_a_task_survives_its_own_json() -> None:
    made = task(oracle=[{"do": "click", "target": {"role": "push button", "name": "OK"}}])
    again = parse_task(json.loads(json.dumps(made.model_dump(mode="json", by_alias=True))), name="one")
    assert again == made
    assert again.content_hash == made.content_hash


def test_the_setup_key_depends_on_what_the_desktop_becomes_and_nothing_else() -> None:
    key = task().setup_key("sha256:a", SHAPE)
    other = {"func": "exists", "result": {"type": "vm_file", "path": "/b"}}
    assert len(key) == 64
    assert task(evaluator=other, id="two", instruction="Else.").setup_key("sha256:a", SHAPE) == key
    changed = {
        task().setup_key("sha256:b", SHAPE),
        task().setup_key("sha256:a", DesktopShape(resolution=(640, 480), font_size=16)),
        task().setup_key("sha256:a", DesktopShape(resolution=(640, 400), font_size=17)),
        task(config=[{"type": "sleep", "parameters": {"seconds": 2}}]).setup_key("sha256:a", SHAPE),
    }
    assert len(changed | {key}) == 5


def test_the_setup_key_depends_on_the_files_that_are_brought_along(tmp_path: Path) -> None:
    steps = [{"type": "upload_file", "parameters": {"files": [{"local_path": "gold", "path": "/g"}]}}]
    path = tmp_path / "task.json"
    path.write_text(json.dumps(data(config=steps)), encoding="utf-8")
    loaded = load_file(path)
    with pytest.raises(TaskError, match=r"cannot read its file .*gold"):
        loaded.setup_key("sha256:a", SHAPE)
    (tmp_path / "gold").write_bytes(b"1")
    first = loaded.setup_key("sha256:a", SHAPE)
    (tmp_path / "gold").write_bytes(b"2")
    assert loaded.setup_key("sha256:a", SHAPE) != first


@pytest.mark.parametrize(
    ("named", "image"), [({}, "desktop"), ({"image": "mine"}, "mine"), ({"suite": "mine"}, "basic")]
)
def test_a_file_in_osworlds_form_is_for_the_image_with_its_programs(
    tmp_path: Path, named: dict[str, str], image: str
) -> None:
    path = tmp_path / "some" / "folder" / "task.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(data(**named)), encoding="utf-8")
    assert load_file(path).image == image
    pool = select_tasks(str(path), None)
    assert (pool.ids, pool.shape().image) == ((str(path),), image)


@pytest.mark.parametrize(("name", "words"), [("nowhere.json", "cannot be read"), ("nowhere", "is no task file")])
def test_the_path_of_a_bad_file_is_refused_when_it_is_chosen(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(TaskError, match=f"nowhere.* {words}"):
        select_tasks(str(tmp_path / name), None)


def test_what_has_no_solution_is_not_played(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps(data()), encoding="utf-8")
    said = CliRunner().invoke(app, ["tasks", "run", str(path)])
    assert said.exit_code == 2
    assert "has no script 'oracle' to run" in said.output


def test_what_a_task_cannot_do_here_is_listed() -> None:
    evaluator = {"func": "compare_tablet", "result": {"type": "cloudy_file"}}
    made = task(config=[{"type": "googledrive", "parameters": {}}], evaluator=evaluator)
    step, metric, getter = made.unsupported
    assert step == "setup step 'googledrive'"
    assert metric.startswith("metric 'compare_tablet' (nearest: 'compare_table'")
    assert getter.startswith("getter 'cloudy_file' (nearest: 'cloud_file'")
    official = task(config=[], evaluator={"func": "compare_table", "result": {"type": "cloud_file"}})
    assert official.unsupported == ()


async def test_a_screen_that_is_too_small_is_refused_before_the_set_up() -> None:
    made = task(config=[], min_resolution=[800, 600])
    await made.prepare(FakeDesktop((800, 600)))
    for small in ((799, 600), (800, 599)):
        with pytest.raises(TaskError, match=rf"at least 800x600 pixels, not {small[0]}x{small[1]}"):
            await made.prepare(FakeDesktop(small))


def test_osworlds_own_files_load() -> None:
    files = sorted((osworld_data.data() / "examples").glob("*/*.json"))
    assert len(files) == 369
    loaded = [load_file(path) for path in files]
    assert {made.id for made in loaded} == {path.stem for path in files}
    assert sum("infeasible" in made.evaluator.functions for made in loaded) == 27
    assert sum(not made.unsupported for made in loaded) >= 20


def test_a_declared_clock_makes_another_state_and_another_task() -> None:
    digest = "sha256:" + "0" * 64
    plain, dated = task(), task(starts_at="2024-05-01T09:00:00Z")
    same = task(starts_at="2024-05-01T11:00:00+02:00")
    assert plain.setup_key(digest, SHAPE) != dated.setup_key(digest, SHAPE) == same.setup_key(digest, SHAPE)
    assert plain.content_hash != dated.content_hash
    assert plain.content_hash == task(starts_at=None).content_hash
