"""`lmk-rag index`: files into the store."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from lmk_rag.cli.opening import open_store
from lmk_rag.cli.options import (
    DEFAULT_COLLECTION,
    DEFAULT_STORE,
    BoundaryOption,
    CollectionOption,
    DeviceOption,
    DtypeOption,
    EncodingOption,
    GranularityOption,
    JsonOption,
    MaxLengthOption,
    ModelChoice,
    ModelOption,
    StdinIdOption,
    StoreOption,
)
from lmk_rag.cli.terminal import counted, print_json, say, say_error, shown
from lmk_rag.errors import InputError
from lmk_rag.files import FileProblem, FileSource
from lmk_rag.listing import real_path
from lmk_rag.progress import progress_bar

if TYPE_CHECKING:
    from lmk_rag import Document, DocumentEmbedding, QdrantStore
    from lmk_rag.store import AddReport, DocumentEncoder

_CHARS_AT_ONCE = 8  # per token of a batch: two batches
_EXAMPLES = 3  # files named per reason, when many fail for the same one


def index(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH", help="Files, folders, quoted patterns ('docs/**/*.md'), or '-'."
        ),
    ],
    store: StoreOption = DEFAULT_STORE,
    collection: CollectionOption = DEFAULT_COLLECTION,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Remove documents below PATH whose files are gone or blank."),
    ] = False,
    stdin_id: StdinIdOption = "stdin",
    encoding: EncodingOption = "utf-8",
    model: ModelOption = None,
    granularity: GranularityOption = None,
    boundary: BoundaryOption = None,
    max_length: MaxLengthOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Index files: text, Markdown, HTML, source code, PDF and Office.

    What is indexed and unchanged is left alone, so an interrupted run goes on where it stopped.
    Hidden files and folders, __pycache__, node_modules and virtual environments are left out, and
    so are links that lead out of the folder. PDF and Office need the extra `files`.
    """
    started = time.perf_counter()
    choice = ModelChoice(model, device, dtype, granularity, boundary, max_length)
    source = open_source(paths, encoding=encoding, stdin_id=stdin_id, exclude=store)
    if len(source) or prune:
        with open_store(store, collection, choice) as opened:
            report = add_documents(opened, source.documents(), len(source))
            stale = [document.id for document in opened.get(report.blank)]
            gone = _prune(opened, source, stale) if prune else []
    else:
        from lmk_rag.store import AddReport

        report, stale, gone = AddReport(), [], []
    problems = source.problems + [
        FileProblem(skipped.document_id, skipped.reason)
        for skipped in report.skipped
        if skipped.is_error
    ]
    problems += _missing(source, gone)
    stale = [id_ for id_ in stale if id_ not in gone]
    seconds = time.perf_counter() - started
    if as_json:
        print_json(
            {
                "added": report.added,
                "updated": report.updated,
                "unchanged": report.unchanged,
                "removed": gone,
                "blank": report.blank,
                "stale": stale,
                "not_text": source.not_text,
                "errors": [{"path": p.path, "reason": p.reason} for p in problems],
                "seconds": round(seconds, 3),
            }
        )
    else:
        typer.echo(_summary(report, gone, source.not_text, store, seconds))
    for id_ in stale:
        say(f"{shown(id_)}: blank now; its earlier text stays in the store (--prune removes it)")
    say_problems(problems)
    if problems:
        raise typer.Exit(1)


def open_source(
    paths: list[str], *, encoding: str, stdin_id: str = "stdin", exclude: str | None = None
) -> FileSource:
    """List the files; options that make no sense are wrong usage."""
    if stdin_id != "stdin" and "-" not in paths:
        raise typer.BadParameter("--id names standard input, but '-' is not among the paths")
    if not stdin_id:
        raise typer.BadParameter("--id is empty; a document needs an id")
    folder = None if exclude is None or "://" in exclude else real_path(exclude)
    if folder is not None and folder in map(real_path, paths):
        raise typer.BadParameter(f"{exclude} is the store; it can't hold what is indexed, too")
    try:
        return FileSource(paths, encoding=encoding, stdin_id=stdin_id, exclude=folder)
    except InputError as error:
        raise typer.BadParameter(str(error)) from error


def say_problems(problems: list[FileProblem]) -> None:
    """Report what could not be read: a line each, or a few lines where many have one reason."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        by_reason[problem.reason].append(problem.path)
    for reason, paths in by_reason.items():
        for path in paths[:_EXAMPLES]:
            say_error(f"{shown(path)}: {reason}")
        if len(paths) > _EXAMPLES:
            say_error(f"and {counted(len(paths) - _EXAMPLES, 'more file')}: {reason}")


def add_documents(store: QdrantStore, documents: Iterable[Document], total: int) -> AddReport:
    """Store documents under a progress bar that moves as each few are encoded."""
    with progress_bar("indexing", total, show=True) as advance:
        encoder = _WatchedEncoder(store.encoder, advance)
        store.encoder = encoder
        return store.add(documents, on_progress=encoder.settle)


class _WatchedEncoder:
    """An encoder that tells how far it is: the store itself tells only when a group is written."""

    def __init__(self, encoder: DocumentEncoder, advance: Callable[[int], None]) -> None:
        self.name, self.dim, self.fingerprint = encoder.name, encoder.dim, encoder.fingerprint
        self.config, self.batch_tokens = encoder.config, encoder.batch_tokens
        self.encode_queries = encoder.encode_queries
        self.encode_query_parts = encoder.encode_query_parts
        self._encode = encoder.encode_documents
        self._advance = advance
        self._ahead = 0

    def encode_documents(self, texts: list[str], /) -> list[DocumentEmbedding]:
        """Encode texts a few batches at a time: enough to fill each one."""
        embeddings: list[DocumentEmbedding] = []
        few: list[str] = []
        for i, text in enumerate(texts, 1):
            few.append(text)
            if i == len(texts) or sum(map(len, few)) >= _CHARS_AT_ONCE * self.batch_tokens:
                embeddings += self._encode(few)
                self._advance(len(few))
                self._ahead += len(few)
                few = []
        return embeddings

    def settle(self, decided: int) -> None:
        """Count what the store has decided since the last call, which was partly told before."""
        self._advance(decided - self._ahead)
        self._ahead = 0


def _prune(store: QdrantStore, source: FileSource, stale: list[str]) -> list[str]:
    gone = {info.id for info in store.documents() if source.is_gone(info.id)}
    gone.update(stale)
    store.delete(sorted(gone))
    return sorted(gone)


def _missing(source: FileSource, gone: list[str]) -> list[FileProblem]:
    """Paths that name nothing, but for those whose documents were just removed."""
    return [
        FileProblem(given, "no such file or folder, and no file matches it as a pattern")
        for given in source.missing
        if not any(source.covered_by(given, document_id) for document_id in gone)
    ]


def _summary(
    report: AddReport,
    gone: list[str],
    not_text: int,
    store: str,
    seconds: float,
) -> str:
    counts = {
        "added": len(report.added),
        "updated": len(report.updated),
        "unchanged": len(report.unchanged),
        "removed": len(gone),
        "blank": len(report.blank),
    }
    told = [f"{n:,} {what}" for what, n in counts.items() if n] or ["nothing to index"]
    if not_text:
        told.append(f"{counted(not_text, 'binary file')} left out")
    return f"{store}: {', '.join(told)} ({seconds:.1f} s)"
