"""Why a farm cannot be used from here: `dart-farm` and the Python clients say the same, and name what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import certifi
import pytest

from dart_envs.errors import FarmUnreachableError, InvalidRequestError
from dart_envs.farm.transport import Transport, parse_address
from dart_server.wire import connection, paths
from dart_server.wire.connection import (
    certificate_file_problem,
    connection_problem,
    is_own_host,
    key_problem,
    nobody_answers,
)

FARM = "https://farm.example:8700"
VERIFY = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DART_FARM_URL", "DART_API_KEY", "SSL_CERT_FILE", "DART_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DART_RUNTIME_DIR", str(tmp_path))


@pytest.mark.parametrize(
    ("url", "error", "code", "message", "hint"),
    [
        (
            FARM,
            f"{VERIFY}self-signed certificate",
            "untrusted",
            "the certificate of the farm at {url} is not known here.",
            "SSL_CERT_FILE=PATH",
        ),
        (
            FARM,
            f"{VERIFY}Hostname mismatch, certificate is not valid for 'farm.example'.",
            "wrong_name",
            "the certificate of the farm at {url} does not name farm.example.",
            "Call the farm by a name that it names, or ask its operator",
        ),
        (
            "https://10.0.0.9:1",
            f"{VERIFY}IP address mismatch, certificate is not valid for '10.0.0.9'.",
            "wrong_name",
            "the certificate of the farm at {url} does not name 10.0.0.9.",
            "ask its operator",
        ),
        (
            FARM,
            f"{VERIFY}certificate has expired",
            "untrusted",
            "the certificate of the farm at {url} has expired.",
            "ask the farm's operator",
        ),
        (
            FARM,
            "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)",
            "tls_required",
            "who answers at {url} does not speak TLS.",
            "Use http://farm.example:8700.",
        ),
        (
            FARM,
            "[Errno -2] Name or service not known",
            "unreachable",
            "the host of the farm at {url} is not known here",
            "Check host and port",
        ),
    ],
)
def test_the_cause_is_named_with_its_fix(url: str, error: str, code: str, message: str, hint: str) -> None:
    problem = connection_problem(url, OSError(error))
    assert problem is not None
    message = message.format(url=url)
    assert (problem.code, problem.message[: len(message)]) == (code, message)
    assert hint in problem.hint
    raised = Transport(parse_address(url), None).unreachable(OSError(error))
    assert str(raised) == f"{message[0].upper()}{problem.message[1:]} {problem.hint}", "the client says the same"
    assert raised.code == code
    assert "dart-farm serve" not in str(raised)


def test_a_file_that_lacks_the_certificate_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/hostname")
    problem = connection_problem(FARM, OSError(f"{VERIFY}self-signed certificate"))
    assert problem is not None
    assert problem.hint.startswith("SSL_CERT_FILE=/etc/hostname does not hold the certificate that signed it")


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("unix:///run/dart/farm.sock", True),
        ("http://127.0.0.1:8700", True),
        ("http://[::1]:8700", True),
        ("https://localhost:8700", True),
        (FARM, False),
        ("http://10.0.0.9:8700", False),
        ("http://[farm", False),
    ],
)
def test_a_start_is_offered_for_an_address_of_this_host_only(
    monkeypatch: pytest.MonkeyPatch, url: str, own: bool
) -> None:
    assert is_own_host(url) is own
    assert url in nobody_answers(url).message
    assert ("dart-farm serve" in nobody_answers(url).hint) is own
    assert ("set DART_FARM_URL" in nobody_answers(url).hint) is own
    monkeypatch.setenv("DART_FARM_URL", url)
    said = nobody_answers(url, "ConnectError: refused")
    assert "(ConnectError: refused)" in said.message
    assert ("correct DART_FARM_URL" if own else "Check host and port of DART_FARM_URL") in said.hint
    monkeypatch.setattr(connection, "missing_server_module", lambda: "fastapi")
    assert "dart-farm serve" not in nobody_answers(url).hint, "this installation cannot start one"


def test_the_client_names_the_address_that_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DART_FARM_URL", "http://farm.example:8799")
    raised = Transport(parse_address("http://farm.example:8799"), None).unreachable(OSError("refused"))
    assert isinstance(raised, FarmUnreachableError)
    assert str(raised).startswith(
        "No farm answers at http://farm.example:8799 (OSError: refused). Check host and port of"
    )


def test_a_wrong_certificate_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert certificate_file_problem() is None
    empty = tmp_path / "empty.pem"
    empty.write_text("no certificate\n")
    for path, what in (
        (tmp_path / "none.pem", "does not exist"),
        (tmp_path, "is not a file"),
        (empty, "holds no certificate in PEM form"),
    ):
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        problem = certificate_file_problem()
        assert problem is not None
        assert (problem.code, problem.message) == ("invalid", f"SSL_CERT_FILE={path} {what}.")
        with pytest.raises(InvalidRequestError, match=f"^SSL_CERT_FILE={path} {what}. Name the file"):
            Transport(parse_address(FARM), None)
        done = subprocess.run(
            [sys.executable, "-m", "dart_server.cli", "status"], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"dart-farm: SSL_CERT_FILE={path} {what}. {problem.hint}\n"
    monkeypatch.setenv("SSL_CERT_FILE", certifi.where())
    assert certificate_file_problem() is None


def test_a_key_that_is_not_known_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert key_problem(FARM, None).message == f"DART_API_KEY is not set, and the farm at {FARM} needs a key."
    assert "not set, and the key that was sent instead" in key_problem(FARM, "dart_file").message
    monkeypatch.setenv("DART_API_KEY", "dart_wrong")
    assert key_problem(FARM, "dart_wrong").message == f"DART_API_KEY is not valid at {FARM}."
    assert key_problem(FARM, "dart_argument").message == f"the key that was given is not valid at {FARM}."
    (tmp_path / paths.KEY_FILE).write_text("dart_own")
    assert "ask who runs the farm" in key_problem(FARM, "dart_wrong").hint.lower()
    assert str(tmp_path) not in key_problem(FARM, "dart_wrong").hint, "of no use for a farm elsewhere"
    assert str(tmp_path / paths.KEY_FILE) in key_problem("http://127.0.0.1:8700", "dart_wrong").hint
