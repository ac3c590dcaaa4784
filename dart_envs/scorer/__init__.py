"""OSWorld's own evaluators, in an environment and processes of their own.

Role: `dart-envs scorer install` makes the environment (`install`), `workers` run its processes, `osworld` judges a desktop with them, and
`dart_envs.evaluators.scorer_choice` says which scorer serves a task. Rule: nothing of that environment is imported here; its pins and
licences stay out of ours; its processes get no secret. Non-goals: our own light metrics (`dart_envs.evaluators`).
"""
