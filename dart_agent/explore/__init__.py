"""Autonomous exploration of applications: a graph of screens, and grounding samples about what was seen on the way.

    screens      which screen a desktop shows: application, tree shape, perceptual hash
    candidates   what can be done on a screen: from the accessibility tree, and from vision alone
    values       Q-values from stored experience: optimistic, shared between similar elements
    graph        screens and transitions in memory, with their Q-values and paths
    choosers     who chooses: chance, breadth first, the greatest Q
    model_chooser, drawing   the multimodal model chooses in context, with Q as incentive
    tables, store            the graph in SQL
    layouts                  tables of earlier versions, brought to today's
    explorer     the loop: choose, act, see, store, return; several desktops at once
    desktops     what can be explored: leased desktops, and simulated applications for tests and benchmarks
    queries      transitions as grounding samples, written by rules or by the model
    page         screens, edges and coverage as a web page
    settings, options, commands   `dart-agent explore`

Source: GUI-Bee, arXiv 2501.13896, whose method Q-ICRL this follows; it has published neither formulas nor code, so that those here are
DART's own. Rule: only `tables` and `store` import SQLAlchemy (extra `explore`). Non-goals: training on the samples
(`dart_train.grounding`).
"""
