"""Provider `sim`: simulated desktops for tests and load measurements."""
