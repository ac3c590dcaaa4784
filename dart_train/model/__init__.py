"""Models: loading, the small random one, its tokenizer, weight versions."""
