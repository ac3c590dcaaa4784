"""One evaluation by official getters and metrics, and who is to blame when one of them raises.

Role: what `DesktopEnv.evaluate()` does after the post-configuration: get the result, get what is expected, compare, join by `and` or `or`.
Rule: what the policy left missing or broken scores 0; what the evaluator or the host lacks is `EvaluationFailed` with its kind, never a
score.

    what raised                                             verdict
    the expected side (but for what it reads off the desktop) failed: `expected`
    a package that is not installed                         failed: `missing_package`, whoever swallowed it
    no answer from the desktop's own server                 failed: `desktop`, whoever swallowed it
    a getter: no file, odd content, a program that has gone 0, with the cause
    a metric, where comparing the expected file with itself raises too      failed: `evaluator`
    a metric, where that works, or on rules                 0, with the cause
    a name, import, signature or assertion of the evaluator failed: `evaluator`

Non-goals: post-configuration and infeasible tasks, which the parent does.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from dart_envs.scorer.worker_process.backports import GETTERS, METRICS
from dart_envs.scorer.worker_process.evaluation_env import EvaluationEnv, RequestMonitor
from dart_envs.scorer.worker_process.missing_packages import MissingPackageError, used_placeholders

DESKTOP_GETTERS = frozenset({"vm_file", "vm_command_line", "vm_command_error", "vm_window_size", "vm_screen_size"})
"""Getters of expected values that read them off the desktop, where the policy may have spoiled them."""
EVALUATOR_ERRORS = (NameError, ImportError, NotImplementedError, AssertionError)
HOST_ERRNOS = frozenset({errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO, errno.ENOMEM, errno.EROFS})


class EvaluationFailed(Exception):
    """There is no verdict; `kind` says whose failure it is."""

    def __init__(self, kind: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.details = details


class ArtifactError(Exception):
    """The policy left nothing that can be compared."""


class ErrorLogHandler(logging.Handler):
    """Keeps what evaluators log as errors: the reason of many a 0."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage()[:300])


def find_metric(name: str) -> Any:
    """A metric of the release, or ours where it has none. Raises EvaluationFailed."""
    official = importlib.import_module("desktop_env.evaluators.metrics")
    found = getattr(official, name, None) or METRICS.get(name)
    if found is None:
        raise EvaluationFailed("evaluator", f"The osworld scorer has no metric {name!r}.")
    return found


def find_getter(name: str) -> Any:
    """A getter of the release, or ours where it has none. Raises EvaluationFailed."""
    official = importlib.import_module("desktop_env.evaluators.getters")
    found = getattr(official, f"get_{name}", None) or GETTERS.get(name)
    if found is None:
        raise EvaluationFailed("evaluator", f"The osworld scorer has no getter {name!r}.")
    return found


