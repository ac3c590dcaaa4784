"""A run: recipe checks, components, launcher, stages, progress, state."""
