"""Qdrant through its client: one implementation of the operations for servers and local mode."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from traceback import walk_tb
from typing import Any

import grpc  # type: ignore[import-untyped]  # it ships no types
from qdrant_client import AsyncQdrantClient, QdrantClient, models
from qdrant_client.common.client_exceptions import QdrantException, ResourceExhaustedResponse
from qdrant_client.http.exceptions import ApiException
from qdrant_client.local.qdrant_local import QdrantLocal

from lmk_rag.errors import InputError, StoreError, UnsupportedFilterError
from lmk_rag.lexical import WordVector
from lmk_rag.store.filters import FieldIs, translate
from lmk_rag.store.metadata import Json
from lmk_rag.store.operations import (
    Found,
    Record,
    Revisions,
    Where,
    query_rows,
    read_record,
    store_locked,
    stored_revisions,
)
from lmk_rag.store.points import LANDMARKS, Point
from lmk_rag.types import QueryEmbedding

_PAGE = 256
_LOCAL_PAGE = 1_000_000  # local mode sorts and tests all points for every page
_EXACT_POINTS = 4_000
_OWN_FIELDS = {
    "document_id": models.PayloadSchemaType.KEYWORD,
    "revision": models.PayloadSchemaType.KEYWORD,
    "segment": models.PayloadSchemaType.INTEGER,
}
# Of servers, of either protocol; of local mode, which raises builtins, and its files.
_REFUSALS = (ApiException, QdrantException, grpc.RpcError, ValueError, sqlite3.Error, OSError)
_NO_FOLDER = re.compile(r"[\w.-]+:\d+|[a-z]\w+://.*", re.IGNORECASE)  # a host, or a URL


class ClientBackend:
    """A collection behind a `QdrantClient`; one query does both stages.

    Args:
        client: a synchronous client.
        collection: its name there.
        owned: close the client with the store.
        place: what errors call it.
    """

    def __init__(
        self, client: QdrantClient, collection: str, *, owned: bool, place: str = "your client"
    ) -> None:
        self.client = client
        self.collection = collection
        self._owned = owned
        self._place = place
        if isinstance(client, AsyncQdrantClient):
            raise InputError("client is an AsyncQdrantClient; expected a QdrantClient")
        self.is_local = isinstance(getattr(client, "_client", None), QdrantLocal)
        # Local mode has no locks of its own; concurrent writes would corrupt it for good.
        self.lock: AbstractContextManager[Any] = nullcontext()
        self.writing: AbstractContextManager[Any] = nullcontext()
        if self.is_local:
            self.lock, self.writing = _locks_of(client)

    def read_metadata(self) -> Json | None:
        """Return the collection's metadata, or None if there is no such collection."""
        with self._session():
            if not self.client.collection_exists(self.collection):
                return None
            return dict(self.client.get_collection(self.collection).config.metadata or {})

    def create(self, settings: dict[str, Any]) -> None:
        """Create the collection, unless another process has just done so."""
        with self._session():
            try:
                self.client.create_collection(self.collection, **settings)
            except (ApiException, grpc.RpcError, ValueError):
                if not self.client.collection_exists(self.collection):
                    raise

    def index(self, fields: Mapping[str, models.PayloadSchemaType]) -> None:
        """Make the payload indexes that are missing; see `Backend.index`."""
        with self._session(), warnings.catch_warnings():
            # Local mode warns that it has no payload indexes; it needs none.
            warnings.filterwarnings("ignore", message="Payload indexes have no effect")
            there = self.client.get_collection(self.collection).payload_schema
            for name, kind in (_OWN_FIELDS | dict(fields)).items():
                if name not in there:
                    self.client.create_payload_index(self.collection, name, kind)

    def revisions(self, document_ids: Sequence[str]) -> Revisions:
        """Return what is stored of some documents."""
        return stored_revisions(self, document_ids)

    def upsert(self, points: Sequence[Point]) -> None:
        """Write points and wait until they are stored."""
        structs = [
            models.PointStruct(
                id=point.id,
                vector={name: vector.tolist() for name, vector in point.vectors.items()}
                | {name: _sparse(words) for name, words in point.words.items()},
                payload=point.payload,
            )
            for point in points
        ]
        with self._session():
            self.client.upsert(self.collection, structs, wait=True)

    def delete(self, which: FieldIs) -> None:
        """Delete points by document or revision, and wait until they are gone."""
        self._delete(models.FilterSelector(filter=translate(which)))

    def delete_points(self, ids: Sequence[str]) -> None:
        """Delete points by their ids."""
        if ids:
            self._delete(models.PointIdsList(points=list(ids)))

    def _delete(self, selector: models.PointsSelector) -> None:
        with self._session():
            self.client.delete(self.collection, selector, wait=True)

    def count(self, where: Where = None) -> int:
        """Count points exactly."""
        condition = _optional(where)
        with self._session():
            return self.client.count(self.collection, count_filter=condition, exact=True).count

    def scroll(
        self, where: Where, *, fields: Sequence[str], vectors: Sequence[str] = ()
    ) -> Iterator[Record]:
        """Yield all points that fulfill `where`, a page at a time."""
        condition = _optional(where)
        page = _LOCAL_PAGE if self.is_local and not vectors else _PAGE
        offset: Any = None
        while True:
            with self._session():
                records, offset = self.client.scroll(
                    self.collection,
                    scroll_filter=condition,
                    limit=page,
                    offset=offset,
                    with_payload=list(fields) or False,
                    with_vectors=list(vectors) or False,
                )
            yield from map(read_record, records)
            if offset is None:
                return

    def fetch(
        self,
        ids: Sequence[str],
        *,
        fields: Sequence[str] | None = None,
        vectors: Sequence[str] = (),
    ) -> dict[str, Record]:
        """Return the named points that exist, with some payload fields or (None) all."""
        if not ids:
            return {}
        with self._session():
            records = self.client.retrieve(
                self.collection,
                list(ids),
                with_payload=True if fields is None else list(fields),
                with_vectors=list(vectors) or False,
            )
        return {record.id: record for record in map(read_record, records)}

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
        """Find the best points; see `Backend.search`."""
        # Landmarks have no graph to search; this keeps a server from sampling.
        exact = using == LANDMARKS and not self.is_local
        request: dict[str, Any] = {
            "query": query_rows(query, using),
            "using": using,
            "group_size": per_document,
            "search_params": models.SearchParams(exact=True) if exact else None,
        }
        if prefetch is None:
            found = self._all_groups(request, where, limit)
        else:
            condition = _optional(where)
            request["prefetch"] = models.Prefetch(
                query=query_rows(query, prefetch[0]),
                using=prefetch[0],
                limit=prefetch[1],
                filter=condition,
            )
            found = self._groups(request, condition, limit)
        return [replace(hit, score=min(max(hit.score, -1.0), 1.0)) for hit in found]

    def search_sparse(
        self, query: WordVector, *, using: str, limit: int, where: Where = None
    ) -> list[Found]:
        """Find points by words; see `Backend.search_sparse`."""
        # A server counts over its index otherwise, where deleted points stay for a while;
        # versions that don't know this parameter go on doing so.
        corpus = models.Filter(must=[models.HasVectorCondition(has_vector=using)])
        params = models.SearchParams(idf=models.IdfCorpusParams(corpus=corpus))
        request: dict[str, Any] = {
            "query": _sparse(query),
            "using": using,
            "group_size": 1,
            "search_params": None if self.is_local else params,
        }
        return self._all_groups(request, where, limit)

    def _all_groups(self, request: dict[str, Any], where: Where, limit: int) -> list[Found]:
        """Ask for documents until there are `limit`, or no more.

        A server looks for groups a few times only, so documents with many good points hide others.
        """
        condition = _optional(where)
        found = self._groups(request, condition, limit)
        while True:
            ids = list(dict.fromkeys(hit.document_id for hit in found))
            if not ids or len(ids) == limit:
                return found
            known = models.FieldCondition(key="document_id", match=models.MatchAny(any=ids))
            others = models.Filter(must=[condition] if condition else None, must_not=[known])
            more = self._groups(request, others, limit - len(ids))
            if not more:
                return found
            best: dict[str, float] = {}
            for hit in found + more:
                best[hit.document_id] = max(hit.score, best.get(hit.document_id, hit.score))
            found = sorted(found + more, key=lambda hit: -best[hit.document_id])

    def _groups(
        self, request: dict[str, Any], condition: models.Filter | None, limit: int
    ) -> list[Found]:
        with self._session():
            answer = self.client.query_points_groups(
                self.collection,
                group_by="document_id",
                query_filter=condition,
                limit=limit,
                with_payload=["document_id"],
                **request,
            )
        return [
            Found(str(hit.id), str(group.id), float(hit.score))
            for group in answer.groups
            for hit in group.hits
        ]

    def exact_is_quick(self) -> bool:
        """Whether comparing every landmark costs little; an exact count would read all ids."""
        with self._session():
            return self.client.count(self.collection, exact=False).count <= _EXACT_POINTS

    def close(self) -> None:
        """Close the client if it is ours."""
        if self._owned:
            with self.lock:
                self.client.close()

    @contextmanager
    def _session(self) -> Iterator[None]:
        with self.lock:
            try:
                yield
            except _REFUSALS as error:
                told = f"Qdrant at {self._place}, collection {self.collection!r}: {error}"
                if isinstance(error, ResourceExhaustedResponse):
                    told += f"; try again in {error.retry_after_s} s"
                if "index required but not found" in told.lower():
                    raise UnsupportedFilterError(
                        f"{told}. Open the store with an index for that entry of the metadata: "
                        "options=CollectionOptions(payload_indexes={key: kind})"
                    ) from error
                raise StoreError(told) from error


