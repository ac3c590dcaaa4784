"""What is the suites' `system` and `media` own; what holds of every suite is tested in `test_suites.py`."""

from __future__ import annotations

import hashlib
from base64 import b64decode

import pytest

from dart_envs.evaluators.artifacts import GuestFile
from dart_envs.evaluators.images import decode_image, draw_scene
from dart_envs.evaluators.metrics import METRICS
from dart_envs.tasks import Task, load_suite
from dart_envs.tasks.media.viewers import pdf_document

SYSTEM, MEDIA = load_suite("system"), load_suite("media")
DRAWN = 8


@pytest.mark.parametrize(("name", "families", "apps"), [("system", 18, 6), ("media", 12, 4)])
def test_the_suites_are_as_broad_as_they_say(name: str, families: int, apps: int) -> None:
    held = load_suite(name).families.values()
    assert len(held) >= families
    assert len({family.app for family in held}) >= apps
    assert all(family.publish_setup for family in held), "an application is open in each"


def tasks_of(name: str, family: str) -> list[Task]:
    chosen = load_suite(name)
    return [chosen.load(f"{name}/{family}/{number:04d}") for number in range(DRAWN)]


@pytest.mark.parametrize("name", ["system", "media"])
def test_the_instruction_varies_with_the_variation(name: str) -> None:
    for family in load_suite(name).families:
        assert len({task.instruction for task in tasks_of(name, family)}) > DRAWN // 3, family


def written_pictures(task: Task) -> dict[str, bytes]:
    steps = [dict(step.parameters) for step in task.config if step.type == "write_binary"]
    return {step["path"]: b64decode(step["content_base64"]) for step in steps if step["path"].endswith(".png")}


GIMP = sorted(name for name, family in MEDIA.families.items() if family.app == "gimp")


@pytest.mark.parametrize("family", [*GIMP, "turn_in_viewer"])
def test_a_picture_as_it_was_given_is_not_what_is_asked_for(family: str) -> None:
    for task in tasks_of("media", family):
        (content,) = written_pictures(task).values()
        expected = task.evaluator.expected_configs[0]
        assert expected is not None
        assert (decode_image(content)[1] == draw_scene(expected["rules"]["scene"])).all(), (
            "the verdict draws what the setup wrote"
        )
        score = METRICS[task.evaluator.functions[0]](
            GuestFile("/p", content), expected["rules"], task.evaluator.metric_options[0]
        )
        assert score == 0


@pytest.mark.parametrize("family", ["delete_picture", "name_pictures"])
def test_pictures_that_must_be_kept_are_those_that_were_given(family: str) -> None:
    for task in tasks_of("media", family):
        expected = task.evaluator.expected_configs[0]
        assert expected is not None
        kept = {facts["sha256"] for facts in expected["rules"]["entries"].values()}
        given = {hashlib.sha256(content).hexdigest() for content in written_pictures(task).values()}
        assert kept <= given
        assert len(given) - len(kept) == (1 if family == "delete_picture" else 0)


def test_a_document_has_the_pages_it_was_given_and_its_table_points_at_its_objects() -> None:
    content = pdf_document([["one"], ["two", "three"]])
    assert content.count(b"/Type /Page ") == 2
    assert b"(two) Tj T* (three) Tj T*" in content
    start = int(content.rpartition(b"startxref\n")[2].split()[0])
    rows = content[start:].splitlines()[3:]
    for number, row in enumerate(rows[: content.count(b" 0 obj")], start=1):
        assert content[int(row.split()[0]) :].startswith(b"%d 0 obj" % number)
