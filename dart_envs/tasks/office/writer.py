"""LibreOffice Writer: families about text, styles, formats and structure.

Role: what the saved document holds, paragraph by paragraph, is the verdict. Rule: everything that was not to change is judged too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from dart_envs.tasks.basics.parts import Data, key, pause, type_text
from dart_envs.tasks.basics.words import VERBS, pick, sentence
from dart_envs.tasks.office.documents import text
from dart_envs.tasks.office.parts import SAVE, named, opened, repeated, replaced, saved, shell_file, shell_text
from dart_envs.tasks.suite import Draft, Family

CHECK = "check_text_document"
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """A document of short paragraphs, each one line."""

    path: str
    lines: list[str]

    def config(self) -> list[Data]:
        """The document, open in Writer."""
        return opened(self.path, text(self.lines))

    def judged(self, **changes: Any) -> Data:
        """Evaluator: the lines as they were, each plain, but for `changes` by index (`p2`: what is to hold of line 2)."""
        plain = {"looks": [], "listed": False, "style": "Standard", "page_break": False}
        rules = [{"text": line, **plain} | changes.get(f"p{index}", {}) for index, line in enumerate(self.lines)]
        return saved(self.path, CHECK, paragraphs=rules)

    def txt_exploit(self, lines: Sequence[str]) -> list[Data]:
        """A program writes the lines as plain text where the document is."""
        return shell_text(self.path, "\n".join(lines) + "\n")

    def file_exploit(self, lines: Sequence[str]) -> list[Data]:
        """A program puts a document with these lines there."""
        return shell_file(self.path, text(lines))


def page(random: Random, *, least: int = 4, most: int = 6) -> DocumentPage:
    """A drawn document; no line twice."""
    lines: list[str] = []
    count = random.randint(least, most)
    while len(lines) < count:
        line = f"{sentence(random)} {random.choice(('today', 'again', 'at noon', 'in May', 'by night'))}"
        if line not in lines:
            lines.append(line)
    return DocumentPage(named(random, "odt"), lines)


def two(random: Random, count: int) -> tuple[int, int]:
    """Indices of a line and of another one."""
    first, second = random.sample(range(count), 2)
    return first, second


def to_line(index: int) -> list[Data]:
    """Put the caret at the start of a line."""
    return [key("ctrl", "home"), *repeated("down", times=index)]


def marked(index: int) -> list[Data]:
    """Select a line."""
    return [*to_line(index), key("shift", "end")]


def writer_heading(random: Random) -> Draft:
    """Make a line a heading. The near miss does it to another line; a exploit writes Markdown."""
    doc = page(random)
    goal, wrong = two(random, len(doc.lines))
    level = random.choice((1, 2, 3))
    hashed = [f"{'#' * level} {line}" if index == goal else line for index, line in enumerate(doc.lines)]

    def play(index: int) -> list[Data]:
        return [*to_line(index), key("ctrl", str(level)), *SAVE]

    return Draft(
        instruction=f"In the open document, give the line '{doc.lines[goal]}' the style Heading {level} and save it.",
        config=doc.config(),
        evaluator=doc.judged(**{f"p{goal}": {"style": f"Heading {level}", "looks": ["bold"]}}),
        oracle=play(goal),
        near_miss=play(wrong),
        exploits=[doc.txt_exploit(hashed), doc.file_exploit(hashed)],
    )


def writer_emphasis(random: Random) -> Draft:
    """Make a line bold, italic or underlined. The near miss does another of these to it; a exploit uses asterisks."""
    doc = page(random)
    goal = random.randrange(len(doc.lines))
    (look, letter), (_, other) = random.sample([("bold", "b"), ("italic", "i"), ("underline", "u")], 2)
    starred = [f"*{line}*" if index == goal else line for index, line in enumerate(doc.lines)]
    word = {"underline": "underlined"}.get(look, look)
    return Draft(
        instruction=f"In the open document, make the whole line '{doc.lines[goal]}' {word} and save it.",
        config=doc.config(),
        evaluator=doc.judged(**{f"p{goal}": {"looks": [look]}}),
        oracle=[*marked(goal), key("ctrl", letter), *SAVE],
        near_miss=[*marked(goal), key("ctrl", other), *SAVE],
        exploits=[doc.txt_exploit(starred), doc.file_exploit(starred)],
    )


def writer_align(random: Random) -> Draft:
    """Centre a line or put it to the right. The near miss takes the other way; a exploit moves it with spaces."""
    doc = page(random)
    goal = random.randrange(len(doc.lines))
    ways = [("Centre", "center", "e"), ("Align to the right", "end", "r")]
    (words, align, letter), (_, _, other) = random.sample(ways, 2)
    spaced = [" " * 40 + line if index == goal else line for index, line in enumerate(doc.lines)]
    return Draft(
        instruction=f"{words} the line '{doc.lines[goal]}' in the open document and save it.",
        config=doc.config(),
        evaluator=doc.judged(**{f"p{goal}": {"align": align}}),
        oracle=[*to_line(goal), key("ctrl", letter), *SAVE],
        near_miss=[*to_line(goal), key("ctrl", other), *SAVE],
        exploits=[doc.txt_exploit(spaced), doc.file_exploit(spaced)],
    )


def writer_replace(random: Random) -> Draft:
    """Replace a word wherever it is. The near miss replaces the first only."""
    old, new, *others = pick(random, 8)
    lines = [f"{old} {random.choice(VERBS)} {other}" for other in others[:3]]
    lines += [f"{others[3]} {random.choice(VERBS)} {old}", f"{others[4]} {random.choice(VERBS)} {others[5]}"]
    random.shuffle(lines)
    doc = DocumentPage(named(random, "odt"), lines)
    done = DocumentPage(doc.path, [line.replace(old, new) for line in lines])
    first = next(index for index, line in enumerate(lines) if line.startswith(old))
    once = [line.replace(old, new) if index == first else line for index, line in enumerate(lines)]
    return Draft(
        instruction=f"In the open document, replace every {old} by {new} and save it.",
        config=doc.config(),
        evaluator=done.judged(),
        oracle=[*replaced(old, new, "Replace All", told_in_box=False), *SAVE],
        near_miss=[*to_line(first), key("ctrl", "shift", "right"), type_text(f"{new} "), *SAVE],
        exploits=[doc.txt_exploit(done.lines), doc.file_exploit(once)],
    )


def writer_table(random: Random) -> Draft:
    """A table below the text. The near miss swaps its rows and columns; a exploit draws it with bars."""
    doc = page(random, most=4)
    columns, rows = random.sample(range(2, 7), 2)
    drawn = [*doc.lines, *(["|" + " |" * columns] * rows)]

    def play(wide: int, high: int) -> list[Data]:
        size = type_text(f"\t{wide}\t{high}\n")
        return [key("ctrl", "end"), key("ctrl", "f12"), pause(1.5), size, pause(), *SAVE]

    evaluator = doc.judged()
    evaluator["expected"]["rules"]["paragraphs"].append({"table": [rows, columns]})
    return Draft(
        instruction=f"At the end of the open document, insert a table with {columns} columns and {rows} rows, and save it.",
        config=doc.config(),
        evaluator=evaluator,
        oracle=play(columns, rows),
        near_miss=play(rows, columns),
        exploits=[doc.txt_exploit(drawn), doc.file_exploit(drawn)],
    )


def writer_bullets(random: Random) -> Draft:
    """Some lines as a list. The near miss leaves out the last of them; a exploit writes hyphens."""
    doc = page(random, least=5)
    first = random.randint(0, 1)
    last = random.randint(first + 2, len(doc.lines) - 1)
    kind, keys = random.choice((("bulleted", ("shift", "f12")), ("numbered", ("f12",))))
    hyphens = [f"- {line}" if first <= index <= last else line for index, line in enumerate(doc.lines)]

    def play(end: int) -> list[Data]:
        mark = [*to_line(first), *repeated("shift", "down", times=end - first), key("shift", "end")]
        return [*mark, key(*keys), *SAVE]

    listed = {f"p{index}": {"listed": True} for index in range(first, last + 1)}
    return Draft(
        instruction=f"In the open document, turn the {ORDINALS[first]} to {ORDINALS[last]} line into a {kind} list and save it.",
        config=doc.config(),
        evaluator=doc.judged(**listed),
        oracle=play(last),
        near_miss=play(last - 1),
        exploits=[doc.txt_exploit(hyphens), doc.file_exploit(hyphens)],
    )


def writer_page_break(random: Random) -> Draft:
    """A page break before a line. The near miss puts it before the next; a exploit fills up with empty lines."""
    doc = page(random, least=5)
    goal = random.randrange(1, len(doc.lines) - 1)
    padded = [*doc.lines[:goal], *[""] * 45, *doc.lines[goal:]]

    def play(index: int) -> list[Data]:
        return [*to_line(index), key("ctrl", "enter"), *SAVE]

    evaluator = doc.judged(**{f"p{goal}": {"page_break": True}})
    evaluator["expected"]["rules"]["skip_empty"] = True  # Writer leaves an empty line before the break
    return Draft(
        instruction=f"In the open document, insert a page break so that the line '{doc.lines[goal]}' begins a new page, and save it.",
        config=doc.config(),
        evaluator=evaluator,
        oracle=play(goal),
        near_miss=play(goal + 1),
        exploits=[doc.txt_exploit(padded), doc.file_exploit(padded)],
    )


def writer_move_line(random: Random) -> Draft:
    """Make a line the first. The near miss moves it up one place too few."""
    doc = page(random)
    goal = random.randrange(2, len(doc.lines))
    lines = [doc.lines[goal], *doc.lines[:goal], *doc.lines[goal + 1 :]]
    copied = [doc.lines[goal], *doc.lines]

    def play(times: int) -> list[Data]:
        return [*to_line(goal), *repeated("ctrl", "alt", "up", times=times), *SAVE]

    return Draft(
        instruction=f"In the open document, move the line '{doc.lines[goal]}' to the very top and save it.",
        config=doc.config(),
        evaluator=DocumentPage(doc.path, lines).judged(),
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
