"""The dashboard: the farm as a web page. See the desktops, watch one live, take over its mouse and keyboard, replay its last steps.

    sessions   who is logged in              camera    pictures of leased desktops, shared by all who look
    control    whose hands are on a desktop  rfb tiles keysyms   the protocol of the live view
    live       one live view                 replay    rings of the last steps
    samples    rings of numbers for charts   views     what the page is told
    routes     HTTP                          novnc     the viewer, a package of its own

Rule: the page may do what the key that logged in may do over REST, and nothing more; looking never waits for a screen to settle and holds
no lock of a desktop. Non-goals: training runs, the history of ended farms.
"""
