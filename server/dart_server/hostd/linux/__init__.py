"""System calls, control groups, namespaces and kernel limits, standard library only."""
