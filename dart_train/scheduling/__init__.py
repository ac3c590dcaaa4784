"""Decisions of the data manager as a pure function: which rollout runs where, when a group closes, when a batch is formed.

`decide(state, event)` changes a `SchedulerState` and returns commands. There is no I/O and no clock: events carry their time. The data
manager executes the commands in one database transaction per event and rebuilds the state from the database at its start; a simulation
drives the same function from an event heap:

    state = SchedulerState(SchedulerSettings(), new_id)
    decide(state, PhaseStarted(0.0, PhasePlan("train", Purpose.TRAIN, task_ids, rollouts_per_task=8, max_steps=30, endless=True)))
    decide(state, WorkAsked(0.0, "worker-0", "request-1", desktops=80, wait=True))   # -> [OpenGroup(...), AssignRollout(...)]
    decide(state, RolloutEnded(61.0, rollout_id, reward=1.0, steps=12, version_min=0, version_max=1))
    decide(state, BatchAsked(300.0, trainer_version=1))                              # -> [IssueBatch(...)]
    decide(state, BatchDone(360.0, version=2))
    decide(state, PolicyPublished(360.5, version=2))

A free desktop asks once with `wait=True`; the `AssignRollout` that answers it may come out of any later event. `StopRollout` asks a worker
to stop at its next step, and to answer with `RolloutParked` (or with `RolloutAbandoned` where `keep` is false, or with `RolloutEnded` if
the episode ended first).
"""
