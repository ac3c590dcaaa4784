"""Claims, which wait for desktops, and leases: the right to one, with a time to live and a fencing_token; and their routes."""
