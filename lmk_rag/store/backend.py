"""The few operations the store needs from Qdrant, and their qdrant-client implementation."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from qdrant_client import QdrantClient, models
from qdrant_client.local.qdrant_local import QdrantLocal

from lmk_rag.errors import StoreError, StoreLockedError
from lmk_rag.store.filters import FieldIs, Filter, translate
from lmk_rag.store.metadata import Json
from lmk_rag.store.points import Point
from lmk_rag.types import Floats

Where = Filter | FieldIs | None

_PAGE = 256
_EXACT_POINTS = 2_000


@dataclass(frozen=True, eq=False)
class Record:
    """A stored point: its id, the payload fields and the vectors that were asked for."""

    id: str
    payload: Json
    vectors: dict[str, Floats]


@dataclass(frozen=True)
class Found:
    """A point found by a vector, with its MaxSim or cosine."""

    id: str
    document_id: str
    score: float


class Backend(Protocol):
    """One collection: `ClientBackend` for servers, `LocalBackend` for folders and memory."""

    @property
    def is_local(self) -> bool:
        """Whether it runs in this process."""

    def read_metadata(self) -> Json | None:
        """Return the collection's metadata, or None if there is no such collection."""

    def create(self, settings: dict[str, Any]) -> None:
        """Create the collection."""

    def upsert(self, points: Sequence[Point]) -> None:
        """Write points and wait until they are stored."""

    def delete(self, document_ids: Sequence[str], *, keep: Sequence[str] = ()) -> None:
        """Delete all points of some documents, but for the revisions in `keep`."""

    def count(self, where: Where = None) -> int:
        """Count points exactly."""

    def scroll(
        self, where: Where, *, fields: Sequence[str], vectors: Sequence[str] = ()
    ) -> Iterator[Record]:
        """Yield all points that fulfill `where`, a page at a time."""

    def fetch(self, ids: Sequence[str], *, vectors: Sequence[str] = ()) -> dict[str, Record]:
        """Return the named points that exist, with their whole payload."""

    def search(
        self,
        query: Floats,
        *,
        using: str,
        limit: int,
        per_document: int = 1,
        where: Where = None,
        prefetch: tuple[str, int] | None = None,
    ) -> list[Found]:
        """Find the best points, at most `per_document` of a document, best documents first.

        Args:
            query: (D,) unit length.
            using: the vector to score by; MaxSim for multi-vectors.
            limit: documents.
            per_document: points per document.
            where: a filter, applied in both stages.
            prefetch: the vector and the number of candidates of a first stage.
        """

    def exact_is_quick(self) -> bool:
        """Whether comparing every landmark costs little."""

    def close(self) -> None:
        """Let the connection or folder go."""


