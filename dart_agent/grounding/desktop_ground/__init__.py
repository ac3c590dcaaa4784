"""desktop-ground: a grounding benchmark made from live desktops, with answers that the accessibility tree gives.

    screen          a captured screen: pixels, elements, windows; reading the accessibility tree
    visibility      which elements can be seen whole, in part, or not at all
    wording         how people call elements: kinds, names, labels, what a button does
    places          neighbours, order, colours
    queries         questions to which exactly one element of the screen is the answer
    benchmark       screens to samples: choice, splits, novel applications
    applications    which applications an image has, and how they are opened
    capture         one screen of a live desktop
    walk            the states of applications, one after the other
    kept_screens    screens of finished applications on disk, so that a second call goes on
    recording       the screens of all applications of an image
    generate        the whole benchmark: desktops, files, manifest

Rule: `screen` to `benchmark` are pure functions of what was captured and of a seed; `capture` to `generate` need a farm. Non-goals:
training (`dart_train.grounding`).
"""
