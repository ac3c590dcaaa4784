"""Observations: sizes, coordinate transforms, text forms of the accessibility tree, annotated screens."""
