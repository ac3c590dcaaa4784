"""The in-guest agent and init of a DART desktop.

Role: what runs inside the image; `protocol.md` beside this package is its contract.
Rule: standard library and Debian packages only (aiohttp, python3-xlib, Pillow, NumPy, PyGObject).
Non-goals: leases, snapshots, tasks, rewards: the outside owns those.
"""

VERSION = "0.1.0"
"""Version of the agent, recorded in the image manifest and told by `/v1/health`."""

PROTOCOL = 1
"""Version of `protocol.md` that this agent speaks."""
