"""The data manager: single writer of the trajectory database; assigns work and forms batches, as a process of its own."""
