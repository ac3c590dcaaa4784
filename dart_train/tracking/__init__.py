"""The metrics of a run in TensorBoard and Weights & Biases."""
