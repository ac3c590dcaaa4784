"""Desktop slots: who gets which (`service`), and how one is brought to a wanted state (`prepare`)."""
