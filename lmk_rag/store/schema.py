"""What a collection looks like, and how it remembers its encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from qdrant_client import models

from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import CollectionMismatchError
from lmk_rag.lexical import Bm25, WordRule
from lmk_rag.store.metadata import Json
from lmk_rag.store.points import DOCUMENT, DOCUMENT_WORDS, LANDMARKS, SECTIONS, WORDS
from lmk_rag.types import DocumentEmbedding, Floats, QueryEmbedding

_KEY = "lmk_rag"
_SCHEMA = 4
# 1 has no words: all but hybrid search works. 2 has words by segment alone, without pairs, and
# scores landmarks by cosine, which takes the weights of a query's rows away. Up to 3, segments and
# documents count words by the same k1 and b.
_READABLE = (1, 2, 3, 4)
_TAKES_PARTS = 3
_K1, _B = 1.2, 0.75


class DocumentEncoder(Protocol):
    """What the store needs of an encoder; `LandmarkEncoder` is one."""

    @property
    def name(self) -> str:
        """What the user calls it."""

    @property
    def dim(self) -> int:
        """D, the width of every vector."""

    @property
    def fingerprint(self) -> str:
        """Equal for encoders whose vectors can be compared."""

    @property
    def config(self) -> LandmarkConfig:
        """How texts are cut."""

    @property
    def batch_tokens(self) -> int:
        """Tokens that keep it busy for one step."""

    def encode_documents(self, texts: list[str], /) -> list[DocumentEmbedding]:
        """Encode documents, in order."""

    def encode_queries(self, texts: list[str], /) -> Floats:
        """Encode queries to (B, D) unit-length rows."""

    def encode_query_parts(self, texts: list[str], /) -> list[QueryEmbedding]:
        """Encode queries as multi-vectors; see `QueryEmbedding`."""


@dataclass(frozen=True)
class CollectionOptions:
    """How a new collection is laid out; an existing one keeps what it has.

    The same options serve every place: what a cluster needs has no effect in memory or a folder,
    nor have graph settings. Edge keeps `m`, `ef_construct` and `full_scan_threshold` of them, but
    builds a graph only when it is told to optimize, which nothing here does: sections are scanned.
    It refuses quantization.

    Attributes:
        float16: store landmarks and sections in half precision (servers and Edge; half the space).
        on_disk: keep landmarks on disk and read them when a query rescores (servers and Edge).
        hnsw: graph settings for `document` and `sections`; None: Qdrant's defaults.
        quantization: of `document` and `sections`; None: none.
        shard_number, replication_factor, write_consistency_factor: for clusters. Each shard counts
            how rare words are for itself: hybrid search of few documents wants one shard.
        payload_indexes: metadata keys, written as in filters, that a server is to index, and how;
            numbers are compared as ranges, so theirs are FLOAT. Made when a store is opened,
            in existing collections too. Without one a server reads every payload for a filter, and
            Qdrant Cloud refuses it by default. They have no effect in memory or a folder.
    """

    float16: bool = True
    on_disk: bool = True
    hnsw: models.HnswConfigDiff | None = None
    quantization: models.QuantizationConfig | None = None
    shard_number: int | None = None
    replication_factor: int | None = None
    write_consistency_factor: int | None = None
    payload_indexes: Mapping[str, models.PayloadSchemaType] = field(default_factory=dict)


def collection_settings(encoder: DocumentEncoder, options: CollectionOptions) -> dict[str, Any]:
    """Build the keywords for creating a collection."""
    half = models.Datatype.FLOAT16 if options.float16 else models.Datatype.FLOAT32
    multi = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    size, cosine = encoder.dim, models.Distance.COSINE
    return {
        "vectors_config": {
            DOCUMENT: models.VectorParams(
                size=size,
                distance=cosine,
                hnsw_config=options.hnsw,
                quantization_config=options.quantization,
            ),
            SECTIONS: models.VectorParams(
                size=size,
                distance=cosine,
                datatype=half,
                multivector_config=multi,
                hnsw_config=options.hnsw,
                quantization_config=options.quantization,
            ),
            # Landmarks only rescore candidates: no graph, and cold. Their rows are unit-length, so
            # dot products are cosines, by the weights that a query's rows carry in their lengths.
            LANDMARKS: models.VectorParams(
                size=size,
                distance=models.Distance.DOT,
                datatype=half,
                multivector_config=multi,
                on_disk=options.on_disk,
                hnsw_config=models.HnswConfigDiff(m=0, payload_m=0),
            ),
        },
        "sparse_vectors_config": {
            name: models.SparseVectorParams(modifier=models.Modifier.IDF)
            for name in (WORDS, DOCUMENT_WORDS)
        },
        "shard_number": options.shard_number,
        "replication_factor": options.replication_factor,
        "write_consistency_factor": options.write_consistency_factor,
        "metadata": {_KEY: describe(encoder)},
    }


def describe(encoder: DocumentEncoder) -> Json:
    """Return what the collection remembers of its encoder."""
    return {
        "schema": _SCHEMA,
        "model": encoder.name,
        "width": encoder.dim,
        "fingerprint": encoder.fingerprint,
        "config": asdict(encoder.config),
        "words": asdict(WordRule()),
    }


def word_rule(description: Json | None) -> WordRule | None:
    """Return what a collection counts of words, or None if it has no words."""
    found: dict[str, Any] = dict(description or {})
    if "words" in found:
        known = found["words"]
        whole = known["document"]
        return WordRule(
            Bm25(**known["segment"]), None if whole is None else Bm25(**whole), known["pairs"]
        )
    if not isinstance(found.get("average_words"), int):
        return None
    average = found.get("average_document_words")
    return WordRule(
        Bm25(_K1, _B, found["average_words"]),
        None if average is None else Bm25(_K1, _B, average),
        pairs=found.get("word_pairs", False),
    )


def takes_parts(description: Json | None) -> bool:
    """Whether a collection scores landmarks by dot product, so that queries can have parts."""
    schema = (description or {}).get("schema")
    return isinstance(schema, int) and schema >= _TAKES_PARTS


def stored_description(metadata: Json | None) -> Json | None:
    """Return what a collection's metadata says of its encoder, or None."""
    found = (metadata or {}).get(_KEY)
    return found if isinstance(found, dict) else None


def check_description(collection: str, metadata: Json, encoder: DocumentEncoder) -> None:
    """Compare a collection with an encoder.

    Raises:
        CollectionMismatchError: says what was found and expected; nothing is changed.
    """
    found = stored_description(metadata)
    remedy = "use another collection name or store"
    if found is None:
        raise CollectionMismatchError(
            f"collection {collection!r} was not made by lmk-rag (it has no {_KEY!r} metadata); "
            f"{remedy}"
        )
    wanted = describe(encoder)
    readable = found.get("schema") in _READABLE
    if found.get("fingerprint") == wanted["fingerprint"] and readable:
        return
    differences = [
        f"{key} is {found.get(key)!r} there and {wanted[key]!r} here"
        for key in ("schema", "model", "width")
        if found.get(key) != wanted[key] and not (key == "schema" and readable)
    ]
    there, here = found.get("config"), wanted["config"]
    if isinstance(there, dict) and isinstance(here, dict):
        differences += [
            f"{key} is {there.get(key)!r} there and {here.get(key)!r} here"
            for key in here
            if there.get(key) != here.get(key)
        ]
    if not differences:
        differences = ["the model's weights or tokenizer differ"]
    raise CollectionMismatchError(
        f"collection {collection!r} was made with another encoder: {'; '.join(differences)}. Use "
        f"an encoder with the settings there, {remedy}"
    )
