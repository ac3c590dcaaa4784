"""The action head inside of vLLM's worker processes."""
