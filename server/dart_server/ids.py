"""Names of things: type-prefixed ULIDs, sortable by the time they were made; and secrets, of which only hashes are stored."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from base64 import urlsafe_b64encode
from typing import Literal

Prefix = Literal["lease", "desk", "snap", "key", "req", "claim", "writer"]


_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(first + second for first in _DIGITS for second in _DIGITS)
_SHIFTS = range(120, -1, -10)
_RANDOM_BITS = 80
_newest = 0
"""The number of the latest id."""


def new_id(prefix: Prefix) -> str:
    """For example `lease_01J…`: 48 bits of milliseconds since 1970, then 80 random ones; of two within a millisecond the later is one more.

    Every request has one, so it is made here, at less than half of what a library takes. Called from one thread.
    """
    global _newest
    number = (time.time_ns() // 1_000_000) << _RANDOM_BITS
    if number >> _RANDOM_BITS == _newest >> _RANDOM_BITS:
        number = _newest + 1
    else:
        number |= int.from_bytes(os.urandom(_RANDOM_BITS // 8))
    _newest = number
    return f"{prefix}_{''.join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])}"


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


def secrets_equal(a: str, b: str) -> bool:
    """Comparison in constant time."""
    return hmac.compare_digest(a.encode(), b.encode())
