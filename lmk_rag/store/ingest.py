"""Documents in: compared with what is stored, encoded in groups, written, then pruned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from lmk_rag.errors import InputError, NonFiniteError, StoreError
from lmk_rag.lexical import WordRule
from lmk_rag.progress import progress_bar
from lmk_rag.store.candidates import Candidate, Skipped, check_document, embedding_fault
from lmk_rag.store.filters import FieldIs
from lmk_rag.store.operations import Backend
from lmk_rag.store.points import Point, document_points, request_batches
from lmk_rag.store.schema import DocumentEncoder
from lmk_rag.types import Document, DocumentEmbedding

_GROUP_DOCUMENTS = 256
_REQUEST_POINTS = 64
# Characters per group, in encoder batches: enough to sort by length, little to lose in a crash.
_GROUP_BATCHES = 12
_CHARS_PER_TOKEN = 4


@dataclass
class AddReport:
    """What `QdrantStore.add` did: ids in the order they were decided.

    Attributes:
        added: stored for the first time.
        updated: stored before with other text or metadata, or incompletely; replaced.
        unchanged: stored already, so not encoded.
        skipped: not stored, with reasons.
    """

    added: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def n_documents(self) -> int:
        """How many documents were decided."""
        return len(self.added) + len(self.updated) + len(self.unchanged) + len(self.skipped)

    @property
    def blank(self) -> list[str]:
        """Ids of what was skipped for having no text; what was stored of them before stays."""
        return [skipped.document_id for skipped in self.skipped if not skipped.is_error]

    def __str__(self) -> str:
        return (
            f"{len(self.added)} added, {len(self.updated)} updated, "
            f"{len(self.unchanged)} unchanged, {len(self.skipped)} skipped"
        )


def ingest(
    backend: Backend,
    encoder: DocumentEncoder,
    documents: Iterable[tuple[Document, DocumentEmbedding | None]],
    *,
    words: WordRule | None,
    show_progress: bool,
    on_progress: Callable[[int], None] | None,
) -> AddReport:
    """Store documents; see `QdrantStore.add`, and `document_points` for `words`."""
    report = AddReport()
    checked = (check_document(d, e, encoder.fingerprint) for d, e in documents)
    max_chars = _GROUP_BATCHES * _CHARS_PER_TOKEN * encoder.batch_tokens
    noted = 0
    with progress_bar("indexing", None, show=show_progress) as advance:

        def note() -> None:
            nonlocal noted
            decided, noted = report.n_documents - noted, report.n_documents
            advance(decided)
            if on_progress is not None and decided:
                on_progress(decided)

        for group in _groups(checked, report, max_chars):
            _add_group(backend, encoder, group, report, words)
            note()
        note()
    return report


def _add_group(
    backend: Backend,
    encoder: DocumentEncoder,
    group: list[Candidate],
    report: AddReport,
    words: WordRule | None,
) -> None:
    ids = [candidate.document.id for candidate in group]
    known = backend.revisions(ids)
    missing = {c.document.id: known.get(c.document.id, {}).get(c.revision) for c in group}
    new = [c for c in group if missing[c.document.id] != set()]
    encoded = _encode(encoder, new)
    skipped = {
        c.document.id: e for c, e in zip(new, encoded, strict=True) if isinstance(e, Skipped)
    }
    written = [(c, e) for c, e in zip(new, encoded, strict=True) if not isinstance(e, Skipped)]
    if written or any(len(revisions) > 1 for revisions in known.values()):
        with backend.writing:
            # Only what was there before is deleted afterwards: of two writers at once, neither
            # can delete what the other has just written.
            before = backend.revisions(ids)
            points = _points(written, skipped, words)
            for batch in request_batches(points, max_points=_REQUEST_POINTS):
                backend.upsert(batch)
            old = [
                revision
                for candidate in group
                if candidate.document.id not in skipped
                for revision in before.get(candidate.document.id, {})
                if revision != candidate.revision
            ]
            if old:
                backend.delete(FieldIs("revision", tuple(old)))
    for id_ in ids:
        if id_ in skipped:
            report.skipped.append(skipped[id_])
        elif missing[id_] == set():
            report.unchanged.append(id_)
        elif id_ in known:
            report.updated.append(id_)
        else:
            report.added.append(id_)


def _points(
    written: Iterable[tuple[Candidate, DocumentEmbedding]],
    skipped: dict[str, Skipped],
    words: WordRule | None,
) -> Iterator[Point]:
    """Yield the points of encoded documents; note those that can't be points."""
    for candidate, embedding in written:
        document = candidate.document
        try:
            points = document_points(
                document,
                candidate.metadata,
                embedding,
                candidate.revision,
                words=words,
            )
        except InputError as error:
            skipped[document.id] = _skip(candidate, str(error))
        else:
            yield from points


def _encode(
    encoder: DocumentEncoder, candidates: list[Candidate]
) -> list[DocumentEmbedding | Skipped]:
    """Keep given embeddings and encode the other texts together; one that fails fails alone."""
    texts = [c.document.text for c in candidates if c.embedding is None]
    try:
        made = list(encoder.encode_documents(texts)) if texts else []
    except (InputError, NonFiniteError) as error:
        if len(candidates) == 1:
            return [_skip(candidates[0], str(error))]
        half = len(candidates) // 2
        return _encode(encoder, candidates[:half]) + _encode(encoder, candidates[half:])
    if len(made) != len(texts):
        raise StoreError(f"{encoder.name!r} gave {len(made)} embeddings for {len(texts)} texts")
    left = iter(made)
    results: list[DocumentEmbedding | Skipped] = []
    for candidate in candidates:
        embedding = next(left) if candidate.embedding is None else candidate.embedding
        fault = embedding_fault(embedding, candidate.document.text, encoder.dim)
        results.append(embedding if fault is None else _skip(candidate, fault))
    return results


def _skip(candidate: Candidate, reason: str) -> Skipped:
    id_ = candidate.document.id
    return Skipped(id_, f"document {id_!r:.200}: {reason}", is_error=True)


def _groups(
    candidates: Iterable[Candidate | Skipped], report: AddReport, max_chars: int
) -> Iterator[list[Candidate]]:
    """Collect candidates into groups to encode and write together; note the skipped ones.

    An id that comes again starts a new group, so that the later one replaces the earlier.
    """
    group: list[Candidate] = []
    ids: set[str] = set()
    size = 0
    for candidate in candidates:
        if isinstance(candidate, Skipped):
            report.skipped.append(candidate)
            continue
        if group and (
            candidate.document.id in ids or len(group) >= _GROUP_DOCUMENTS or size >= max_chars
        ):
            yield group
            group, ids, size = [], set(), 0
        group.append(candidate)
        ids.add(candidate.document.id)
        size += len(candidate.document.text)
    if group:
        yield group
