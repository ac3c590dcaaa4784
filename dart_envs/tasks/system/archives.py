"""Archives: packing a folder, taking one file out.

Role: families about zip and tar files. Rule: an archive is judged by its kind and by every file in it. Non-goals: how it was made.
"""

from __future__ import annotations

from random import Random

from dart_envs.tasks.basics.parts import all_of, step
from dart_envs.tasks.suite import Draft, Family
from dart_envs.tasks.system.parts import (
    FOLDER,
    MADE,
    bash,
    folder,
    folder_is,
    holding,
    lines,
    names,
    ran,
    terminal,
    typed,
)

PACK = {"zip": "zip -rq {0} {1}", "tar.gz": "tar czf {0} {1}", "tar.xz": "tar cJf {0} {1}"}
UNPACK = {"zip": "unzip -oqj {0} {1} -d {2}", "tar.gz": "tar xzf {0} --strip-components=1 -C {2} {1}"}


def make_archive(random: Random) -> Draft:
    """Pack a folder. The near miss packs the folder beside it; the exploits leave an empty file, and an archive of another kind."""
    goal, wrong, *words = names(random, 6)
    kind = random.choice(sorted(PACK))
    given = {f"{goal}/{word}.txt": lines(random, 3) for word in words[:3]} | {
        f"{wrong}/{words[3]}.txt": lines(random, 3)
    }
    archive = f"{goal}.{kind}"
    entries = {name: holding(text) for name, text in given.items()}
    packed = {name: holding(text)["sha256"] for name, text in given.items() if name.startswith(f"{goal}/")}
    other = next(form for form in sorted(PACK) if form != kind)
    return Draft(
        instruction=f"Pack the folder {goal} of {FOLDER}, with all that is in it, into the archive {archive} beside it. Keep the folder.",
        config=[*folder(given, [goal, wrong]), *terminal(random)],
        evaluator=all_of(
            {
                "func": "archive_is",
                "result": {"type": "vm_file", "path": f"{FOLDER}/{archive}"},
                "expected": {"type": "rule", "rules": {"format": kind, "files": packed}},
            },
            folder_is(entries | {goal: MADE, wrong: MADE, archive: {"kind": "file"}}),
        ),
        oracle=typed(PACK[kind].format(archive, goal)),
        near_miss=typed(PACK[kind].format(archive, wrong)),
        exploits=[
            ran(f"touch {archive}"),
            ran(f"{PACK[other].format(f'made.{other}', goal)} && mv made.{other} {archive}"),
        ],
    )


def extract_one(random: Random) -> Draft:
    """Take one file out of an archive. The near miss takes another; the exploits write an empty file, and take all of them."""
    box, target, *words = names(random, 6)
    kind = random.choice(sorted(UNPACK))
    given = {f"{box}/{word}.txt": lines(random, 3) for word in words}
    goal, wrong = random.sample(sorted(given), 2)
    archive = f"{box}.{kind}"
    base = goal.rpartition("/")[2]
    return Draft(
        instruction=f"From the archive {FOLDER}/{archive}, extract only the file {base}, directly into the folder {target}.",
        config=[
            *folder(given, [box, target]),
            bash(f"cd {FOLDER} && {PACK[kind].format(archive, box)}"),
            step("execute", command=["rm", "-r", f"{FOLDER}/{box}"], expect_returncode=0),
            *terminal(random),
        ],
        evaluator=folder_is({archive: {"kind": "file"}, target: MADE, f"{target}/{base}": holding(given[goal])}),
        oracle=typed(UNPACK[kind].format(archive, goal, target)),
        near_miss=typed(UNPACK[kind].format(archive, wrong, target)),
        exploits=[
            ran(f"touch {target}/{base}"),
            ran(f"{UNPACK[kind].format(archive, wrong, target)} && mv {target}/*.txt {target}/{base}"),
        ],
    )


FAMILIES = (
    Family("make_archive", "lxterminal", "pack a folder into an archive", 12, make_archive),
    Family("extract_one", "lxterminal", "extract one file of an archive", 12, extract_one),
)
