"""Supervised fine-tuning of a policy on demonstrations and stored successes. Import what you need from the modules."""
