"""vLLM workers: one server process each, a pool that routes to them, and rolling weight updates."""
