"""Fakes for tests of code that uses this package, and the conformance suite of desktops."""
