"""What runs in the osworld scorer's own environment, never in ours.

Role: a program that serves evaluations over two pipes. Rule: nothing here imports another package of ours, and nothing of ours imports this
one; the parent runs the folder as a program. Non-goals: choosing who scores (`dart_envs.evaluators.scorer_choice`).
"""
