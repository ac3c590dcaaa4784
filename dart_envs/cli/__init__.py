"""The command line `dart-envs`: one module per group of commands."""
