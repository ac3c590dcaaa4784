"""The trainer: batches to losses, one train step per batch, checkpoints, its process."""
