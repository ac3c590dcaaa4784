"""Guests that have only OSWorld's own server, behind the guest protocol."""
