"""Virtual time: a whole run is simulated with the decisions of production, to find bottlenecks before GPUs and desktops are paid for.

`models` describes desktops, engines, trainer and publishing by latencies; `system` drives `dart_train.scheduling`,
`dart_agent.inference.decisions` and `dart_train.curation.staleness` from an event heap; `planning` names the bottleneck, the cost and a
split.
"""
