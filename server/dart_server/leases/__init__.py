"""Claims, which wait for desktops, and leases: the right to one, with a time to live and a fencing token; and their routes."""
