"""`python -m dart_server.cli`."""

from __future__ import annotations

from dart_server.cli import main

if __name__ == "__main__":
    main()
