"""The trajectory database. Only the data manager writes it."""
