"""Trials: any policy on any tasks, many desktops at a time, resumable, with a report. `dart-envs eval` runs them.

Reading order: `policies` (who acts), `openai` (a model behind an endpoint), `run` (episodes and their records), `report` (tables,
intervals), `page` (HTML).
"""

from dart_envs.evaluation.page import Part, to_html
from dart_envs.evaluation.policies import Act, Policy, Seen, make_policy
from dart_envs.evaluation.report import Summary, summarise, to_text
from dart_envs.evaluation.run import Trial, read_trials, run_trials

__all__ = [
    "Act",
    "Part",
    "Policy",
    "Seen",
    "Summary",
    "Trial",
    "make_policy",
    "read_trials",
    "run_trials",
    "summarise",
    "to_html",
    "to_text",
]
