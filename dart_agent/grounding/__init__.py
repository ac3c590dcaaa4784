"""Coordinate-free grounding: from "click the element that ..." and a screenshot to a pixel, without coordinates in the text.

    samples    what is asked and what is right: the one type of a grounding sample
    labels     which visual tokens a target covers
    regions    from an attention map over visual tokens to candidate points
    scoring    whether a point is right; hit rates, micro and macro
    head       the action head: attention of a pointer token over visual tokens
    model      a backbone with the head; GUI-Actor's published layout
    packing    images with their questions as tensors
    answers    the text of answers, with pointer tokens
    forward    the forward pass of backbone and head
    pointing   the distribution over points, its samples and log-probs
    grounder   ask a model where something is
    verifier   a model that judges whether a marked point is right
    zoom       a second look at the crop around the first answer
    drawing    pictures of answers
    evaluation, commands    hit rates; `dart-agent ground`

Rule: the package itself, `samples`, `labels`, `regions`, `scoring`, `verifier` and `datasets` import neither torch nor transformers.
Source: GUI-Actor, arXiv 2506.03143. Non-goals: training (`dart_train.grounding`).
"""
