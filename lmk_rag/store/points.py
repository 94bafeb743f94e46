"""Documents as points: one point per segment, with vectors, spans and text.

A document is one segment, unless its landmarks exceed what Qdrant takes in one multi-vector
(rows x width below 1,048,576) or what fits a request; then it is cut at its best paragraph ends.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from lmk_rag.boundaries import edge_strength
from lmk_rag.spans import group_stretches
from lmk_rag.store.metadata import Json
from lmk_rag.types import Document, DocumentEmbedding, Floats, Ints

DOCUMENT, LANDMARKS, SECTIONS = "document", "landmarks", "sections"

MAX_ELEMENTS = 1_048_576 - 1  # Qdrant's hard limit for one multi-vector, flattened
MAX_REQUEST_BYTES = 16 * 2**20  # half of Qdrant's default limit of 32 MiB
_MAX_POINT_BYTES = MAX_REQUEST_BYTES // 2
_BYTES_PER_NUMBER = 21  # a float32 written as JSON, with its comma
_LANDMARKS_PER_SECTION = 8

# Point ids are derived from document ids, so writing twice is writing once.
_NAMESPACE = uuid.UUID("6f1c2f0e-9d0b-5c56-9a83-1d9f6f3f6a52")


@dataclass(frozen=True, eq=False)
class Point:
    """A segment of a document, ready to be stored.

    Attributes:
        id: UUID text.
        vectors: `document` (D,), `landmarks` (L, D) and `sections` (S, D), float32, unit rows.
        payload: JSON-ready.
    """

    id: str
    vectors: dict[str, Floats]
    payload: Json

    @property
    def n_bytes(self) -> int:
        """What it takes in a request, estimated from above."""
        numbers = sum(vector.size for vector in self.vectors.values())
        text = len(str(self.payload["text"]).encode("utf-8", "surrogatepass"))
        return numbers * _BYTES_PER_NUMBER + 2 * text + 4_096


@dataclass(frozen=True, eq=False)
class Segment:
    """What a stored point says, read back.

    Attributes:
        spans: (L, 2) characters of the document.
        tokens: (L,) content tokens per landmark.
        start, line: where `text` begins in the document: character, and line from 1.
        first_landmark: index of the segment's first landmark in the document.
    """

    document_id: str
    revision: str
    segment: int
    n_segments: int
    text: str
    start: int
    line: int
    first_landmark: int
    spans: Ints
    tokens: Ints
    metadata: Json

    @classmethod
    def from_payload(cls, payload: Json) -> Segment:
        """Read a payload written by `document_points`."""
        values = dict(payload)
        spans = np.asarray(values.pop("spans"), dtype=np.int64).reshape(-1, 2)
        tokens = np.asarray(values.pop("tokens"), dtype=np.int64)
        known = {key: values[key] for key in cls.__dataclass_fields__ if key in values}
        return cls(spans=spans, tokens=tokens, **known)  # type: ignore[arg-type]


def max_rows(width: int) -> int:
    """Return the most landmarks of this width that go into one point."""
    return max(1, min(MAX_ELEMENTS // width, _MAX_POINT_BYTES // (width * _BYTES_PER_NUMBER)))


def point_id(document_id: str, revision: str, segment: int) -> str:
    """Return the id of a segment: the same for the same content, another after a change."""
    return str(uuid.uuid5(_NAMESPACE, f"{document_id}\x1f{revision}\x1f{segment}"))


def document_points(
    document: Document, metadata: Json, embedding: DocumentEmbedding, revision: str
) -> list[Point]:
    """Turn one encoded document into points.

    Args:
        document: id and text.
        metadata: cleaned.
        embedding: of the text.
        revision: of text, metadata and encoder.
    """
    width = embedding.landmarks.shape[1]
    strength = edge_strength(document.text)[embedding.spans[:, 1]]
    rows = np.ones(embedding.n_landmarks, np.int64)
    segments = group_stretches(rows, strength, max_rows(width))
    shared: Json = {
        "document_id": document.id,
        "revision": revision,
        "n_segments": len(segments),
        "n_tokens": embedding.n_tokens,
        "n_landmarks": embedding.n_landmarks,
        "metadata": metadata,
    }
    points = []
    for index, (first, end) in enumerate(segments):
        spans = embedding.spans[first:end]
        start, stop = int(spans[0, 0]), int(spans[-1, 1])
        own = {
            "segment": index,
            "text": document.text[start:stop],
            "start": start,
            "line": document.text.count("\n", 0, start) + 1,
            "first_landmark": first,
            "spans": spans.ravel().tolist(),
            "tokens": embedding.landmark_tokens[first:end].tolist(),
        }
        sections = group_stretches(rows[first:end], strength[first:end], _LANDMARKS_PER_SECTION)
        vectors = {
            DOCUMENT: embedding.vector,
            LANDMARKS: embedding.landmarks[first:end],
            SECTIONS: np.stack(
                [embedding.stretch_vector(first + a, first + b - 1) for a, b in sections]
            ),
        }
        points.append(Point(point_id(document.id, revision, index), vectors, shared | own))
    return points


def request_batches(points: Iterable[Point], *, max_points: int) -> Iterator[list[Point]]:
    """Group points so that each request stays under the limits of count and bytes."""
    batch: list[Point] = []
    size = 0
    for point in points:
        if batch and (len(batch) >= max_points or size + point.n_bytes > MAX_REQUEST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(point)
        size += point.n_bytes
    if batch:
        yield batch
