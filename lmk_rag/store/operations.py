"""The few operations the store needs from Qdrant: what a backend must do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from qdrant_client import models

from lmk_rag.errors import StoreLockedError
from lmk_rag.lexical import WordVector
from lmk_rag.store.filters import FieldIs, Filter
from lmk_rag.store.metadata import Json
from lmk_rag.store.points import DOCUMENT, DOCUMENT_WORDS, LANDMARKS, WORDS, Point
from lmk_rag.types import Floats, QueryEmbedding

Where = Filter | FieldIs | None

# Per document and revision, the segments that are missing: none where all is stored.
Revisions = dict[str, dict[str, set[int]]]


@dataclass(frozen=True, eq=False)
class Record:
    """A stored point: its id, the payload fields and the vectors that were asked for."""

    id: str
    payload: Json
    vectors: dict[str, Floats]
    words: dict[str, WordVector] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """A point found by a vector, with its MaxSim or cosine, or by words, with its BM25."""

    id: str
    document_id: str
    score: float


class Backend(Protocol):
    """One collection: `ClientBackend` of a server, `EdgeBackend` and `LocalBackend` in here."""

    @property
    def is_local(self) -> bool:
        """Whether it runs in this process."""

    @property
    def writing(self) -> AbstractContextManager[Any]:
        """Hold this over writes that belong together; in local mode others then wait."""

    def read_metadata(self) -> Json | None:
        """Return the collection's metadata, or None if there is no such collection."""

    def create(self, settings: dict[str, Any]) -> None:
        """Create the collection, unless another process has just done so."""

    def index(self, fields: Mapping[str, models.PayloadSchemaType]) -> None:
        """Make the payload indexes that filters need and that are missing: our own, and these.

        Only servers have them: a run that was killed between a collection and its indexes, or an
        earlier version, may have left some out.
        """

    def revisions(self, document_ids: Sequence[str]) -> Revisions:
        """Return what is stored of some documents; those of which nothing is are left out."""

    def upsert(self, points: Sequence[Point]) -> None:
        """Write points and wait until they are stored."""

    def delete(self, which: FieldIs) -> None:
        """Delete points by document or revision, and wait until they are gone."""

    def count(self, where: Where = None) -> int:
        """Count points exactly."""

    def scroll(
        self, where: Where, *, fields: Sequence[str], vectors: Sequence[str] = ()
    ) -> Iterator[Record]:
        """Yield all points that fulfill `where`, a page at a time."""

    def fetch(
        self,
        ids: Sequence[str],
        *,
        fields: Sequence[str] | None = None,
        vectors: Sequence[str] = (),
    ) -> dict[str, Record]:
        """Return the named points that exist, with some payload fields or (None) all."""

    def search(
        self,
        query: QueryEmbedding,
        *,
        using: str,
        limit: int,
        per_document: int = 1,
        where: Where = None,
        prefetch: tuple[str, int] | None = None,
    ) -> list[Found]:
        """Find the best points, at most `per_document` of a document, best documents first.

        Args:
            query: landmarks are compared with its rows, all else with its vector.
            using: the vector to score by; MaxSim for multi-vectors.
            limit: documents.
            per_document: points per document.
            where: a filter, applied in both stages.
            prefetch: the vector and the number of candidates of a first stage.
        """

    def search_sparse(
        self, query: WordVector, *, using: str, limit: int, where: Where = None
    ) -> list[Found]:
        """Find the points that hold a word of the query, one per document, by BM25, best first.

        How rare a word is gets counted over all points that have such words, filter or not.

        Args:
            query: its terms, at least one, and the weight of each.
            using: the sparse vector to score by.
            limit: documents.
            where: a filter.
        """

    def exact_is_quick(self) -> bool:
        """Whether comparing every landmark costs little."""

    def close(self) -> None:
        """Let the connection or folder go."""


def read_record(record: Any) -> Record:
    """Turn a point as either client gives it into ours."""
    vectors = dict(record.vector) if isinstance(record.vector, dict) else {}
    sparse = {name: vectors.pop(name) for name in (WORDS, DOCUMENT_WORDS) if name in vectors}
    return Record(
        id=str(record.id),
        payload=dict(record.payload or {}),
        vectors={name: np.asarray(value, np.float32) for name, value in vectors.items()},
        words={
            name: WordVector(
                np.asarray(value.indices, np.uint32), np.asarray(value.values, np.float32)
            )
            for name, value in sparse.items()
        },
    )


def query_rows(query: QueryEmbedding, using: str) -> Any:
    """Return a query as Qdrant takes it: a flat list against a multi-vector is an error."""
    if using == LANDMARKS:
        return query.rows.tolist()
    return query.vector.tolist() if using == DOCUMENT else [query.vector.tolist()]


def completed(
    found: list[Found], others: list[Found], where: Where, ask: Callable[[int, Where], list[Found]]
) -> list[Found]:
    """Return a ranking with the documents that only another has: a sum needs both scores.

    Args:
        found: a ranking.
        others: the other.
        where: the filter of both.
        ask: the search that made `found`, by limit and filter.
    """
    known = {hit.document_id for hit in found}
    ids = tuple(hit.document_id for hit in others if hit.document_id not in known)
    if not ids:
        return found
    also = where.also if isinstance(where, FieldIs) else where
    return found + ask(len(ids), FieldIs("document_id", ids, also=also))


def stored_revisions(backend: Backend, document_ids: Sequence[str]) -> Revisions:
    """Return what is stored of some documents, from the points themselves."""
    fields = ("document_id", "revision", "segment", "n_segments")
    records = backend.scroll(FieldIs("document_id", tuple(document_ids)), fields=fields)
    values: Any = (tuple(record.payload[name] for name in fields) for record in records)
    return collect_revisions(values)


def store_locked(folder: Path) -> StoreLockedError:
    """Return the one-line remedy for a folder that somebody else holds."""
    return StoreLockedError(
        f"the store at {folder} is open in another process or client; close that one, or run "
        "a Qdrant server and use its URL"
    )


def collect_revisions(segments: Iterable[tuple[str, str, int, int]]) -> Revisions:
    """Build `Revisions` from document id, revision, segment and number of segments."""
    found: Revisions = {}
    for document_id, revision, segment, n_segments in segments:
        missing = found.setdefault(document_id, {}).setdefault(revision, set(range(n_segments)))
        missing.discard(segment)
    return found
