"""Desktops that attack the farm and its clients with their answers."""
