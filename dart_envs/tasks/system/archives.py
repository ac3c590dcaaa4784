"""Archives: packing a folder, taking one file out.

Role: families about zip and tar files. Rule: an archive is judged by its kind and by every file in it. Non-goals: how it was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from dart_envs.tasks.basics.parts import JsonDict, all_of, step
from dart_envs.tasks.suite import Family, TaskDraft
from dart_envs.tasks.system.parts import (
    FOLDER,
    FOLDER_FACTS,
    create_folder,
    file_facts,
    folder_tree_is,
    open_terminal,
    random_lines,
    random_names,
    run_bash_step,
    run_shell,
    type_command,
)

PACK = {"zip": "zip -rq {0} {1}", "tar.gz": "tar czf {0} {1}", "tar.xz": "tar cJf {0} {1}"}
UNPACK = {"zip": "unzip -oqj {0} {1} -d {2}", "tar.gz": "tar xzf {0} --strip-components=1 -C {2} {1}"}


def archive_holds(archive: str, kind: str, texts: Mapping[str, str]) -> JsonDict:
    """Evaluator: an archive of `FOLDER` holds files with these texts, and no others."""
    files = {name: file_facts(text)["sha256"] for name, text in texts.items()}
    return {
        "func": "archive_is",
        "result": {"type": "vm_file", "path": f"{FOLDER}/{archive}"},
        "expected": {"type": "rule", "rules": {"format": kind, "files": files}},
    }


def make_archive(random: Random) -> TaskDraft:
    """Pack a folder. The near miss packs the folder beside it; the exploits leave an empty file, and an archive of another kind."""
    goal, wrong, *words = random_names(random, 6)
    kind = random.choice(sorted(PACK))
    given = {f"{goal}/{word}.txt": random_lines(random, 3) for word in words[:3]} | {
        f"{wrong}/{words[3]}.txt": random_lines(random, 3)
    }
    archive = f"{goal}.{kind}"
    entries = {name: file_facts(text) for name, text in given.items()}
    packed = {name: text for name, text in given.items() if name.startswith(f"{goal}/")}
    other = next(form for form in sorted(PACK) if form != kind)
    return TaskDraft(
        instruction=f"Pack the folder {goal} of {FOLDER}, with all that is in it, into the archive {archive} beside it. Keep the folder.",
        config=[*create_folder(given, [goal, wrong]), *open_terminal(random)],
        evaluator=all_of(
            archive_holds(archive, kind, packed),
            folder_tree_is(entries | {goal: FOLDER_FACTS, wrong: FOLDER_FACTS, archive: {"kind": "file"}}),
        ),
        oracle=type_command(PACK[kind].format(archive, goal)),
        near_miss=type_command(PACK[kind].format(archive, wrong)),
        exploits=[
            run_shell(f"touch {archive}"),
            run_shell(f"{PACK[other].format(f'made.{other}', goal)} && mv made.{other} {archive}"),
        ],
    )


def extract_one(random: Random) -> TaskDraft:
    """Take one file out of an archive. The near miss takes another; the exploits write an empty file, and take all of them."""
    box, target, *words = random_names(random, 6)
    kind = random.choice(sorted(UNPACK))
    given = {f"{box}/{word}.txt": random_lines(random, 3) for word in words}
    goal, wrong = random.sample(sorted(given), 2)
    archive = f"{box}.{kind}"
    base = goal.rpartition("/")[2]
    return TaskDraft(
        instruction=f"From the archive {FOLDER}/{archive}, extract only the file {base}, directly into the folder {target}.",
        config=[
            *create_folder(given, [box, target]),
            run_bash_step(f"cd {FOLDER} && {PACK[kind].format(archive, box)}"),
            step("execute", command=["rm", "-r", f"{FOLDER}/{box}"], expect_returncode=0),
            *open_terminal(random),
        ],
        evaluator=all_of(
            folder_tree_is(
                {archive: {"kind": "file"}, target: FOLDER_FACTS, f"{target}/{base}": file_facts(given[goal])}
            ),
            archive_holds(archive, kind, given),
        ),
        oracle=type_command(UNPACK[kind].format(archive, goal, target)),
        near_miss=type_command(UNPACK[kind].format(archive, wrong, target)),
        exploits=[
            run_shell(f"touch {target}/{base}"),
            run_shell(f"{UNPACK[kind].format(archive, wrong, target)} && mv {target}/*.txt {target}/{base}"),
        ],
    )


FAMILIES = (
    Family("make_archive", "lxterminal", "pack a folder into an archive", 12, make_archive),
    Family("extract_one", "lxterminal", "extract one file of an archive", 12, extract_one),
)
