"""The farm service under load: leases, claims, steps, standbys, soak, storm, live view."""
