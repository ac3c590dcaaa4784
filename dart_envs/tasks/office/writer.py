"""LibreOffice Writer: families about text, styles, formats and structure.

Role: what the saved document holds, paragraph by paragraph, is the verdict. Rule: everything that was not to change is judged too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from dart_envs.tasks.basics.parts import JsonDict, key, pause, type_text
from dart_envs.tasks.basics.words import VERBS, random_sentence, sample_nouns
from dart_envs.tasks.office.documents import text_document
from dart_envs.tasks.office.parts import (
    SAVE,
    find_and_replace,
    open_document,
    overwrite_with_document,
    overwrite_with_text,
    random_path,
    repeat_key,
    saved_file_is,
)
from dart_envs.tasks.suite import Family, TaskDraft

CHECK = "check_text_document"
NOT_ALIGNED = ["", "start", "left"]
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


@dataclass(frozen=True, slots=True)
class WriterDocument:
    """A document of short paragraphs, each one line."""

    path: str
    lines: list[str]

    def config(self) -> list[JsonDict]:
        """The document, open in Writer."""
        return open_document(self.path, text_document(self.lines))

    def paragraphs_are(self, **changes: Any) -> JsonDict:
        """Evaluator: the lines as they were, each plain, but for `changes` by index (`p2`: what is to hold of line 2)."""
        plain = {"looks": [], "list_kind": "", "style": "Standard", "page_break": False, "align": NOT_ALIGNED}
        rules = [{"text": line, **plain} | changes.get(f"p{index}", {}) for index, line in enumerate(self.lines)]
        return saved_file_is(self.path, CHECK, paragraphs=rules)

    def txt_exploit(self, lines: Sequence[str]) -> list[JsonDict]:
        """A program writes the lines as plain text where the document is."""
        return overwrite_with_text(self.path, "\n".join(lines) + "\n")

    def file_exploit(self, lines: Sequence[str]) -> list[JsonDict]:
        """A program puts a document with these lines there."""
        return overwrite_with_document(self.path, text_document(lines))


def random_document(random: Random, *, min_items: int = 4, max_items: int = 6) -> WriterDocument:
    """A drawn document; no line twice."""
    lines: list[str] = []
    count = random.randint(min_items, max_items)
    while len(lines) < count:
        line = f"{random_sentence(random)} {random.choice(('today', 'again', 'at noon', 'in May', 'by night'))}"
        if line not in lines:
            lines.append(line)
    return WriterDocument(random_path(random, "odt"), lines)


def two_indices(random: Random, count: int) -> tuple[int, int]:
    """Indices of a line and of another one."""
    first, second = random.sample(range(count), 2)
    return first, second


def go_to_line(index: int) -> list[JsonDict]:
    """Put the caret at the start of a line."""
    return [key("ctrl", "home"), *repeat_key("down", times=index)]


def select_line(index: int) -> list[JsonDict]:
    """Select a line."""
    return [*go_to_line(index), key("shift", "end")]


def writer_heading(random: Random) -> TaskDraft:
    """Make a line a heading. The near miss does it to another line; an exploit writes Markdown."""
    doc = random_document(random)
    goal, wrong = two_indices(random, len(doc.lines))
    level = random.choice((1, 2, 3))
    hashed = [f"{'#' * level} {line}" if index == goal else line for index, line in enumerate(doc.lines)]

    def play(index: int) -> list[JsonDict]:
        return [*go_to_line(index), key("ctrl", str(level)), *SAVE]

    return TaskDraft(
        instruction=f"In the open document, give the line '{doc.lines[goal]}' the style Heading {level} and save it.",
        config=doc.config(),
        evaluator=doc.paragraphs_are(**{f"p{goal}": {"style": f"Heading {level}", "looks": ["bold"]}}),
        oracle=play(goal),
        near_miss=play(wrong),
        exploits=[doc.txt_exploit(hashed), doc.file_exploit(hashed)],
    )


def writer_emphasis(random: Random) -> TaskDraft:
    """Make a line bold, italic or underlined. The near miss does another of these to it; an exploit uses asterisks."""
    doc = random_document(random)
    goal = random.randrange(len(doc.lines))
    (look, letter), (_, other) = random.sample([("bold", "b"), ("italic", "i"), ("underline", "u")], 2)
    starred = [f"*{line}*" if index == goal else line for index, line in enumerate(doc.lines)]
    word = {"underline": "underlined"}.get(look, look)
    return TaskDraft(
        instruction=f"In the open document, make the whole line '{doc.lines[goal]}' {word} and save it.",
        config=doc.config(),
        evaluator=doc.paragraphs_are(**{f"p{goal}": {"looks": [look]}}),
        oracle=[*select_line(goal), key("ctrl", letter), *SAVE],
        near_miss=[*select_line(goal), key("ctrl", other), *SAVE],
        exploits=[doc.txt_exploit(starred), doc.file_exploit(starred)],
    )


def writer_align(random: Random) -> TaskDraft:
    """Centre a line or put it to the right. The near miss takes the other way; an exploit moves it with spaces."""
    doc = random_document(random)
    goal = random.randrange(len(doc.lines))
    ways = [("Centre", "center", "e"), ("Align to the right", "end", "r")]
    (words, align, letter), (_, _, other) = random.sample(ways, 2)
    spaced = [" " * 40 + line if index == goal else line for index, line in enumerate(doc.lines)]
    return TaskDraft(
        instruction=f"{words} the line '{doc.lines[goal]}' in the open document and save it.",
        config=doc.config(),
        evaluator=doc.paragraphs_are(**{f"p{goal}": {"align": align}}),
        oracle=[*go_to_line(goal), key("ctrl", letter), *SAVE],
        near_miss=[*go_to_line(goal), key("ctrl", other), *SAVE],
        exploits=[doc.txt_exploit(spaced), doc.file_exploit(spaced)],
    )


def writer_replace(random: Random) -> TaskDraft:
    """Replace a word wherever it is. The near miss replaces the first only."""
    old, new, *others = sample_nouns(random, 8)
    lines = [f"{old} {random.choice(VERBS)} {other}" for other in others[:3]]
    lines += [f"{others[3]} {random.choice(VERBS)} {old}", f"{others[4]} {random.choice(VERBS)} {others[5]}"]
    random.shuffle(lines)
    doc = WriterDocument(random_path(random, "odt"), lines)
    done = WriterDocument(doc.path, [line.replace(old, new) for line in lines])
    first = next(index for index, line in enumerate(lines) if line.startswith(old))
    once = [line.replace(old, new) if index == first else line for index, line in enumerate(lines)]
    return TaskDraft(
        instruction=f"In the open document, replace every {old} by {new} and save it.",
        config=doc.config(),
        evaluator=done.paragraphs_are(),
        oracle=[*find_and_replace(old, new, "Replace All", confirmation_dialog=False), *SAVE],
        near_miss=[*go_to_line(first), key("ctrl", "shift", "right"), type_text(f"{new} "), *SAVE],
        exploits=[doc.txt_exploit(done.lines), doc.file_exploit(once)],
    )


def writer_table(random: Random) -> TaskDraft:
    """A table below the text. The near miss swaps its rows and columns; an exploit draws it with bars."""
    doc = random_document(random, max_items=4)
    columns, rows = random.sample(range(2, 7), 2)
    drawn = [*doc.lines, *(["|" + " |" * columns] * rows)]

    def play(wide: int, high: int) -> list[JsonDict]:
        size = type_text(f"\t{wide}\t{high}\n")
        return [key("ctrl", "end"), key("ctrl", "f12"), pause(1.5), size, pause(), *SAVE]

    evaluator = doc.paragraphs_are()
    evaluator["expected"]["rules"]["paragraphs"].append({"table": [rows, columns]})
    return TaskDraft(
        instruction=f"At the end of the open document, insert a table with {columns} columns and {rows} rows, and save it.",
        config=doc.config(),
        evaluator=evaluator,
        oracle=play(columns, rows),
        near_miss=play(rows, columns),
        exploits=[doc.txt_exploit(drawn), doc.file_exploit(drawn)],
    )


def writer_bullets(random: Random) -> TaskDraft:
    """Some lines as a list. The near miss leaves out the last of them or makes the other kind of list; an exploit writes hyphens."""
    doc = random_document(random, min_items=5)
    first = random.randint(0, 1)
    last = random.randint(first + 2, len(doc.lines) - 1)
    kinds: dict[str, tuple[str, ...]] = {"bulleted": ("shift", "f12"), "numbered": ("f12",)}
    kind = random.choice(tuple(kinds))
    wrong = next(one for one in kinds if one != kind)
    half = random.random() < 0.5
    hyphens = [f"- {line}" if first <= index <= last else line for index, line in enumerate(doc.lines)]

    def play(end: int, of: str) -> list[JsonDict]:
        mark = [*go_to_line(first), *repeat_key("shift", "down", times=end - first), key("shift", "end")]
        return [*mark, key(*kinds[of]), *SAVE]

    listed = {f"p{index}": {"list_kind": kind} for index in range(first, last + 1)}
    return TaskDraft(
        instruction=f"In the open document, turn the {ORDINALS[first]} to {ORDINALS[last]} line into a {kind} list and save it.",
        config=doc.config(),
        evaluator=doc.paragraphs_are(**listed),
        oracle=play(last, kind),
        near_miss=play(last - 1, kind) if half else play(last, wrong),
        exploits=[doc.txt_exploit(hyphens), doc.file_exploit(hyphens)],
    )


def writer_page_break(random: Random) -> TaskDraft:
    """A page break before a line. The near miss puts it before the next; an exploit fills up with empty lines."""
    doc = random_document(random, min_items=5)
    goal = random.randrange(1, len(doc.lines) - 1)
    padded = [*doc.lines[:goal], *[""] * 45, *doc.lines[goal:]]

    def play(index: int) -> list[JsonDict]:
        return [*go_to_line(index), key("ctrl", "enter"), *SAVE]

    evaluator = doc.paragraphs_are(**{f"p{goal}": {"page_break": True}})
    evaluator["expected"]["rules"]["skip_empty"] = True  # Writer leaves an empty line before the break
    return TaskDraft(
        instruction=f"In the open document, insert a page break so that the line '{doc.lines[goal]}' begins a new page, and save it.",
        config=doc.config(),
        evaluator=evaluator,
        oracle=play(goal),
        near_miss=play(goal + 1),
        exploits=[doc.txt_exploit(padded), doc.file_exploit(padded)],
    )


def writer_move_line(random: Random) -> TaskDraft:
    """Make a line the first. The near miss moves it up one place too few."""
    doc = random_document(random)
    goal = random.randrange(2, len(doc.lines))
    lines = [doc.lines[goal], *doc.lines[:goal], *doc.lines[goal + 1 :]]
    copied = [doc.lines[goal], *doc.lines]

    def play(times: int) -> list[JsonDict]:
        return [*go_to_line(goal), *repeat_key("ctrl", "alt", "up", times=times), *SAVE]

    return TaskDraft(
        instruction=f"In the open document, move the line '{doc.lines[goal]}' to the very top and save it.",
        config=doc.config(),
        evaluator=WriterDocument(doc.path, lines).paragraphs_are(),
        oracle=play(goal),
        near_miss=play(goal - 1),
        exploits=[doc.txt_exploit(lines), doc.file_exploit(copied)],
    )


APP = "libreoffice_writer"
FAMILIES = (
    Family("writer_heading", APP, "give a line a heading style", 15, writer_heading),
    Family("writer_emphasis", APP, "make a line bold, italic or underlined", 15, writer_emphasis),
    Family("writer_align", APP, "centre a line or put it to the right", 15, writer_align),
    Family("writer_replace", APP, "replace a word everywhere", 20, writer_replace),
    Family("writer_table", APP, "insert a table of a given size", 20, writer_table, held_out=True),
    Family("writer_bullets", APP, "turn lines into a list", 20, writer_bullets),
    Family("writer_page_break", APP, "begin a new page at a line", 15, writer_page_break),
    Family("writer_move_line", APP, "move a line to the top", 20, writer_move_line),
)
