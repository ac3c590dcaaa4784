"""What a forward pass of the trainer is made of: rows, segments, tensors. Import what you need from the modules."""
