"""Leases: claims on desktops with a time to live and a fence, and their routes."""
