"""Provider `libvirt`: desktops as virtual machines."""
