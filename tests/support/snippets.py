"""Code blocks of the tutorials and how-to guides: what becomes of each, and running a page of them.

Role: `read_page` gives the blocks of a page, `PageRun` executes them one after the other. Rule: a block is written to a file, executed,
compared, or marked with the reason why it is not; anything else is an error of the page. A page has a folder, a runtime directory and a
Python environment of its own. Non-goals: which pages there are (`tests/snippets`), the README (`.ci/quickstart.py`).

The marks are HTML comments in the line before a block: `<!-- snippet: not run: REASON -->`, `<!-- snippet: exit 2 -->`,
`<!-- snippet: output -->`. A page that needs more than desktops says so once: `<!-- snippets need: vllm -->`.
"""

from __future__ import annotations

import contextlib
import doctest
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

Treatment = Literal["file", "run", "output", "skip"]
BLOCK_LIMIT_S = 3600.0
"""Many times what the longest block takes on a free host: a busy host is not a fault of the page."""
ENDING_LIMIT_S = 30.0
PRELUDE = """set -euo pipefail
test -e {state} && . {state}
trap 'code=$?; {{ printf "cd %q\\n" "$PWD"; export -p; }} > {state}; exit $code' EXIT
"""
"""Each block begins where the one before has ended: in its folder, with its exported variables."""
_FENCE = re.compile(r"^(?P<indent>\s*)```(?P<info>.*)$")
_TILDES = re.compile(r"^\s*~~~")
_INDENTED = re.compile(r"^(?: {4}|\t)\s*\S")
_MARK = re.compile(
    r"^<!-- snippet: (?:(?P<output>output)|exit (?P<exits>\d+(?: or \d+)*)|not run: (?P<reason>\S.*)) -->$"
)
_TITLE = re.compile(r'\btitle="([^"]+)"')
_NEEDS = re.compile(r"^<!-- snippets need: (\w+) -->$", re.MULTILINE)
_COMPARISON = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class PageError(ValueError):
    """A block that is neither executed nor marked, or a mark that means nothing."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """One block. line: of its fence, from 1. file: where it is written, for `file`. exit_codes: it must end with one of these."""

    line: int
    language: str
    text: str
    treatment: Treatment
    file: str = ""
    exit_codes: tuple[int, ...] = (0,)


def needs(page: str) -> list[str]:
    """Markers of `live_host` that a page asks for."""
    return _NEEDS.findall(page)


def read_page(page: str) -> list[Snippet]:
    """The blocks of a page in order. Raises PageError for one that is neither executed nor marked."""
    found: list[Snippet] = []
    lines = page.splitlines()
    number = 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        if opening is None:
            if _TILDES.match(lines[number]):
                raise PageError(f"line {number + 1}: a block begins with ```, not with ~~~")
            # Indented text that follows other text goes on with it.
            if _INDENTED.match(lines[number]) and not (number and lines[number - 1].strip()):
                raise PageError(f"line {number + 1}: a block must stand between ``` at the left margin")
            if lines[number].startswith("<!-- snippet:"):
                following = lines[number + 1] if number + 1 < len(lines) else ""
                if _MARK.match(lines[number]) is None or not following.startswith("```"):
                    raise PageError(f"line {number + 1}: this mark means nothing, or no block follows it")
            number += 1
            continue
        if opening["indent"]:
            raise PageError(f"line {number + 1}: a block must begin at the left margin")
        end = lines.index("```", number + 1)
        mark = _MARK.match(lines[number - 1]) if number else None
        found.append(_snippet(number + 1, opening["info"], "\n".join(lines[number + 1 : end]) + "\n", mark))
        number = end + 1
    return found


def _snippet(line: int, info: str, text: str, mark: re.Match[str] | None) -> Snippet:
    language = info.split(maxsplit=1)[0] if info else ""
    if mark is not None and mark["reason"]:
        return Snippet(line, language, text, "skip")
    if mark is not None and mark["output"]:
        return Snippet(line, language, text, "output")
    title = _TITLE.search(info)
    if title is not None:
        return Snippet(line, language, text, "file", file=title[1])
    if language in ("sh", "python"):
        codes = (0,) if mark is None else tuple(int(code) for code in mark["exits"].split(" or "))
        return Snippet(line, language, text, "run", exit_codes=codes)
    raise PageError(f"line {line}: a block of {language or 'no language'} is neither executed nor marked")


class PageRun:
    """A page's folder, environment and processes; leaving the context ends and removes all of them."""

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="dart-page-"))
        self.folder = self.place / "work"
        self.folder.mkdir()
        self.output = ""
        self._late = False
        self._sessions: list[int] = []
        self._environment = {
            **{
                name: value for name, value in os.environ.items() if not name.startswith("DART_") or name == "DART_HOME"
            },
            "PATH": f"{self._make_environment()}:{os.environ['PATH']}",
            "DART_RUNTIME_DIR": str(self.place / "run"),
            "COLUMNS": "140",
            "NO_COLOR": "1",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in self._sessions:
            _end(session)
        for arguments in (["stop"], ["reap", "--force"]) if (self.place / "run").exists() else ():
            subprocess.run(
                ["dart-farm", *arguments], env=self._environment, cwd=self.place, check=False, capture_output=True
            )
        shutil.rmtree(self.place, ignore_errors=True)

    def _make_environment(self) -> Path:
        """A Python environment that has what this one has, and takes what a page installs. Returns its folder of programs."""
        folder = self.place / "venv"
        venv.create(folder, symlinks=True)
        (site,) = folder.glob("lib/python*/site-packages")
        shared = sysconfig.get_paths()["purelib"]
        (site / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n", encoding="utf-8")
        python = folder / "bin" / "python"
        for program in [*Path(sys.executable).parent.glob("dart-*"), *Path(sys.executable).parent.glob("pip")]:
            _, _, body = program.read_text(encoding="utf-8").partition("\n")
            copy = folder / "bin" / program.name
            copy.write_text(f"#!{python}\n{body}", encoding="utf-8")
            copy.chmod(0o755)
        return python.parent

    def do(self, snippet: Snippet) -> str | None:
        """Execute a block; returns what went wrong, or None."""
        if snippet.treatment == "file":
            path = self.folder / snippet.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(snippet.text, encoding="utf-8")
        elif snippet.treatment == "output":
            if not doctest.OutputChecker().check_output(snippet.text, self.output, _COMPARISON):
                return f"the block before printed something else:\n{self.output}"
        elif snippet.treatment == "run":
            code = self._run(snippet)
            if self._late:
                return f"it had not ended after {BLOCK_LIMIT_S:.0f} s:\n{self.output}"
            if code not in snippet.exit_codes:
                wanted = " or ".join(map(str, snippet.exit_codes))
                return f"exit code {code} in place of {wanted}:\n{self.output}"
        return None

    def _run(self, snippet: Snippet) -> int:
        """Run a block of the shell or of Python. Its output goes to a file of its own, which programs in the background may keep open."""
        text = snippet.text
        if snippet.language == "python":
            (self.place / "block.py").write_text(text, encoding="utf-8")
            text = f"python {self.place / 'block.py'}\n"
        script = self.place / "block.sh"
        script.write_text(PRELUDE.format(state=self.place / "state") + text, encoding="utf-8")
        printed = self.place / f"printed-{len(self._sessions)}"
        with printed.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                ["bash", str(script)],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._sessions.append(process.pid)
            try:
                code = process.wait(BLOCK_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._late = True
                os.killpg(process.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(ENDING_LIMIT_S)
                _end(process.pid)
                code = process.wait()
        self.output = printed.read_text(encoding="utf-8", errors="replace")
        return code


def _end(session: int) -> None:
    """End what a block left in its process group: gently, so that it cleans up, and then by force."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, signal.SIGTERM)
        subprocess.run(
            [
                "timeout",
                str(ENDING_LIMIT_S),
                "bash",
                "-c",
                f"while kill -0 -- -{session} 2>/dev/null; do sleep 0.1; done",
            ],
            check=False,
        )
        os.killpg(session, signal.SIGKILL)
