"""Provider `docker`: desktops as containers of Docker or Podman."""
