"""The escalation book: ways in which the farm server's uid, an ordinary user, tries to become root through DART.

Each attempt is a function with the mark `@attempt` in one of the modules below; its docstring says what it tries. It succeeds when root
leaves the proof, shows the secret, changes the victim, or leaves a program with root's rights; the test looks for these, not the attempt.
To add one, write a function. It runs as `python3 escalation_attempts.py NAME CONTEXT`, see `escalation_tools`.
"""

from __future__ import annotations

import sys

import escalation_attempts_by_others
import escalation_files
import escalation_inside
import escalation_processes
import escalation_requests
import escalation_starts_by_others
import escalation_sudo
from escalation_tools import ATTEMPTS, main

CHAPTERS = (
    escalation_sudo,
    escalation_requests,
    escalation_files,
    escalation_processes,
    escalation_inside,
    escalation_attempts_by_others,
    escalation_starts_by_others,
)
BOOK = ATTEMPTS
BY_OTHERS = frozenset(name for name, function in BOOK.items() if function.__module__.endswith("_by_others"))
"""By somebody who had read what the server's uid can reach, and none of the other attempts."""

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
