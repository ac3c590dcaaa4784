"""The farm as a process of its host: daemon, checks before the start, directories, clean-up."""
