"""Supervised training of models that point with an action head.

Role: `python -m dart_train.grounding --config FILE` trains on grounding samples in two stages: `head` trains the head and the embeddings of
its tokens on a frozen backbone, `all` trains everything, or adapters on the language model and the head. Rule: the package itself imports
no torch. Source: GUI-Actor, arXiv 2506.03143, section 4 and appendix B. Non-goals: reinforcement learning, making samples.

    config (settings) → batches (samples and their order) → losses → fit (the loop, checkpoints)
"""
