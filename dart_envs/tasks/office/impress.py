"""LibreOffice Impress: families about slides and what is on them.

Role: the saved presentation's slides, in order, with their texts, are the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from dart_envs.tasks.basics.parts import JsonDict, key, pause, type_text
from dart_envs.tasks.basics.words import sample_nouns
from dart_envs.tasks.office.documents import presentation
from dart_envs.tasks.office.parts import (
    SAVE,
    choose_menu_entry,
    open_document,
    overwrite_with_document,
    overwrite_with_text,
    random_path,
    repeat_key,
    saved_file_is,
)
from dart_envs.tasks.suite import Family, TaskDraft

CHECK = "check_slides"
Slides = Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Presentation:
    """A presentation: slides with a title and lines."""

    path: str
    slides: list[tuple[str, list[str]]]

    def config(self) -> list[JsonDict]:
        """The presentation, open in Impress at its first slide."""
        return open_document(self.path, presentation(self.slides))

    def txt_exploit(self, slides: Slides) -> list[JsonDict]:
        """A program writes the texts where the presentation is."""
        return overwrite_with_text(self.path, "\n\n".join("\n".join([title, *lines]) for title, lines in slides))

    def file_exploit(self, slides: Slides) -> list[JsonDict]:
        """A program puts a presentation with these slides there."""
        return overwrite_with_document(self.path, presentation(slides))


def random_presentation(random: Random, *, min_items: int = 3, max_items: int = 5) -> Presentation:
    """A drawn presentation; no word twice among the titles."""
    count = random.randint(min_items, max_items)
    titles = sample_nouns(random, count)
    return Presentation(
        random_path(random, "odp"),
        [(title, [" ".join(sample_nouns(random, 3)), " ".join(sample_nouns(random, 2))]) for title in titles],
    )


def slides_are(path: str, slides: Slides, **changes: Any) -> JsonDict:
    """Evaluator: exactly these slides, but for `changes` by index (`s2`: what is to hold of slide 2, from 0)."""
    rules = [
        {"title": title, "lines": list(lines), "hidden": False} | changes.get(f"s{index}", {})
        for index, (title, lines) in enumerate(slides)
    ]
    return saved_file_is(path, CHECK, slides=rules)


def go_to_slide(index: int) -> list[JsonDict]:
    """Show a slide, from the first."""
    return repeat_key("pagedown", times=index)


def type_title(title: str) -> list[JsonDict]:
    """Type over the title of the slide that is shown."""
    return [key("tab"), key("f2"), pause(), key("ctrl", "a"), type_text(title), key("escape"), key("escape")]


def unused_word(random: Random, deck: Presentation) -> str:
    """A word that is no title."""
    return next(word for word in sample_nouns(random, 10) if word not in [title for title, _ in deck.slides])


def impress_title(random: Random) -> TaskDraft:
    """Change a slide's title. The near miss changes another's."""
    deck = random_presentation(random)
    goal, wrong = random.sample(range(len(deck.slides)), 2)
    new = " ".join([unused_word(random, deck), random.choice(("plan", "news", "facts", "ideas"))])
    done = [(new if index == goal else title, lines) for index, (title, lines) in enumerate(deck.slides)]
    return TaskDraft(
        instruction=f"In the open presentation, change the title of the slide {deck.slides[goal][0]} to '{new}' and save it.",
        config=deck.config(),
        evaluator=slides_are(deck.path, done),
        oracle=[*go_to_slide(goal), *type_title(new), *SAVE],
        near_miss=[*go_to_slide(wrong), *type_title(new), *SAVE],
        exploits=[deck.txt_exploit(done), deck.file_exploit(done[goal : goal + 1])],
    )


def impress_delete_slide(random: Random) -> TaskDraft:
    """Delete a slide. The near miss deletes another; an exploit empties it."""
    deck = random_presentation(random)
    goal, wrong = random.sample(range(len(deck.slides)), 2)
    done = [slide for index, slide in enumerate(deck.slides) if index != goal]
    emptied = [("", []) if index == goal else slide for index, slide in enumerate(deck.slides)]
    delete = choose_menu_entry("Slide", "Delete Slide")
    return TaskDraft(
        instruction=f"Delete the slide {deck.slides[goal][0]} from the open presentation and save it.",
        config=deck.config(),
        evaluator=slides_are(deck.path, done),
        oracle=[*go_to_slide(goal), *delete, *SAVE],
        near_miss=[*go_to_slide(wrong), *delete, *SAVE],
        exploits=[deck.txt_exploit(done), deck.file_exploit(emptied)],
    )


def impress_hide_slide(random: Random) -> TaskDraft:
    """Leave a slide out of the show. The near miss deletes it."""
    deck = random_presentation(random)
    goal = random.randrange(len(deck.slides))
    gone = [slide for index, slide in enumerate(deck.slides) if index != goal]
    said = [
        (f"(hidden) {title}" if index == goal else title, lines) for index, (title, lines) in enumerate(deck.slides)
    ]
    return TaskDraft(
        instruction=f"Hide the slide {deck.slides[goal][0]} of the open presentation, without deleting it, and save it.",
        config=deck.config(),
        evaluator=slides_are(deck.path, deck.slides, **{f"s{goal}": {"hidden": True}}),
        oracle=[*go_to_slide(goal), *choose_menu_entry("Slide", "Hide Slide"), *SAVE],
        near_miss=[*go_to_slide(goal), *choose_menu_entry("Slide", "Delete Slide"), *SAVE],
        exploits=[deck.txt_exploit(gone), deck.file_exploit(said)],
    )


def impress_duplicate(random: Random) -> TaskDraft:
    """Duplicate a slide. The near miss does it to another."""
    deck = random_presentation(random, max_items=4)
    goal, wrong = random.sample(range(len(deck.slides)), 2)
    done = [*deck.slides[: goal + 1], *deck.slides[goal:]]
    empty = [*deck.slides[: goal + 1], ("", []), *deck.slides[goal + 1 :]]
    copy = choose_menu_entry("Slide", "Duplicate Slide")
    return TaskDraft(
        instruction=f"Duplicate the slide {deck.slides[goal][0]} of the open presentation, so that the copy comes right after it,"
        " and save it.",
        config=deck.config(),
        evaluator=slides_are(deck.path, done),
        oracle=[*go_to_slide(goal), *copy, pause(), *SAVE],
        near_miss=[*go_to_slide(wrong), *copy, pause(), *SAVE],
        exploits=[deck.txt_exploit(done), deck.file_exploit(empty)],
    )


def impress_last_line(random: Random) -> TaskDraft:
    """Add a line to a slide. The near miss adds it to another slide."""
    deck = random_presentation(random)
    goal, wrong = random.sample(range(len(deck.slides)), 2)
    said = " ".join(sample_nouns(random, 3))
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
    return TaskDraft(
        instruction=f"In the open presentation, add the line '{said}' below the text of the slide {deck.slides[goal][0]} and save it.",
        config=deck.config(),
        evaluator=slides_are(deck.path, done),
        oracle=[*go_to_slide(goal), *write, *SAVE],
        near_miss=[*go_to_slide(wrong), *write, *SAVE],
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
