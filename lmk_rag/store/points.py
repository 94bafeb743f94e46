"""Documents as points: one point per segment, with vectors, spans and text.

A document is cut into segments of at most 1,024 tokens (more if one landmark has), at the best
landmark ends: paragraph ends where there are any. Words are counted by segment: BM25 over a whole
book sees one name in it as nothing, over a segment it sees the name beside its neighbors
(benchmarks/bm25_segments.md). Landmarks don't mind, since a document counts by its best one. A
segment also fits a request; that limit of bytes implies Qdrant's on one multi-vector (rows x width
below 1,048,576), since a number takes some twenty bytes as JSON.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from lmk_rag.chunker import end_grades
from lmk_rag.errors import InputError
from lmk_rag.lexical import Terms, WordVector, terms
from lmk_rag.spans import group_stretches
from lmk_rag.store.metadata import Json
from lmk_rag.types import Document, DocumentEmbedding, Floats, Ints

DOCUMENT, LANDMARKS, SECTIONS = "document", "landmarks", "sections"
WORDS = "words"  # the sparse one

MAX_REQUEST_BYTES = 16 * 2**20  # half of Qdrant's default limit of 32 MiB
_MAX_SEGMENT_BYTES = MAX_REQUEST_BYTES // 2
SEGMENT_TOKENS = 1_024  # at most; half of it at least, but for the last and for bytes
_BYTES_PER_NUMBER = 25  # the longest float32 as JSON, "-0.000012345678901234567,"
_BYTES_PER_TERM = _BYTES_PER_NUMBER + len("4294967295,")
_LANDMARKS_PER_SECTION = 8
_SHARES = SEGMENT_TOKENS * 1_024  # a segment's room, in whole numbers

# Point ids are derived from document ids, so writing twice is writing once.
_NAMESPACE = uuid.UUID("6f1c2f0e-9d0b-5c56-9a83-1d9f6f3f6a52")


@dataclass(frozen=True, eq=False)
class Point:
    """A segment of a document, ready to be stored.

    Attributes:
        id: UUID text.
        vectors: `landmarks` (L, D), `sections` (S, D) and, in a document's first segment,
            `document` (D,): float32, unit rows.
        payload: JSON-ready.
        words: BM25's share of the text; None where it has no word or the collection keeps none.
    """

    id: str
    vectors: dict[str, Floats]
    payload: Json
    words: WordVector | None = None

    @cached_property
    def n_bytes(self) -> int:
        """What it takes in a request, estimated from above."""
        numbers = sum(vector.size for vector in self.vectors.values())
        words = 0 if self.words is None else len(self.words) * _BYTES_PER_TERM
        return numbers * _BYTES_PER_NUMBER + words + len(json.dumps(self.payload)) + 512


@dataclass(frozen=True, eq=False)
class Segment:
    """What a stored point says, read back.

    Attributes:
        spans: (L, 2) characters of the document.
        tokens: (L,) content tokens per landmark.
        start, line: where `text` begins in the document: character, and line from 1.
        first_landmark: index of the segment's first landmark in the document.
        rows: (L, D) landmark vectors; (0, 0) where they were not read.
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
    rows: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    @classmethod
    def from_payload(cls, payload: Json, rows: Floats | None = None) -> Segment:
        """Read a payload written by `document_points`, and take in the rows if they are known."""
        values = with_metadata(payload)
        if rows is not None:
            values["rows"] = rows
        spans = np.asarray(values.pop("spans"), dtype=np.int64).reshape(-1, 2)
        tokens = np.asarray(values.pop("tokens"), dtype=np.int64)
        known = {key: values[key] for key in cls.__dataclass_fields__ if key in values}
        return cls(spans=spans, tokens=tokens, **known)  # type: ignore[arg-type]


def join_segments(segments: Iterable[Segment]) -> list[Segment]:
    """Join segments of one revision of a document that stand next to each other.

    Returns:
        a segment per run of neighbors, in order; its `segment` is the first one's.
    """
    runs: list[list[Segment]] = []
    for segment in sorted(segments, key=lambda segment: segment.segment):
        if runs and runs[-1][-1].segment + 1 == segment.segment:
            runs[-1].append(segment)
        else:
            runs.append([segment])
    return [_joined(run) for run in runs]


