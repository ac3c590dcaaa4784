"""Providers: the parts that make desktops, behind one Protocol (`base`). Import a provider module by name."""
