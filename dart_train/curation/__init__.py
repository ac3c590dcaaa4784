"""What to run next and what may be trained on: one small pure rule per file, each with its source and its own settings."""
