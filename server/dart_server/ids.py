"""Names of things: type-prefixed ULIDs, sortable by the time they were made; and secrets, of which only hashes are stored."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from typing import Literal

Prefix = Literal["lease", "desk", "snap", "key", "req", "claim", "writer"]


def new_id(prefix: Prefix) -> str:
    """For example `lease_01J…`."""
    from ulid import ULID

    return f"{prefix}_{ULID()}"


def new_secret(prefix: str) -> str:
    """A bearer secret of 256 bits, printable; the prefix tells a reader what leaked."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def hash_secret(secret: str) -> str:
    """What is stored of a secret. The secrets are random and long, so a plain hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


def derive_token(root: bytes, lease_id: str) -> str:
    """The lease's token: the same for the same lease, so that a repeated claim can answer without a stored token."""
    digest = hmac.new(root, lease_id.encode(), hashlib.sha256).digest()
    return "tok_" + urlsafe_b64encode(digest).rstrip(b"=").decode()


def same_secret(a: str, b: str) -> bool:
    """Comparison in constant time."""
    return hmac.compare_digest(a.encode(), b.encode())
