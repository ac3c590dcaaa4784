#!/usr/bin/env python3
"""Refuse retired terms: identifiers that have a standard name now, and phrases of the former private vocabulary.

`make lint` runs this script. Identifiers are looked up in the names of Python files (never in their strings or comments), phrases in
Markdown, docstrings, comments and strings. Ordinary English words are not on the lists. `docs/glossary.md` defines the terms. The changelog
and the engineering log tell history, so they are not read. Exit code 1: at least one retired term, one line each.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IDENTIFIERS = {
    "Border": "FarmMiddleware",
    "Together": "BulkStatement",
    "Serving": "ClaimQueue",
    "Turns": "FairQueue",
    "Making": "SlotLifecycle",
    "Want": "DesktopTarget",
    "Begun": "Permit",
    "Brought": "RestoreResult",
    "Living": "LiveDesktops",
    "Owned": "Inventory",
    "KeepsBroken": "SupportsQuarantine",
    "fence": "fencing_token",
    "ledger": "database",
    "ledger_away": "database_unavailable",
    "LedgerAway": "DatabaseUnavailableError",
    "judge_on": "evaluate_on",
    "JudgeOn": "EvaluateOn",
    "Spoiled": "InvalidArtifact",
    "HeldLease": "LeaseBase",
    "AsyncFarm": "AsyncFarmClient",
    "Gesture": "DecodedAction",
    "cheats": "exploits",
    "ProofBook": "ValidationRecords",
    "Unparsed": "OnParseError",
    "RunStory": "RunReport",
    "FaultWatch": "MaskedEpisodeGuard",
    "mend_torch_extras": "patch_torch_extras",
    "know_old_names": "register_legacy_processors",
    "claim_setup": "acquire_setup",
    "claim_lease": "create_lease",
    "PersonInput": "HumanInput",
    "SetupClaim": "SetupAcquireRequest",
    "success_pool": "experience_pool",
    "cure": "fix",
    "CURE": "FIX",
}
PHRASES = {
    r"\bthe ledger('s)?\b": "the database",
    r"\bset-up\b": "setup",
    r"\bthe cure\b": "the fix",
    r"\bthe fence\b": "the fencing token",
    r"\bthe farm's door\b": "the ingress",
    r"\bHTTP border\b": "the middleware",
    r"\bofficial scorer\b": "the osworld scorer",
    r"\bcarriers of\b": "data types of",
    r"\bnobody, a die\b": "noop, random",
    r"\bfree masks?\b": "unearned masks",
}
NOT_READ = ("CHANGELOG.md", "docs/engineering-log/", "benchmarks/results/", ".ci/check_terms.py", "CONTRIBUTING.md")
MIGRATIONS = re.compile(r"migrations/versions/")


def tracked() -> list[str]:
    """Return the paths that git tracks and this script reads."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py", "*.md"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    names = [name for name in listing.stdout.split("\0") if name and (ROOT / name).exists()]
    return [name for name in names if not name.startswith(NOT_READ) and not MIGRATIONS.search(name)]


def in_identifiers(text: str) -> list[tuple[int, str, str]]:
    """Return (line, term, replacement) of every retired identifier in Python code."""
    return [
        (token.start[0], token.string, IDENTIFIERS[token.string])
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.NAME and token.string in IDENTIFIERS
    ]


def in_prose(text: str) -> list[tuple[int, str, str]]:
    """Return (line, phrase, replacement) of every retired phrase."""
    return [
        (number, found.group(), replacement)
        for number, line in enumerate(text.splitlines(), start=1)
        for pattern, replacement in PHRASES.items()
        if (found := re.search(pattern, line))
    ]


def main() -> int:
    """Print what was found; return the exit code."""
    problems = []
    for name in tracked():
        text = (ROOT / name).read_text(encoding="utf-8")
        found = [*(in_identifiers(text) if name.endswith(".py") else ()), *in_prose(text)]
        problems += [f"{name}:{line}: retired term {term!r}: use {replacement!r}" for line, term, replacement in found]
    print("\n".join(problems) if problems else "no retired terms")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
