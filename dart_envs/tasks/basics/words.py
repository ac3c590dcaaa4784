"""The words of the bundled suite: few, short, and easy to tell apart.

Role: the vocabulary that labels, rows, files and texts are drawn from. Rule: fixed; changing it changes every task.
"""

from __future__ import annotations

from random import Random

NOUNS = (
    "Apple",
    "Bread",
    "Chair",
    "Drum",
    "Eagle",
    "Fork",
    "Grape",
    "Honey",
    "Igloo",
    "Jacket",
    "Kite",
    "Lemon",
    "Moon",
    "Nut",
    "Olive",
    "Piano",
    "Quilt",
    "River",
    "Sun",
    "Tiger",
    "Violin",
    "Wolf",
    "Yarn",
    "Zebra",
)

VERBS = ("likes", "needs", "sees", "finds", "keeps", "wants")


def sample_nouns(random: Random, count: int) -> list[str]:
    """`count` different nouns in random order."""
    return random.sample(NOUNS, count)


def random_sentences(random: Random, count: int) -> list[str]:
    """`count` different sentences."""
    found: list[str] = []
    while len(found) < count:
        sentence = random_sentence(random)
        if sentence not in found:
            found.append(sentence)
    return found


def random_sentence(random: Random) -> str:
    """Three words, as in `Tiger needs Bread`."""
    subject, thing = sample_nouns(random, 2)
    return f"{subject} {random.choice(VERBS)} {thing}"
