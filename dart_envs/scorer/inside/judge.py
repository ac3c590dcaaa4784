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

from dart_envs.scorer.inside.absent import Absent, touched
from dart_envs.scorer.inside.desk import EvaluationEnv, Watch
from dart_envs.scorer.inside.lacking import GETTERS, METRICS

FROM_THE_DESKTOP = frozenset({"vm_file", "vm_command_line", "vm_command_error", "vm_window_size", "vm_screen_size"})
"""Getters of expected values that read them off the desktop, where the policy may have spoiled them."""
OWN_MISTAKES = (NameError, ImportError, NotImplementedError, AssertionError)
HOST_TROUBLE = frozenset({errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO, errno.ENOMEM, errno.EROFS})


class EvaluationFailed(Exception):
    """There is no verdict; `kind` says whose failure it is."""

    def __init__(self, kind: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.more = more


class ArtifactError(Exception):
    """The policy left nothing that can be compared."""


class EvaluationAnswer(logging.Handler):
    """Keeps what evaluators log as errors: the reason of many a 0."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage()[:300])


def metric_named(name: str) -> Any:
    """A metric of the release, or ours where it has none. Raises Failed."""
    official = importlib.import_module("desktop_env.evaluators.metrics")
    found = getattr(official, name, None) or METRICS.get(name)
    if found is None:
        raise EvaluationFailed("evaluator", f"The osworld scorer has no metric {name!r}.")
    return found


def getter_named(name: str) -> Any:
    """A getter of the release, or ours where it has none. Raises Failed."""
    official = importlib.import_module("desktop_env.evaluators.getters")
    found = getattr(official, f"get_{name}", None) or GETTERS.get(name)
    if found is None:
        raise EvaluationFailed("evaluator", f"The osworld scorer has no getter {name!r}.")
    return found


def told(error: BaseException) -> str:
    """One sentence with the place."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error)[:300]}{place}"


def signature_is_wrong(error: BaseException) -> bool:
    """Whether a call did not fit the function it was made to."""
    return isinstance(error, TypeError) and ("positional argument" in str(error) or "keyword argument" in str(error))


def own_mistake(error: BaseException) -> bool:
    """Whether an exception can only be the evaluator's or the host's, whatever the desktop holds."""
    requests = importlib.import_module("requests")
    if isinstance(error, OSError) and not isinstance(error, requests.RequestException):
        return error.errno in HOST_TROUBLE
    if isinstance(error, SyntaxError):
        # Text of the desktop that is read as Python has no file; a module has one.
        return error.filename not in (None, "<unknown>", "<string>")
    return isinstance(error, OWN_MISTAKES) or signature_is_wrong(error)


def get_result(desk: EvaluationEnv, config: Mapping[str, Any] | None, watch: Watch) -> Any:
    """What the desktop holds. Raises Spoiled or Failed."""
    if config is None:
        return None
    try:
        return getter_named(str(config["type"]))(desk, config)
    except (Absent, EvaluationFailed):
        raise
    except FileNotFoundError as error:
        raise ArtifactError(f"there is no such file: {error}") from error
    except Exception as error:
        if watch.unanswered:
            raise EvaluationFailed("desktop", f"The desktop did not answer: {told(error)}") from error
        if own_mistake(error):
            raise EvaluationFailed("evaluator", f"The getter {config['type']} failed: {told(error)}") from error
        raise ArtifactError(f"the getter {config['type']} found nothing that it can read: {told(error)}") from error


def get_expected(desk: EvaluationEnv, config: Mapping[str, Any], watch: Watch) -> Any:
    """What is expected. Raises Failed; Spoiled where the expected value comes from the desktop."""
    kind = str(config["type"])
    if kind in FROM_THE_DESKTOP:
        return get_result(desk, config, watch)
    try:
        value = getter_named(kind)(desk, config)
    except (Absent, EvaluationFailed):
        raise
    except Exception as error:
        raise EvaluationFailed("expected", f"The expected value ({kind}) cannot be had: {told(error)}") from error
    if value is None and kind != "rule":
        raise EvaluationFailed("expected", f"The expected value ({kind}) cannot be had.")
    return value


def files_of(value: Any) -> bool:
    """Whether a value is the path of a file, or a list of them."""
    if isinstance(value, str):
        return os.path.isfile(value)
    return (
        isinstance(value, list) and bool(value) and all(isinstance(one, str) and os.path.isfile(one) for one in value)
    )


def compare(func: str, result: Any, expected: Any, options: Mapping[str, Any], has_expected: bool) -> tuple[float, Any]:
    """The metric's score and why it is 0, if an exception made it so. Raises Failed."""
    metric = metric_named(func)
    arguments = (result, expected) if has_expected else (result,)
    try:
        score = metric(*arguments, **options)
    except (Absent, EvaluationFailed):
        raise
    except Exception as error:
        cause = told(error)
        if own_mistake(error):
            raise EvaluationFailed("evaluator", f"The metric {func} failed: {cause}") from error
        if has_expected and files_of(expected) and result is not None:
            try:
                metric(expected, expected, **options)
            except Exception as again:
                raise EvaluationFailed(
                    "evaluator", f"The metric {func} failed, and also on the expected file: {told(again)}"
                ) from again
        return 0.0, f"the metric {func} cannot read what the desktop holds: {cause}"
    if score is None:
        return 0.0, f"the metric {func} gave no score"
    value = float(score)
    return (min(1.0, max(0.0, value)), None) if value == value else (0.0, f"the metric {func} gave no number")


def judge_part(desk: EvaluationEnv, part: Mapping[str, Any], watch: Watch) -> dict[str, Any]:
    """One function's score. Raises Failed."""
    func, said = str(part["func"]), EvaluationAnswer()
    logging.getLogger().addHandler(said)
    touched.clear()
    try:
        expected_config = part.get("expected")
        expected = get_expected(desk, expected_config, watch) if expected_config else None
        result = get_result(desk, part.get("result"), watch)
        score, cause = compare(func, result, expected, part.get("options") or {}, bool(expected_config))
    except ArtifactError as spoiled:
        score, cause = 0.0, str(spoiled)
    except Absent as absent:
        raise missing(absent.package, func) from absent
    finally:
        logging.getLogger().removeHandler(said)
    if touched:
        raise missing(sorted(touched)[0], func)
    if score < 1.0 and watch.unanswered:
        raise EvaluationFailed("desktop", f"The desktop did not answer: {next(iter(watch.unanswered.values()))}")
    told_why = {"cause": cause} if cause else {}
    return {
        "func": func,
        "score": score,
        **told_why,
        **({"said": said.lines[-5:]} if said.lines and score < 1.0 else {}),
    }


def missing(package: str, func: str) -> EvaluationFailed:
    """The failure of a function that needs an absent package."""
    return EvaluationFailed("missing_package", f"The metric {func} needs the package {package}.", package=package)


def judge(desk: EvaluationEnv, parts: Sequence[Mapping[str, Any]], conj: str, watch: Watch) -> dict[str, Any]:
    """The joined score and its parts. Raises Failed."""
    watch.start(desk)
    scored: list[dict[str, Any]] = []
    for part in parts:
        one = judge_part(desk, part, watch)
        scored.append(one)
        if one["score"] == (1.0 if conj == "or" else 0.0):
            return {"score": one["score"], "parts": scored}
    scores = [float(one["score"]) for one in scored]
    return {"score": max(scores) if conj == "or" else sum(scores) / len(scores), "parts": scored}
