"""The data manager: the only writer of the trajectory store; hands out work and forms batches, as a process of its own."""
