"""The attack book, replayed against the bundled suites."""
