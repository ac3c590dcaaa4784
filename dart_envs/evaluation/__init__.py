"""Episodes: any policy on any tasks, many desktops at a time, resumable, with a report. `dart-envs eval` runs them.

Reading order: `policies` (who acts), `openai` (a model behind an endpoint), `run` (episodes and their records), `trajectories` (a folder
per episode), `report` (tables, intervals), `page` (HTML).
"""

from dart_envs.evaluation.page import BudgetReport, to_html
from dart_envs.evaluation.policies import EpisodePolicy, EpisodePolicyFactory, PolicyInput, make_policy
from dart_envs.evaluation.report import EvaluationSummary, summarise, to_text
from dart_envs.evaluation.run import EvaluationEpisode, read_episodes, run_episodes

__all__ = [
    "BudgetReport",
    "EpisodePolicy",
    "EpisodePolicyFactory",
    "EvaluationEpisode",
    "EvaluationSummary",
    "PolicyInput",
    "make_policy",
    "read_episodes",
    "run_episodes",
    "summarise",
    "to_html",
    "to_text",
]
