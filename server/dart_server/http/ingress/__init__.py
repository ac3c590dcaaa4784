"""The ingress of the farm: which hosts, origins, connections and bodies come in, and how many of them at a time."""