def _joined(run: list[Segment]) -> Segment:
    text, covered = run[0].text, run[0].start + len(run[0].text)
    for segment in run[1:]:  # two may share a character
        text += segment.text[covered - segment.start :]
        covered = segment.start + len(segment.text)
    return replace(
        run[0],
        text=text,
        spans=np.concatenate([segment.spans for segment in run]),
        tokens=np.concatenate([segment.tokens for segment in run]),
        rows=np.concatenate([segment.rows for segment in run]),
    )


def with_metadata(payload: Json) -> Json:
    """Return a payload with its metadata, which some servers leave out where it is empty."""
    return {"metadata": {}} | payload


def point_id(document_id: str, revision: str, segment: int) -> str:
    """Return the id of a segment: the same for the same content, another after a change."""
    return str(uuid.uuid5(_NAMESPACE, f"{document_id}\x1f{revision}\x1f{segment}"))


def document_points(
    document: Document,
    metadata: Json,
    embedding: DocumentEmbedding,
    revision: str,
    *,
    average_words: int | None = None,
) -> list[Point]:
    """Turn one encoded document into points.

    Args:
        document: id and text.
        metadata: cleaned.
        embedding: of the text.
        revision: of id, text, metadata and encoder.
        average_words: the length that the collection's BM25 counts as usual; None: no words.

    Raises:
        InputError: one landmark holds more text than a request.
    """
    grades = end_grades(document.text, embedding.spans)
    rows = np.ones(embedding.n_landmarks, np.int64)
    found = None if average_words is None else terms(document.text)
    # Two limits as one: each landmark takes the larger of its shares, rounded up.
    share = np.maximum(
        embedding.landmark_tokens / SEGMENT_TOKENS,
        _row_bytes(document.text, embedding, found) / _MAX_SEGMENT_BYTES,
    )
    segments = group_stretches(np.ceil(share * _SHARES).astype(np.int64), grades, _SHARES)
    shared: Json = {
        "document_id": document.id,
        "revision": revision,
        "n_segments": len(segments),
        "n_tokens": embedding.n_tokens,
        "n_landmarks": embedding.n_landmarks,
        "metadata": metadata,
    }
    points = []
    line, counted = 1, 0
    for index, (first, end) in enumerate(segments):
        spans = embedding.spans[first:end]
        start, stop = int(spans[0, 0]), int(spans[-1, 1])
        if end == embedding.n_landmarks:
            stop = len(document.text)  # beyond the spans if it was truncated: `get` gives it all
        line, counted = line + document.text.count("\n", counted, start), start
        own = {
            "segment": index,
            "text": document.text[start:stop],
            "start": start,
            "line": line,
            "first_landmark": first,
            "spans": spans.ravel().tolist(),
            "tokens": embedding.landmark_tokens[first:end].tolist(),
        }
        sections = group_stretches(rows[first:end], grades[first:end], _LANDMARKS_PER_SECTION)
        vectors = {
            LANDMARKS: embedding.landmarks[first:end],
            SECTIONS: np.stack(
                [embedding.stretch_vector(first + a, first + b - 1) for a, b in sections]
            ),
        }
        if index == 0:
            vectors[DOCUMENT] = embedding.vector
        words = None
        if found is not None and average_words is not None:
            words = found.vector(start, stop, average=average_words)
        point = Point(point_id(document.id, revision, index), vectors, shared | own, words or None)
        if point.n_bytes > MAX_REQUEST_BYTES:
            raise InputError(
                f"characters {start} to {stop} make {point.n_bytes} bytes in one piece, with "
                f"metadata and vectors; at most {MAX_REQUEST_BYTES} can be stored"
            )
        points.append(point)
    return points


def _row_bytes(text: str, embedding: DocumentEmbedding, found: Terms | None) -> Ints:
    """Return (L,) the bytes each landmark takes in a request: vectors, span, text and words."""
    numbers = embedding.landmarks.shape[1] * _BYTES_PER_NUMBER
    fixed = numbers + 2 * numbers // _LANDMARKS_PER_SECTION + 32  # sections hold 4 to 8 landmarks
    sizes = [len(json.dumps(text[start:end])) + fixed for start, end in embedding.spans.tolist()]
    bytes_ = np.array(sizes, np.int64)
    if found is not None:  # from above: a segment has each of its terms once
        bounds = np.append(embedding.spans[:, 0], embedding.spans[-1, 1])
        bytes_ += np.diff(np.searchsorted(found.starts, bounds)) * _BYTES_PER_TERM
    return bytes_


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
