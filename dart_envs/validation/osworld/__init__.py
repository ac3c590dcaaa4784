"""Proof that OSWorld's tasks which need no network can be set up, judged and solved on our image `desktop`.

Role: our own solutions by task id (`oracles`, a module per application), playing them under the osworld scorer (`prove`), the record
and the table (`records`), the command (`command`). Rule: OSWorld's task files are the user's own and never copied here; a solution does
what the instruction asks, as a person could with mouse, keyboard and shell, and knows nothing of the evaluator. Non-goals: tasks that need
files or the internet.
"""
