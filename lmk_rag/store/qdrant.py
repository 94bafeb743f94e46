"""`QdrantStore`: documents with their vectors in one Qdrant collection."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from qdrant_client import QdrantClient

from lmk_rag.errors import ClosedError, CollectionMismatchError, ConfigError, InputError, StoreError
from lmk_rag.store.candidates import Skipped, check_document
from lmk_rag.store.filters import FieldIs, Filter, metadata_path
from lmk_rag.store.ingest import AddReport, ingest
from lmk_rag.store.metadata import Json
from lmk_rag.store.opening import Engine, open_backend
from lmk_rag.store.operations import Found, Where
from lmk_rag.store.points import DOCUMENT, LANDMARKS, Segment, join_segments, with_metadata
from lmk_rag.store.schema import (
    CollectionOptions,
    DocumentEncoder,
    check_description,
    collection_settings,
    stored_description,
    takes_parts,
    word_rule,
)
from lmk_rag.store.word_search import search_words
from lmk_rag.types import Document, DocumentEmbedding, Floats, QueryEmbedding

if TYPE_CHECKING:
    from typing_extensions import Self

_IDS_AT_ONCE = 1_000
_SEGMENT_FIELDS = [name for name in Segment.__dataclass_fields__ if name != "rows"]


@dataclass(frozen=True)
class DocumentInfo:
    """A stored document without its text."""

    id: str
    metadata: Json
    n_tokens: int
    n_landmarks: int
    n_segments: int
    revision: str


class QdrantStore:
    """Documents in Qdrant: a document vector, section vectors and landmark vectors each.

    Args:
        collection: made if it is not there; one made by another encoder is refused.
        encoder: a `LandmarkEncoder`, or anything with its shape.
        location: ":memory:", a folder, or the URL of a server. Ignored with `client`.
        engine: what keeps a folder: `edge` (Qdrant Edge, extra `edge`), `local` (qdrant-client's
            local mode), or `auto`: the one that made it, and for a new one edge if installed.
        client: a `qdrant_client.QdrantClient` of yours; it stays yours to close.
        api_key: for a server; None: the environment's QDRANT_API_KEY.
        options: how a new collection is laid out.
        prefer_grpc, timeout: how a server is spoken to; seconds.

    A document is stored in segments of at most 1,024 tokens, each with all of the metadata, so that
    filters see it.

    Thread-safe. Close it, or use `with`, to let a folder go.

    Raises:
        StoreLockedError: another process or client holds the folder.
        CollectionMismatchError: the collection was made otherwise; nothing is changed.
        ConfigError: the encoder can't encode queries in parts.
    """

    def __init__(
        self,
        collection: str,
        *,
        encoder: DocumentEncoder,
        location: str | Path = ":memory:",
        client: QdrantClient | None = None,
        engine: Engine = "auto",
        api_key: str | None = None,
        options: CollectionOptions | None = None,
        prefer_grpc: bool = False,
        timeout: int = 60,
    ) -> None:
        if not callable(getattr(encoder, "encode_query_parts", None)):
            raise ConfigError(
                f"the encoder, a {type(encoder).__name__}, has no method encode_query_parts, which "
                "searches need; lmk_rag.queries.vector_only makes what it returns from one vector"
            )
        self.collection = collection
        self.encoder = encoder
        self._location = "client" if client is not None else str(location)
        self._backend = open_backend(
            collection,
            location=location,
            client=client,
            engine=engine,
            api_key=api_key,
            prefer_grpc=prefer_grpc,
            timeout=timeout,
        )
        self._closed = False
        try:
            layout = options or CollectionOptions()
            metadata = self._backend.read_metadata()
            if metadata is None:
                self._backend.create(collection_settings(encoder, layout))
                metadata = self._backend.read_metadata()
                if not metadata:
                    raise StoreError(
                        "this Qdrant server does not keep metadata of collections, so lmk-rag "
                        "can't tell what they hold; use version 1.16 or later"
                    )
            check_description(collection, metadata, encoder)
            self._backend.index(
                {metadata_path(key): kind for key, kind in layout.payload_indexes.items()}
            )
            description = stored_description(metadata)
            self._words, self._takes_parts = word_rule(description), takes_parts(description)
        except BaseException:
            self._backend.close()
            raise

    @property
    def is_local(self) -> bool:
        """Whether it runs in this process (memory or folder) and not on a server."""
        return self._backend.is_local

    @property
    def takes_parts(self) -> bool:
        """Whether queries can have parts; collections of earlier versions know vectors only."""
        return self._takes_parts

    def add(
        self,
        documents: Iterable[Document],
        *,
        show_progress: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> AddReport:
        """Store documents; what is stored already and unchanged is not encoded.

        Streams: memory holds one group of documents. Each group is written before the next is
        read, and a changed document is written before its old revision is deleted, so a crash
        loses at most the group in flight, and running again finishes the work. Of two documents
        with one id the later counts.

        Args:
            documents: any iterable of `Document`.
            show_progress: draw a bar on a terminal.
            on_progress: called with the number of documents decided since the last call.

        Returns:
            what was added, updated, unchanged and skipped. A document that can't be stored (no
            text, an id that is no string, metadata JSON can't hold) is skipped with a reason
            and keeps no other from being stored.
        """
        self._check_open()
        _check_iterable("documents", documents)
        return ingest(
            self._backend,
            self.encoder,
            ((document, None) for document in documents),
            words=self._words,
            show_progress=show_progress,
            on_progress=on_progress,
        )

    def add_encoded(
        self, encoded: Iterable[tuple[Document, DocumentEmbedding]], *, show_progress: bool = False
    ) -> AddReport:
        """Store documents that are encoded already; otherwise as `add`.

        Args:
            encoded: documents with the embedding of their text by this store's encoder.
            show_progress: draw a bar on a terminal.
        """
        self._check_open()
        _check_iterable("encoded", encoded)
        return ingest(
            self._backend,
            self.encoder,
            encoded,
            words=self._words,
            show_progress=show_progress,
            on_progress=None,
        )

    def check(self, documents: Iterable[Document]) -> Iterator[Skipped]:
        """Yield what `add` would skip, with reasons, without storing anything."""
        for document in documents:
            found = check_document(document, None, self.encoder.fingerprint)
            if isinstance(found, Skipped):
                yield found

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents; unknown ids change nothing.

        Returns:
            how many documents went.

        Raises:
            InputError: `ids` is None or one string; neither can mean "everything".
        """
        self._check_open()
        wanted = list(dict.fromkeys(_check_ids(ids)))
        deleted = 0
        for first in range(0, len(wanted), _IDS_AT_ONCE):
            with self._backend.writing:
                here = self._backend.revisions(wanted[first : first + _IDS_AT_ONCE])
                if here:
                    self._backend.delete(FieldIs("document_id", tuple(here)))
                deleted += len(here)
        return deleted

    def delete_where(self, where: Filter) -> int:
        """Delete the documents that fulfill a filter; returns how many went.

        Raises:
            InputError: no filter; `where=And()` says "everything" on purpose.
        """
        if where is None:
            raise InputError("where is None; pass And() to delete every document")
        return self.delete([info.id for info in self.documents(where)])

    def get(self, ids: Sequence[str]) -> list[Document]:
        """Return the documents that are stored, in the order asked, with their exact text."""
        self._check_open()
        wanted = FieldIs("document_id", tuple(_check_ids(ids)))
        if not wanted.values:
            return []
        parts: dict[str, dict[str, list[Segment]]] = defaultdict(lambda: defaultdict(list))
        for record in self._backend.scroll(wanted, fields=_SEGMENT_FIELDS):
            segment = Segment.from_payload(record.payload)
            parts[segment.document_id][segment.revision].append(segment)
        documents = []
        for id_ in dict.fromkeys(wanted.values):
            for segments in parts.get(str(id_), {}).values():
                if len(segments) == segments[0].n_segments:
                    (whole,) = join_segments(segments)
                    documents.append(Document(str(id_), whole.text, dict(whole.metadata)))
                    break
        return documents

    def count(self, where: Filter | None = None) -> int:
        """Count documents, or those that fulfill a filter.

        A document whose update was cut short counts twice until it is added again.
        """
        self._check_open()
        return self._backend.count(FieldIs("segment", (0,), also=where))

    def documents(self, where: Filter | None = None) -> Iterator[DocumentInfo]:
        """Yield every document, or those that fulfill a filter, a page at a time."""
        self._check_open()
        fields = ("document_id", "metadata", "n_tokens", "n_landmarks", "n_segments", "revision")
        first = FieldIs("segment", (0,), also=where)
        for record in self._backend.scroll(first, fields=fields):
            payload: dict[str, Any] = with_metadata(record.payload)
            yield DocumentInfo(id=payload.pop("document_id"), **payload)

    def count_segments(self, where: Where = None) -> int:
        """Count what is stored of documents, a point each."""
        self._check_open()
        return self._backend.count(where)

    def exact_is_quick(self) -> bool:
        """Whether comparing every landmark costs little: what `mode="auto"` goes by."""
        self._check_open()
        return self._backend.exact_is_quick()

    def search_points(
        self,
        query: QueryEmbedding,
        *,
        using: str,
        limit: int,
        per_document: int = 1,
        where: Where = None,
        prefetch: tuple[str, int] | None = None,
    ) -> list[Found]:
        """Find segments by a vector; see `Backend.search`. The retriever's way in."""
        self._check_open()
        return self._backend.search(
            query,
            using=using,
            limit=limit,
            per_document=per_document,
            where=where,
            prefetch=prefetch,
        )

    def search_words(self, text: str, *, limit: int, where: Where = None) -> list[Found]:
        """Find documents by BM25, the best segment of each; see `store.word_search`.

        Raises:
            CollectionMismatchError: the collection was made before words were stored.
        """
        self._check_open()
        if self._words is None:
            raise CollectionMismatchError(
                f"collection {self.collection!r} was made by an earlier version of lmk-rag and "
                "holds no words, which mode='hybrid' needs; the other modes work as before. "
                "Index the documents again into a new collection"
            )
        return search_words(self._backend, self._words, text, limit=limit, where=where)

    def segments(self, ids: Sequence[str]) -> dict[str, Segment]:
        """Return segments by point id, with their landmark rows."""
        self._check_open()
        records = self._backend.fetch(ids, vectors=(LANDMARKS,))
        return {
            id_: Segment.from_payload(record.payload, record.vectors[LANDMARKS])
            for id_, record in records.items()
        }

    def metadata(self, ids: Sequence[str]) -> dict[str, Json]:
        """Return the metadata of documents by point id: less to read than whole segments."""
        self._check_open()
        records = self._backend.fetch(ids, fields=("metadata",))
        payloads: dict[str, dict[str, Any]] = {
            id_: with_metadata(record.payload) for id_, record in records.items()
        }
        return {id_: payload["metadata"] for id_, payload in payloads.items()}

    def document_vectors(self, ids: Sequence[str]) -> dict[str, Floats]:
        """Return the (D,) unit-length document vectors of the documents that are stored."""
        self._check_open()
        wanted = FieldIs("document_id", tuple(_check_ids(ids)))
        if not wanted.values:
            return {}
        records = self._backend.scroll(wanted, fields=("document_id",), vectors=(DOCUMENT,))
        return {
            str(record.payload["document_id"]): record.vectors[DOCUMENT]
            for record in records
            if DOCUMENT in record.vectors  # the first segment of each document has it
        }

    def close(self) -> None:
        """Let the folder or connection go; closing twice is fine."""
        if not self._closed:
            self._closed = True
            self._backend.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"QdrantStore({self.collection!r}, location={self._location!r})"

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the store {self.collection!r} was closed; open it again")


def _check_iterable(name: str, value: object) -> None:
    if isinstance(value, str | Document) or not isinstance(value, Iterable):
        raise InputError(f"{name} is {value!r:.80}; expected an iterable of documents")


def _check_ids(ids: object) -> list[str]:
    if ids is None or isinstance(ids, str) or not isinstance(ids, Iterable):
        raise InputError(f"ids is {ids!r:.80}; expected a list of document ids")
    listed = list(ids)
    for id_ in listed:
        if not isinstance(id_, str):
            raise InputError(f"ids holds {id_!r:.80}; expected document ids as strings")
    return listed