def folder_of(location: str | Path) -> Path | None:
    """Return the folder a location names, or None for memory and servers.

    Raises:
        InputError: neither, such as a host without http://.
    """
    text = str(location)
    if text == ":memory:" or text.startswith(("http://", "https://")):
        return None
    if not isinstance(location, str | Path) or not text or _NO_FOLDER.fullmatch(text):
        raise InputError(
            f"location is {location!r:.80}; expected ':memory:', a folder, or a URL that begins "
            "with http:// or https://"
        )
    return Path(location).expanduser()


def connect(
    location: str | Path, *, api_key: str | None, prefer_grpc: bool, timeout: int
) -> QdrantClient:
    """Open ":memory:", a folder, or a server's URL.

    Raises:
        StoreLockedError: another process or client holds the folder.
        StoreError: the folder can't be used.
    """
    folder = folder_of(location)
    text = str(location)
    if text == ":memory:":
        return QdrantClient(":memory:")
    if folder is None:
        key = api_key or os.environ.get("QDRANT_API_KEY")
        return QdrantClient(
            url=text,
            api_key=key,
            prefer_grpc=prefer_grpc,
            timeout=timeout,
            check_compatibility=False,  # it asks and warns from a thread; the store checks itself
        )
    try:
        return QdrantClient(path=str(folder), force_disable_check_same_thread=True)
    except Exception as error:
        _close_lock_files(error)
        if not isinstance(error, RuntimeError) or "already accessed" not in str(error):
            raise StoreError(f"the store at {folder} can't be opened: {error!r}") from error
        raise store_locked(folder) from None


def _close_lock_files(error: Exception) -> None:
    """Close the lock file that a client leaves open when its constructor fails."""
    for frame, _ in walk_tb(error.__traceback__):
        lock_file = getattr(frame.f_locals.get("self"), "_flock_file", None)
        if lock_file is not None:
            lock_file.close()


_LOCKS: weakref.WeakKeyDictionary[QdrantClient, tuple[threading.RLock, threading.RLock]]
_LOCKS = weakref.WeakKeyDictionary()
_LOCKS_GUARD = threading.Lock()


def _locks_of(client: QdrantClient) -> tuple[threading.RLock, threading.RLock]:
    """Return the locks of a client, for one call and for several writes: stores may share it."""
    with _LOCKS_GUARD:
        return _LOCKS.setdefault(client, (threading.RLock(), threading.RLock()))


def _sparse(vector: WordVector) -> models.SparseVector:
    return models.SparseVector(indices=vector.indices.tolist(), values=vector.values.tolist())


def _optional(where: Where) -> models.Filter | None:
    return None if where is None else translate(where)
