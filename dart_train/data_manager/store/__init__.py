"""The trajectory database; only the data manager writes it."""
