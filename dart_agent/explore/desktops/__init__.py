"""What can be explored: the protocol, desktops of a farm, simulated applications."""
