"""Live snapshots under a byte quota, and their routes."""
