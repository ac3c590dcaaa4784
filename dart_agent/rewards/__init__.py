"""Where the reward of an episode comes from, behind one interface. Import what you need from the modules.

source        `RewardSource`: what every source does; what it is given, and what it answers
evaluator     the task's evaluator; the same with partial credit for checkpoints
program       a program of the user
judge         a model that looks at screenshots, for tasks without an evaluator
control       whether a source fails on one episode, or on every one
settings      which source judges training, and which one evaluations
open          the sources of a rollout worker
"""