class ClientBackend:
    """A collection behind a `QdrantClient`; one query does both stages.

    Args:
        client: a synchronous client.
        collection: its name there.
        owned: close the client with the store.
    """

    def __init__(self, client: QdrantClient, collection: str, *, owned: bool) -> None:
        self.client = client
        self.collection = collection
        self._owned = owned
        self.is_local = isinstance(getattr(client, "_client", None), QdrantLocal)
        self.lock: AbstractContextManager[Any] = (
            _lock_of(client) if self.is_local else nullcontext()
        )

    def read_metadata(self) -> Json | None:
        """Return the collection's metadata, or None if there is no such collection."""
        with self.lock:
            if not self.client.collection_exists(self.collection):
                return None
            return dict(self.client.get_collection(self.collection).config.metadata or {})

    def create(self, settings: dict[str, Any]) -> None:
        """Create the collection and the payload indexes that filters and grouping need."""
        with self.lock, warnings.catch_warnings():
            # Local mode warns that it has no payload indexes; it needs none.
            warnings.filterwarnings("ignore", message="Payload indexes have no effect")
            self.client.create_collection(self.collection, **settings)
            for name in ("document_id", "revision"):
                self.client.create_payload_index(
                    self.collection, name, models.PayloadSchemaType.KEYWORD
                )
            self.client.create_payload_index(
                self.collection, "segment", models.PayloadSchemaType.INTEGER
            )

    def upsert(self, points: Sequence[Point]) -> None:
        """Write points and wait until they are stored."""
        structs = [
            models.PointStruct(
                id=point.id,
                vector={name: vector.tolist() for name, vector in point.vectors.items()},
                payload=point.payload,
            )
            for point in points
        ]
        with self.lock:
            self.client.upsert(self.collection, structs, wait=True)

    def delete(self, document_ids: Sequence[str], *, keep: Sequence[str] = ()) -> None:
        """Delete all points of some documents, but for the revisions in `keep`."""
        gone = translate(FieldIs("document_id", tuple(document_ids)))
        if keep:
            gone.must_not = [translate(FieldIs("revision", tuple(keep)))]
        with self.lock:
            self.client.delete(self.collection, models.FilterSelector(filter=gone), wait=True)

    def count(self, where: Where = None) -> int:
        """Count points exactly."""
        with self.lock:
            return self.client.count(
                self.collection, count_filter=_optional(where), exact=True
            ).count

    def scroll(
        self, where: Where, *, fields: Sequence[str], vectors: Sequence[str] = ()
    ) -> Iterator[Record]:
        """Yield all points that fulfill `where`, a page at a time."""
        offset: Any = None
        while True:
            with self.lock:
                records, offset = self.client.scroll(
                    self.collection,
                    scroll_filter=_optional(where),
                    limit=_PAGE,
                    offset=offset,
                    with_payload=list(fields) or False,
                    with_vectors=list(vectors) or False,
                )
            yield from map(_record, records)
            if offset is None:
                return

    def fetch(self, ids: Sequence[str], *, vectors: Sequence[str] = ()) -> dict[str, Record]:
        """Return the named points that exist, with their whole payload."""
        if not ids:
            return {}
        with self.lock:
            records = self.client.retrieve(
                self.collection,
                list(ids),
                with_payload=True,
                with_vectors=list(vectors) or False,
            )
        return {record.id: record for record in map(_record, records)}

    def search(
        self,
        query: Floats,
        *,
        using: str,
        limit: int,
        per_document: int = 1,
        where: Where = None,
        prefetch: tuple[str, int] | None = None,
    ) -> list[Found]:
        """Find the best points; see `Backend.search`."""
        with self.lock:
            answer = self.client.query_points_groups(
                self.collection,
                group_by="document_id",
                query=_query(query, using),
                using=using,
                prefetch=None
                if prefetch is None
                else models.Prefetch(
                    query=_query(query, prefetch[0]),
                    using=prefetch[0],
                    limit=prefetch[1],
                    filter=_optional(where),
                ),
                query_filter=_optional(where),
                limit=limit,
                group_size=per_document,
                with_payload=["document_id"],
            )
        return [
            Found(str(hit.id), str(group.id), float(hit.score))
            for group in answer.groups
            for hit in group.hits
        ]

    def exact_is_quick(self) -> bool:
        """Whether comparing every landmark costs little."""
        return self.count() <= _EXACT_POINTS

    def close(self) -> None:
        """Close the client if it is ours."""
        if self._owned:
            with self.lock:
                self.client.close()


def is_local(client: QdrantClient) -> bool:
    """Whether the client runs in this process."""
    return isinstance(getattr(client, "_client", None), QdrantLocal)


def connect(
    location: str | Path, *, api_key: str | None, prefer_grpc: bool, timeout: int
) -> QdrantClient:
    """Open ":memory:", a folder, or a server's URL.

    Raises:
        StoreLockedError: another process or client holds the folder.
        StoreError: the folder can't be used.
    """
    text = str(location)
    if text == ":memory:":
        return QdrantClient(":memory:")
    if text.startswith(("http://", "https://")):
        key = api_key or os.environ.get("QDRANT_API_KEY")
        return QdrantClient(url=text, api_key=key, prefer_grpc=prefer_grpc, timeout=timeout)
    folder = Path(location).expanduser()
    try:
        return QdrantClient(path=str(folder), force_disable_check_same_thread=True)
    except RuntimeError as error:
        if "already accessed" not in str(error):
            raise
        raise StoreLockedError(
            f"the store at {folder} is open in another process or client; close that one, or run "
            "a Qdrant server and use its URL"
        ) from None
    except OSError as error:
        raise StoreError(f"the store at {folder} can't be opened: {error}") from error


_LOCKS: weakref.WeakKeyDictionary[QdrantClient, threading.RLock] = weakref.WeakKeyDictionary()
_LOCKS_GUARD = threading.Lock()


def _lock_of(client: QdrantClient) -> threading.RLock:
    """Return the one lock of a client: two stores may share it."""
    with _LOCKS_GUARD:
        return _LOCKS.setdefault(client, threading.RLock())


def _optional(where: Where) -> models.Filter | None:
    return None if where is None else translate(where)


def _query(query: Floats, using: str) -> Any:
    # A flat list against a multi-vector is an error in local mode: always a list of rows.
    return query.tolist() if using == "document" else [query.tolist()]


def _record(record: Any) -> Record:
    vectors = record.vector if isinstance(record.vector, dict) else {}
    return Record(
        id=str(record.id),
        payload=dict(record.payload or {}),
        vectors={name: np.asarray(value, np.float32) for name, value in vectors.items()},
    )
