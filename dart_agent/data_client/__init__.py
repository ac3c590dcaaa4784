"""Trajectories: rows in SQL, images by content hash, and the client of the data manager that writes them."""
