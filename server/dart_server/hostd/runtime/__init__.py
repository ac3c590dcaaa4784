"""The container runtime: OCI configuration, runc, CRIU, the system-call filter."""