def describe_error(error: BaseException) -> str:
    """One sentence with the place."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error)[:300]}{place}"


def is_signature_error(error: BaseException) -> bool:
    """Whether a call did not fit the function it was made to."""
    return isinstance(error, TypeError) and ("positional argument" in str(error) or "keyword argument" in str(error))


def is_evaluator_error(error: BaseException) -> bool:
    """Whether an exception can only be the evaluator's or the host's, whatever the desktop holds."""
    requests = importlib.import_module("requests")
    if isinstance(error, OSError) and not isinstance(error, requests.RequestException):
        return error.errno in HOST_ERRNOS
    if isinstance(error, SyntaxError):
        # Text of the desktop that is read as Python has no file; a module has one.
        return error.filename not in (None, "<unknown>", "<string>")
    return isinstance(error, EVALUATOR_ERRORS) or is_signature_error(error)


def get_result(env: EvaluationEnv, config: Mapping[str, Any] | None, monitor: RequestMonitor) -> Any:
    """What the desktop holds. Raises ArtifactError or EvaluationFailed."""
    if config is None:
        return None
    try:
        return find_getter(str(config["type"]))(env, config)
    except (MissingPackageError, EvaluationFailed):
        raise
    except FileNotFoundError as error:
        raise ArtifactError(f"there is no such file: {error}") from error
    except Exception as error:
        if monitor.unanswered:
            raise EvaluationFailed("desktop", f"The desktop did not answer: {describe_error(error)}") from error
        if is_evaluator_error(error):
            raise EvaluationFailed(
                "evaluator", f"The getter {config['type']} failed: {describe_error(error)}"
            ) from error
        raise ArtifactError(
            f"the getter {config['type']} found nothing that it can read: {describe_error(error)}"
        ) from error


def get_expected(env: EvaluationEnv, config: Mapping[str, Any], monitor: RequestMonitor) -> Any:
    """What is expected. Raises EvaluationFailed; ArtifactError where the expected value comes from the desktop."""
    kind = str(config["type"])
    if kind in DESKTOP_GETTERS:
        return get_result(env, config, monitor)
    try:
        value = find_getter(kind)(env, config)
    except (MissingPackageError, EvaluationFailed):
        raise
    except Exception as error:
        raise EvaluationFailed(
            "expected", f"The expected value ({kind}) cannot be had: {describe_error(error)}"
        ) from error
    if value is None and kind != "rule":
        raise EvaluationFailed("expected", f"The expected value ({kind}) cannot be had.")
    return value


def is_file_value(value: Any) -> bool:
    """Whether a value is the path of a file, or a list of them."""
    if isinstance(value, str):
        return os.path.isfile(value)
    return (
        isinstance(value, list) and bool(value) and all(isinstance(one, str) and os.path.isfile(one) for one in value)
    )


def compare(func: str, result: Any, expected: Any, options: Mapping[str, Any], has_expected: bool) -> tuple[float, Any]:
    """The metric's score and why it is 0, if an exception made it so. Raises EvaluationFailed."""
    metric = find_metric(func)
    arguments = (result, expected) if has_expected else (result,)
    try:
        score = metric(*arguments, **options)
    except (MissingPackageError, EvaluationFailed):
        raise
    except Exception as error:
        cause = describe_error(error)
        if is_evaluator_error(error):
            raise EvaluationFailed("evaluator", f"The metric {func} failed: {cause}") from error
        if has_expected and is_file_value(expected) and result is not None:
            try:
                metric(expected, expected, **options)
            except Exception as again:
                raise EvaluationFailed(
                    "evaluator", f"The metric {func} failed, and also on the expected file: {describe_error(again)}"
                ) from again
        return 0.0, f"the metric {func} cannot read what the desktop holds: {cause}"
    if score is None:
        return 0.0, f"the metric {func} gave no score"
    value = float(score)
    return (min(1.0, max(0.0, value)), None) if value == value else (0.0, f"the metric {func} gave no number")


def evaluate_part(env: EvaluationEnv, part: Mapping[str, Any], monitor: RequestMonitor) -> dict[str, Any]:
    """One function's score. Raises EvaluationFailed."""
    func, log_handler = str(part["func"]), ErrorLogHandler()
    logging.getLogger().addHandler(log_handler)
    used_placeholders.clear()
    try:
        expected_config = part.get("expected")
        expected = get_expected(env, expected_config, monitor) if expected_config else None
        result = get_result(env, part.get("result"), monitor)
        score, cause = compare(func, result, expected, part.get("options") or {}, bool(expected_config))
    except ArtifactError as spoiled:
        score, cause = 0.0, str(spoiled)
    except MissingPackageError as absent:
        raise missing_package_error(absent.package, func) from absent
    finally:
        logging.getLogger().removeHandler(log_handler)
    if used_placeholders:
        raise missing_package_error(sorted(used_placeholders)[0], func)
    if score < 1.0 and monitor.unanswered:
        raise EvaluationFailed("desktop", f"The desktop did not answer: {next(iter(monitor.unanswered.values()))}")
    cause_entry = {"cause": cause} if cause else {}
    return {
        "func": func,
        "score": score,
        **cause_entry,
        **({"log": log_handler.lines[-5:]} if log_handler.lines and score < 1.0 else {}),
    }


def missing_package_error(package: str, func: str) -> EvaluationFailed:
    """The failure of a function that needs an absent package."""
    return EvaluationFailed("missing_package", f"The metric {func} needs the package {package}.", package=package)


def evaluate_parts(
    env: EvaluationEnv, parts: Sequence[Mapping[str, Any]], conj: str, monitor: RequestMonitor
) -> dict[str, Any]:
    """The joined score and its parts. Raises EvaluationFailed."""
    monitor.start(env)
    scored: list[dict[str, Any]] = []
    for part in parts:
        one = evaluate_part(env, part, monitor)
        scored.append(one)
        if one["score"] == (1.0 if conj == "or" else 0.0):
            return {"score": one["score"], "parts": scored}
    scores = [float(one["score"]) for one in scored]
    return {"score": max(scores) if conj == "or" else sum(scores) / len(scores), "parts": scored}
