"""Desktop slots: who gets which (`service`), how one is brought to a wanted state (`prepare`), and what runs meanwhile (`background`)."""
