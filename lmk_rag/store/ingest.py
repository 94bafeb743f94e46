"""Documents in: compared with what is stored, encoded in groups, written, then pruned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from lmk_rag.progress import progress_bar
from lmk_rag.store.backend import Backend, Where
from lmk_rag.store.candidates import Candidate, Skipped, check_document
from lmk_rag.store.filters import FieldIs
from lmk_rag.store.points import document_points, request_batches
from lmk_rag.store.schema import DocumentEncoder
from lmk_rag.types import Document, DocumentEmbedding

# Per document and revision, the segments that are missing: none where all is stored.
Revisions = dict[str, dict[str, set[int]]]

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
        updated: stored before with other text, metadata or incompletely; replaced.
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
    show_progress: bool,
    on_progress: Callable[[int], None] | None,
) -> AddReport:
    """Store documents; see `QdrantStore.add`."""
    report = AddReport()
    checked = (check_document(d, e, encoder.fingerprint) for d, e in documents)
    max_chars = _GROUP_BATCHES * _CHARS_PER_TOKEN * encoder.batch_tokens
    known: Revisions = {}
    noted = 0
    with progress_bar("indexing", None, show=show_progress) as advance:

        def note() -> None:
            nonlocal noted
            decided, noted = report.n_documents - noted, report.n_documents
            advance(decided)
            if on_progress is not None and decided:
                on_progress(decided)

        for number, group in enumerate(_groups(checked, report, max_chars)):
            # Any lookup in local mode reads the whole collection, so the second is kept.
            if not backend.is_local or number == 0:
                known = stored_revisions(backend, _ids_of(group))
            elif number == 1:
                known = stored_revisions(backend, None)
            _add_group(backend, encoder, group, known, report)
            note()
        note()
    return report


def stored_revisions(backend: Backend, where: Where) -> Revisions:
    """Return, per document and revision, the segments that are missing."""
    found: Revisions = defaultdict(dict)
    fields = ("document_id", "revision", "segment", "n_segments")
    for record in backend.scroll(where, fields=fields):
        id_, revision, segment, total = (record.payload[name] for name in fields)
        missing = found[str(id_)].setdefault(str(revision), set(range(int(str(total)))))
        missing.discard(int(str(segment)))
    return found


def _add_group(
    backend: Backend,
    encoder: DocumentEncoder,
    group: list[Candidate],
    known: Revisions,
    report: AddReport,
) -> None:
    new: list[Candidate] = []
    stale: list[Candidate] = []
    for candidate in group:
        revisions = known.get(candidate.document.id, {})
        complete = candidate.revision in revisions and not revisions[candidate.revision]
        if not complete:
            new.append(candidate)
        if len(revisions) > complete:
            stale.append(candidate)
    points = (
        point
        for candidate, embedding in zip(new, _embeddings(encoder, new), strict=True)
        for point in document_points(
            candidate.document, candidate.metadata, embedding, candidate.revision
        )
    )
    for batch in request_batches(points, max_points=_REQUEST_POINTS):
        backend.upsert(batch)
    if stale:
        keep = [candidate.revision for candidate in stale]
        backend.delete([candidate.document.id for candidate in stale], keep=keep)
    for candidate in group:
        id_ = candidate.document.id
        if candidate not in new:
            report.unchanged.append(id_)
        elif id_ in known:
            report.updated.append(id_)
        else:
            report.added.append(id_)
        known[id_] = {candidate.revision: set()}


def _embeddings(encoder: DocumentEncoder, candidates: list[Candidate]) -> list[DocumentEmbedding]:
    """Return given embeddings as they are and encode the other texts together."""
    texts = [c.document.text for c in candidates if c.embedding is None]
    encoded = iter(encoder.encode_documents(texts) if texts else [])
    return [next(encoded) if c.embedding is None else c.embedding for c in candidates]


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


def _ids_of(group: list[Candidate]) -> FieldIs:
    return FieldIs("document_id", tuple(candidate.document.id for candidate in group))
