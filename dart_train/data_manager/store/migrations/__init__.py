"""Alembic migrations of the trajectory database."""
