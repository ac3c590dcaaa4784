"""What the host itself sees of a desktop: its files, its processes, and what of both is unchanged from the image.

Role: `queries` checks what is asked, `collect` answers it, `files`, `processes` and `layers` look. Rule: read-only, bounded, and no program
of the desktop takes part; callers freeze the desktop meanwhile. Non-goals: freezing (`containers`, the provider `docker`), judging.
"""
