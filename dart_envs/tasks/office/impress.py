"""LibreOffice Impress: families about slides and what is on them.

Role: the saved presentation's slides, in order, with their texts, are the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from dart_envs.tasks.basics.parts import Data, key, pause, type_text
from dart_envs.tasks.basics.words import pick
from dart_envs.tasks.office.documents import presentation
from dart_envs.tasks.office.parts import SAVE, menu, named, opened, repeated, saved, shell_file, shell_text
from dart_envs.tasks.suite import Draft, Family

CHECK = "check_slides"
Slides = Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Show:
    """A presentation: slides with a title and lines."""

    path: str
    slides: list[tuple[str, list[str]]]

    def config(self) -> list[Data]:
        """The presentation, open in Impress at its first slide."""
        return opened(self.path, presentation(self.slides))

    def txt_exploit(self, slides: Slides) -> list[Data]:
        """A program writes the texts where the presentation is."""
        return shell_text(self.path, "\n\n".join("\n".join([title, *lines]) for title, lines in slides))

    def file_exploit(self, slides: Slides) -> list[Data]:
        """A program puts a presentation with these slides there."""
        return shell_file(self.path, presentation(slides))


def show(random: Random, *, least: int = 3, most: int = 5) -> Show:
    """A drawn presentation; no word twice among the titles."""
    count = random.randint(least, most)
    titles = pick(random, count)
    return Show(
        named(random, "odp"), [(title, [" ".join(pick(random, 3)), " ".join(pick(random, 2))]) for title in titles]
    )


def judged(path: str, slides: Slides, **changes: Any) -> Data:
    """Evaluator: exactly these slides, but for `changes` by index (`s2`: what is to hold of slide 2, from 0)."""
    rules = [
        {"title": title, "lines": list(lines), "hidden": False} | changes.get(f"s{index}", {})
        for index, (title, lines) in enumerate(slides)
    ]
    return saved(path, CHECK, slides=rules)


def to_slide(index: int) -> list[Data]:
    """Show a slide, from the first."""
    return repeated("pagedown", times=index)


def retitled(title: str) -> list[Data]:
    """Type over the title of the slide that is shown."""
    return [key("tab"), key("f2"), pause(), key("ctrl", "a"), type_text(title), key("escape"), key("escape")]


def others(random: Random, deck: Show) -> str:
    """A word that is no title."""
    return next(word for word in pick(random, 10) if word not in [title for title, _ in deck.slides])


def impress_title(random: Random) -> Draft:
    """Change a slide's title. The near miss changes another's."""
    deck = show(random)
    goal, wrong = random.sample(range(len(deck.slides)), 2)
    new = " ".join([others(random, deck), random.choice(("plan", "news", "facts", "ideas"))])
    done = [(new if index == goal else title, lines) for index, (title, lines) in enumerate(deck.slides)]
    return Draft(
        instruction=f"In the open presentation, change the title of the slide {deck.slides[goal][0]} to '{new}' and save it.",
        config=deck.config(),
        evaluator=judged(deck.path, done),
        oracle=[*to_slide(goal), *retitled(new), *SAVE],
        near_miss=[*to_slide(wrong), *retitled(new), *SAVE],
        exploits=[deck.txt_exploit(done), deck.file_exploit(done[goal : goal + 1])],
    )


def impress_delete_slide(random: Random) -> Draft:
    """Delete a slide. The near miss deletes another; a exploit empties it."""
    deck = show(random)
    goal, wrong = random.sample(range(len(deck.slides)), 2)
    done = [slide for index, slide in enumerate(deck.slides) if index != goal]
    emptied = [("", []) if index == goal else slide for index, slide in enumerate(deck.slides)]
    delete = menu("Slide", "Delete Slide")
    return Draft(
        instruction=f"Delete the slide {deck.slides[goal][0]} from the open presentation and save it.",
        config=deck.config(),
        evaluator=judged(deck.path, done),
        oracle=[*to_slide(goal), *delete, *SAVE],
        near_miss=[*to_slide(wrong), *delete, *SAVE],
        exploits=[deck.txt_exploit(done), deck.file_exploit(emptied)],
    )


def impress_hide_slide(random: Random) -> Draft:
    """Leave a slide out of the show. The near miss deletes it."""
    deck = show(random)
    goal = random.randrange(len(deck.slides))
    gone = [slide for index, slide in enumerate(deck.slides) if index != goal]
    said = [
        (f"(hidden) {title}" if index == goal else title, lines) for index, (title, lines) in enumerate(deck.slides)
    ]
    return Draft(
        instruction=f"Hide the slide {deck.slides[goal][0]} of the open presentation, without deleting it, and save it.",
        config=deck.config(),
        evaluator=judged(deck.path, deck.slides, **{f"s{goal}": {"hidden": True}}),
        oracle=[*to_slide(goal), *menu("Slide", "Hide Slide"), *SAVE],
        near_miss=[*to_slide(goal), *menu("Slide", "Delete Slide"), *SAVE],
        exploits=[deck.txt_exploit(gone), deck.file_exploit(said)],
    )


def impress_duplicate(random: Random) -> Draft:
    """Duplicate a slide. The near miss does it to another."""
    deck = show(random, most=4)
    goal, wrong = random.sample(range(len(deck.slides)), 2)
    done = [*deck.slides[: goal + 1], *deck.slides[goal:]]
    empty = [*deck.slides[: goal + 1], ("", []), *deck.slides[goal + 1 :]]
    copy = menu("Slide", "Duplicate Slide")
    return Draft(
        instruction=f"Duplicate the slide {deck.slides[goal][0]} of the open presentation, so that the copy comes right after it,"
        " and save it.",
        config=deck.config(),
        evaluator=judged(deck.path, done),
        oracle=[*to_slide(goal), *copy, pause(), *SAVE],
        near_miss=[*to_slide(wrong), *copy, pause(), *SAVE],
        exploits=[deck.txt_exploit(done), deck.file_exploit(empty)],
    )


def impress_last_line(random: Random) -> Draft:
    """Add a line to a slide. The near miss adds it to another slide."""
    deck = show(random)
    goal, wrong = random.sample(range(len(deck.slides)), 2)
    said = " ".join(pick(random, 3))
    done = [(title, [*lines, said] if index == goal else lines) for index, (title, lines) in enumerate(deck.slides)]
    joined = [
        (title, [*lines[:-1], f"{lines[-1]} {said}"] if index == goal else lines)
        for index, (title, lines) in enumerate(deck.slides)
    ]
    write = [
        key("tab"),
        key("tab"),
        key("f2"),
        key("ctrl", "end"),
        type_text(f"\n{said}"),
        key("escape"),
        key("escape"),
    ]
    return Draft(
        instruction=f"In the open presentation, add the line '{said}' below the text of the slide {deck.slides[goal][0]} and save it.",
        config=deck.config(),
        evaluator=judged(deck.path, done),
        oracle=[*to_slide(goal), *write, *SAVE],
        near_miss=[*to_slide(wrong), *write, *SAVE],
        exploits=[deck.txt_exploit(done), deck.file_exploit(joined)],
    )


APP = "libreoffice_impress"
FAMILIES = (
    Family("impress_title", APP, "change the title of a slide", 20, impress_title),
    Family("impress_last_line", APP, "add a line to a slide", 20, impress_last_line),
    Family("impress_delete_slide", APP, "delete a slide", 15, impress_delete_slide),
    Family("impress_hide_slide", APP, "hide a slide", 15, impress_hide_slide),
    Family("impress_duplicate", APP, "duplicate a slide", 15, impress_duplicate, held_out=True),
)
