#!/usr/bin/env python3
"""Refuse a commit message whose subject is too long or whose body does not say why the change is made.

Role: the `commit-msg` hook of `.pre-commit-config.yaml`. Rule: a refused message gets one sentence with the fix, and exit code 1.
Messages that git writes itself (merges, reverts) pass. Standard library only. Non-goals: spelling, prefixes, line length of the body.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

MAX_SUBJECT = 72
"""Characters. `git log --oneline` and GitHub cut what is longer."""
MIN_BODY_WORDS = 3
"""Fewer words cannot state a reason."""
WRITTEN_BY_GIT = re.compile(
    r"Merge (branch|branches|commit|commits|tag|tags|remote-tracking branch|remote-tracking branches|pull request) |"
    r'(Revert|Reapply) "|'
    r"(fixup|squash|amend)! "
)
"""Subjects that git or GitHub writes. `fixup!`, `squash!` and `amend!` disappear at the next `git rebase --autosquash`."""
SCISSORS = re.compile(r"^. -+ >8 -+$")
"""The line below which `git commit --verbose` shows the change itself."""
TRAILER = re.compile(r"^[A-Za-z0-9-]+: \S")


def paragraphs(message: str) -> list[list[str]]:
    """The paragraphs that git will store, each a list of lines: without comments, and without what is below the scissors."""
    found: list[list[str]] = [[]]
    for line in message.splitlines():
        if SCISSORS.match(line):
            break
        if line.startswith("#"):
            continue
        if line.strip():
            found[-1].append(line.rstrip())
        elif found[-1]:
            found.append([])
    return [paragraph for paragraph in found if paragraph]


def reason(body: list[list[str]]) -> str:
    """The text of a body, without its last paragraph where that holds trailers only (`Signed-off-by: …`)."""
    if body and all(TRAILER.match(line) for line in body[-1]):
        body = body[:-1]
    return " ".join(line for paragraph in body for line in paragraph)


def complaint(message: str) -> str | None:
    """One sentence that says what is wrong with a message and how to fix it; None where the message is accepted."""
    found = paragraphs(message)
    if not found:
        return (
            "The commit message is empty: write a subject, an empty line, and a body that says why the change is made."
        )
    head, *body = found
    subject = head[0]
    if WRITTEN_BY_GIT.match(subject):
        return None
    if len(head) > 1:
        return "The second line of the commit message is not empty: put an empty line between the subject and the body."
    if len(subject) > MAX_SUBJECT:
        return (
            f"The subject of the commit message has {len(subject)} characters, and the limit is {MAX_SUBJECT}: "
            "shorten it and move the details to the body."
        )
    if len(reason(body).split()) < MIN_BODY_WORDS:
        return (
            "The commit message has no body that says why the change is made: "
            "add an empty line after the subject, then the reason in one or two sentences."
        )
    return None


def main() -> int:
    """0 where the message is accepted, 1 where it is refused, 2 where its file cannot be read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="the file with the message, as git passes it to a commit-msg hook")
    path: Path = parser.parse_args().file
    try:
        message = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        print(f"The commit message cannot be read ({error}): pass the file that git names.", file=sys.stderr)
        return 2
    wrong = complaint(message)
    if wrong is None:
        return 0
    print(wrong, file=sys.stderr)
    print(f"Your text is kept. Edit it and commit again: git commit --edit --file={path}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
