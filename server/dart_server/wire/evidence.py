"""What the host says about a desktop: queries, and the answers that no program of the desktop takes part in.

The answer to `EvidenceRequest` is binary, as `EvidenceHeader` says. Non-goals: what a fact means for a task (`dart_envs.evaluators`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from dart_server.wire.base import Flag, Int, WireModel

MAX_EVIDENCE_QUERIES = 64
MAX_EVIDENCE_NBYTES = 96 * 1024**2
"""Of a whole answer, whatever the desktop holds: at most 64 MiB of contents, 16 MiB of everything else."""


def _no_nul(path: str) -> str:
    if "\0" in path:
        raise ValueError("a path has no NUL")
    return path


GuestPath = Annotated[str, StringConstraints(pattern=r"^/", max_length=4096), AfterValidator(_no_nul)]


def _with_kind(schema: dict[str, Any]) -> None:
    """A query's kind is never left out, though only one is possible."""
    schema["required"] = sorted({"kind", *schema.get("required", ())})


class _Query(WireModel):
    model_config = ConfigDict(json_schema_extra=_with_kind)


class FileQuery(_Query):
    """The content of a regular file; links are followed inside the desktop.

    Attributes:
        path: Absolute path inside the desktop.
        limit_nbytes: A larger file is refused with `too_large`.
    """

    kind: Literal["file"] = "file"
    path: GuestPath
    limit_nbytes: Int = Field(default=16 * 1024**2, ge=1, le=64 * 1024**2)


class StatQuery(_Query):
    """What a path is.

    Attributes:
        path: Absolute path inside the desktop.
        follow: Whether a link stands for what it leads to.
    """

    kind: Literal["stat"] = "stat"
    path: GuestPath
    follow: Flag = True


class TreeQuery(_Query):
    """Everything below a folder. Links are named, not followed.

    Attributes:
        path: Absolute path inside the desktop.
        max_entries: A folder that holds more is refused with `too_many_entries`.
        max_depth: Levels of folders; a deeper tree is refused with `too_deep`.
        digests: Whether each file of at most 32 MiB comes with its sha256.
    """

    kind: Literal["tree"] = "tree"
    path: GuestPath
    max_entries: Int = Field(default=2_000, ge=1, le=20_000)
    max_depth: Int = Field(default=32, ge=1, le=64)
    digests: Flag = False


class ProcessesQuery(_Query):
    """All processes, as the host's kernel has them.

    Attributes:
        code: Whether to look at the program code that each process has mapped, too.
    """

    kind: Literal["processes"] = "processes"
    code: Flag = False


EvidenceQuery = Annotated[FileQuery | StatQuery | TreeQuery | ProcessesQuery, Field(discriminator="kind")]


class EvidenceRequest(WireModel):
    """Queries that are answered about one moment, while the desktop stands still."""

    queries: list[EvidenceQuery] = Field(min_length=1, max_length=MAX_EVIDENCE_QUERIES)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class FileFacts(_Answer):
    """What a path is.

    Attributes:
        kind: `file`, `folder`, `link`, `pipe`, `socket`, `device` or `other`.
        nbytes: Its size.
        mode: Permission bits.
        uid: Number of its owner inside the desktop.
        gid: Number of its group inside the desktop.
        modified_s: When it was changed last, seconds since 1970 on the host's clock.
        identity: Device and inode, by which `ProcessFacts.watched` names it.
        target: What a link says.
        real_path: Its path without links; not in a tree.
        from_image: Whether it is unchanged from the image; not in a tree.
        path: Its path below the folder, in a tree.
        sha256: Digest of a file in a tree, where asked for.
        access_list: Whether an entry of a tree has an access list beside its permission bits; only where it has.
    """

    kind: str
    nbytes: int
    mode: int
    uid: int
    gid: int
    modified_s: float
    identity: str | None = None
    target: str | None = None
    real_path: str | None = None
    from_image: bool | None = None
    path: str | None = None
    access_list: bool | None = None
    sha256: str | None = None


class ListeningPort(_Answer):
    """A TCP socket that waits for connections."""

    address: str
    port: int


class ProcessFacts(_Answer):
    """One process.

    Attributes:
        pid: Its number inside the desktop.
        uid: Number of its user inside the desktop.
        gid: Number of its group inside the desktop; None where its real, effective, saved and file-system groups differ.
        state: One letter, as ps(1) has it: `Z` has ended, `T` is stopped.
        started_s: When it began, seconds since the host's boot.
        argv: What it says that it was started with: its own claim.
        executable: Path of the file that it executes, without links.
        from_image: Whether that file is unchanged from the image.
        code_from_image: Whether all program code that it mapped is, too; None where not asked for.
        open_files: Paths of files that it holds open, the first 64.
        listening: Where it waits for connections.
        watched: Identities of files and folders of which it wants to be told changes (inotify), the first 256.
    """

    pid: int
    uid: int
    gid: int | None = None
    state: str
    started_s: float
    argv: list[str]
    executable: str
    from_image: bool
    code_from_image: bool | None = None
    open_files: list[str] = Field(default_factory=list)
    listening: list[ListeningPort] = Field(default_factory=list)
    watched: list[str] = Field(default_factory=list)


class EvidenceAnswer(_Answer):
    """The answer to one query; which fields it has follows from the query's kind.

    Attributes:
        error: Why there is none: `not_found`, `not_regular_file`, `not_a_folder`, `not_readable`, `too_large`, `too_many_entries`,
            `too_deep`, `too_slow`. The last means that looking takes more time, descriptors or kernel tables than a request has.
        facts: Of `file` and `stat`.
        offset: Where the content of a file begins, behind the header.
        content_nbytes: How long it is.
        entries: Of `tree`, sorted by path.
        processes: The oldest first.
    """

    error: str | None = None
    facts: FileFacts | None = None
    offset: int | None = None
    content_nbytes: int | None = None
    entries: list[FileFacts] | None = None
    processes: list[ProcessFacts] | None = None


class EvidenceHeader(_Answer):
    """JSON header of the answer: 4 bytes big-endian header length, this header, then the contents of files.

    Attributes:
        source: Who looked.
        frozen: Whether the desktop stood still; False where a process could not be stopped.
        pause_s: For how long.
        answers: One for each query, in order.
    """

    source: Literal["host"]
    frozen: bool
    pause_s: float
    answers: list[EvidenceAnswer]
