"""Why a farm cannot be used from here, in one sentence with its fix: address, certificate, key.

Role: the one owner of these texts, for `dart-farm` and for the Python clients. Rule: the cause is named, the address that was tried, and
the variable that holds what is wrong. Non-goals: connections, exceptions and exit codes, which each side has its own of.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dart_server.wire import paths
from dart_server.wire.extras import missing_server_module

URL_VARIABLE, KEY_VARIABLE, CERTIFICATE_VARIABLE = "DART_FARM_URL", "DART_API_KEY", "SSL_CERT_FILE"
KEY_NEEDED = "a valid key is needed"
"""What a farm says to a request whose key it does not know."""
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_UNKNOWN_HOST = ("Name or service not known", "name resolution", "No address associated", "nodename nor servname")


@dataclass(frozen=True, slots=True)
class ConnectionProblem:
    """One cause.

    Attributes:
        code: `invalid` for wrong input, `unreachable`, `tls_required`, `untrusted`, `wrong_name`, or `unauthenticated`.
        message: What is wrong: one sentence that begins with a small letter, unless a variable's name begins it.
        hint: What to do.
    """

    code: str
    message: str
    hint: str

    @property
    def sentence(self) -> str:
        """The message with a capital letter, for where nothing stands before it."""
        return self.message[:1].upper() + self.message[1:]


def connection_problem(url: str, error: BaseException) -> ConnectionProblem | None:
    """Name the cause of a connection that failed.

    Args:
        url: The address that was tried.
        error: What the connection failed with.

    Returns:
        The cause, or None where nobody answers (`nobody_answers`).
    """
    said = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return _certificate_problem(url, said)
    if "SSL" in said and any(word in said for word in _NO_TLS):
        return ConnectionProblem(
            "tls_required",
            f"who answers at {url} does not speak TLS.",
            f"Use {url.replace('https://', 'http://', 1)}.",
        )
    if any(word in said for word in _UNKNOWN_HOST):
        return ConnectionProblem(
            "unreachable", f"the host of the farm at {url} is not known here ({said}).", _check_address()
        )
    return None


def _certificate_problem(url: str, said: str) -> ConnectionProblem:
    if "mismatch" in said:
        return ConnectionProblem(
            "wrong_name",
            f"the certificate of the farm at {url} does not name {urlsplit(url).hostname}.",
            "Call the farm by a name that it names, or ask its operator for another.",
        )
    for word, what in (("has expired", "has expired"), ("not yet valid", "is not valid yet")):
        if word in said:
            return ConnectionProblem(
                "untrusted",
                f"the certificate of the farm at {url} {what}.",
                "Look at this host's clock, or ask the farm's operator for another certificate.",
            )
    named = os.environ.get(CERTIFICATE_VARIABLE)
    return ConnectionProblem(
        "untrusted",
        f"the certificate of the farm at {url} is not known here.",
        f"Name the certificate that signed it: {CERTIFICATE_VARIABLE}=PATH."
        if not named
        else f"{CERTIFICATE_VARIABLE}={named} does not hold the certificate that signed it: ask the farm's operator for it.",
    )


def nobody_answers(url: str, reason: str = "") -> ConnectionProblem:
    """Say that no farm answers, and how to get one: starting one is offered where the address is this host's own only.

    Args:
        url: The address that was tried.
        reason: What the connection failed with; empty adds nothing.

    Returns:
        The problem.
    """
    why = f" ({reason})" if reason else ""
    if not is_own_host(url):
        return ConnectionProblem("unreachable", f"no farm answers at {url}{why}.", _check_address())
    fix = _check_address()
    if missing_server_module() is None:
        other = f"correct {URL_VARIABLE}" if os.environ.get(URL_VARIABLE) else f"set {URL_VARIABLE} to where it is"
        fix = f"Start it with `dart-farm serve`, or {other}."
    return ConnectionProblem("unreachable", f"no farm is running: nobody answers at {url}{why}.", fix)


def _check_address() -> str:
    where = f"of {URL_VARIABLE}" if os.environ.get(URL_VARIABLE) else "of the address"
    return f"Check host and port {where}, and ask who runs the farm whether it serves there."


def is_own_host(url: str) -> bool:
    """Return whether an address is this host's own: a Unix socket, loopback, or the name of this host."""
    try:
        parts = urlsplit(url)
    except ValueError:  # of brackets without an address
        return False
    if parts.scheme == "unix":
        return True
    host = parts.hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in {"localhost", socket.gethostname().lower()}


def certificate_file_problem() -> ConnectionProblem | None:
    """Look at the file that `SSL_CERT_FILE` names.

    Returns:
        What is wrong with it, or None; where the variable is not set, nothing is.
    """
    named = os.environ.get(CERTIFICATE_VARIABLE)
    if not named:
        return None
    try:
        if Path(named).is_file():
            ssl.create_default_context(cafile=named)
            return None
        what = "is not a file" if Path(named).exists() else "does not exist"
    except ssl.SSLError:
        what = "holds no certificate in PEM form"
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
    return ConnectionProblem(
        "invalid",
        f"{CERTIFICATE_VARIABLE}={named} {what}.",
        "Name the file of the farm's certificate there, or unset the variable where a public authority signed it.",
    )


def key_problem(url: str, sent: str | None) -> ConnectionProblem:
    """Say why a farm does not know who calls (`KEY_NEEDED`).

    Args:
        url: Address of the farm.
        sent: The key that was sent; None or empty where none was.

    Returns:
        The problem.
    """
    set_key = os.environ.get(KEY_VARIABLE)
    if not sent:
        message = f"{KEY_VARIABLE} is not set, and the farm at {url} needs a key."
    elif sent == set_key:
        message = f"{KEY_VARIABLE} is not valid at {url}."
    elif set_key:
        message = f"the key that was given is not valid at {url}."
    else:
        message = f"{KEY_VARIABLE} is not set, and the key that was sent instead is not valid at {url}."
    hint = "Ask who runs the farm for a key (`dart-farm keys add NAME` makes one)."
    own = paths.state_dir(paths.runtime_dir()) / paths.KEY_FILE
    if is_own_host(url) and own.exists():
        hint += f" The key of this user's own farm is in {own}."
    return ConnectionProblem("unauthenticated", message, hint)
