"""The inference worker's own process: vLLM, its plug-in, and how new weights reach it."""
