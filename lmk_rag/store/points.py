"""Documents as points: one point per segment, with vectors, spans and text.

A document is cut into segments of at most 1,024 tokens (more if one landmark has), at the best
landmark ends: paragraph ends where there are any. Words are counted by segment: BM25 over a whole
book sees one name in it as nothing, over a segment it sees the name beside its neighbors
(benchmarks/bm25_segments.md). Landmarks don't mind, since a document counts by its best one. A
segment also fits a request; that limit of bytes implies Qdrant's on one multi-vector (rows x width
below 1,048,576), since a number takes some twenty bytes as JSON.

Words are counted by document too, since a question's words may stand far apart; the first segment
holds that vector. A document of more than 65,536 words counts in volumes of so many segments as
stay below, each as a document, or the vector would outgrow a request. A single segment of more
words (of one huge landmark, or with the unread rest of a truncated text) counts as a segment alone.
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
from lmk_rag.lexical import Terms, WordRule, WordVector, terms
from lmk_rag.spans import group_stretches
from lmk_rag.store.metadata import Json
from lmk_rag.types import Document, DocumentEmbedding, Floats, Ints

DOCUMENT, LANDMARKS, SECTIONS = "document", "landmarks", "sections"
WORDS, DOCUMENT_WORDS = "words", "document_words"  # the sparse ones

MAX_REQUEST_BYTES = 16 * 2**20  # half of Qdrant's default limit of 32 MiB
_MAX_SEGMENT_BYTES = MAX_REQUEST_BYTES // 2
SEGMENT_TOKENS = 1_024  # at most; half of it at least, but for the last and for bytes
_BYTES_PER_NUMBER = 25  # the longest float32 as JSON, "-0.000012345678901234567,"
_BYTES_PER_TERM = _BYTES_PER_NUMBER + len("4294967295,")
_LANDMARKS_PER_SECTION = 8
# With as many pairs they take 4.5 MiB, of the 8 that a segment leaves of a request.
_VOLUME_WORDS = 65_536
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
        words: BM25's share of the segment's words, as `words`; in the first segment of a document
            or volume that of all its words, as `document_words`. None where there are no words,
            or the collection keeps none.
    """

    id: str
    vectors: dict[str, Floats]
    payload: Json
    words: dict[str, WordVector] = field(default_factory=dict)

    @cached_property
    def n_bytes(self) -> int:
        """What it takes in a request, estimated from above."""
        numbers = sum(vector.size for vector in self.vectors.values())
        words = sum(map(len, self.words.values())) * _BYTES_PER_TERM
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
    words: WordRule | None = None,
) -> list[Point]:
    """Turn one encoded document into points.

    Args:
        document: id and text.
        metadata: cleaned.
        embedding: of the text.
        revision: of id, text, metadata and encoder.
        words: what the collection counts of words; None: nothing.

    Raises:
        InputError: one landmark holds more text than a request.
    """
    grades = end_grades(document.text, embedding.spans)
    rows = np.ones(embedding.n_landmarks, np.int64)
    found = None if words is None else terms(document.text)
    # Two limits as one: each landmark takes the larger of its shares, rounded up.
    share = np.maximum(
        embedding.landmark_tokens / SEGMENT_TOKENS,
        _row_bytes(document.text, embedding, found, words) / _MAX_SEGMENT_BYTES,
    )
    segments = group_stretches(np.ceil(share * _SHARES).astype(np.int64), grades, _SHARES)
    ranges = [(int(embedding.spans[a, 0]), int(embedding.spans[b - 1, 1])) for a, b in segments]
    # Beyond the spans if it was truncated: `get` gives it all.
    ranges[-1] = (ranges[-1][0], len(document.text))
    counts: list[dict[str, WordVector]] = [{} for _ in ranges]
    if found is not None and words is not None:
        counts = _word_vectors(found, ranges, words)
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
    for index, ((first, end), (start, stop)) in enumerate(zip(segments, ranges, strict=True)):
        spans = embedding.spans[first:end]
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
        point = Point(point_id(document.id, revision, index), vectors, shared | own, counts[index])
        if point.n_bytes > MAX_REQUEST_BYTES:
            raise InputError(
                f"characters {start} to {stop} make {point.n_bytes} bytes in one piece, with "
                f"words, vectors and metadata; at most {MAX_REQUEST_BYTES} can be stored"
            )
        points.append(point)
    return points


def _word_vectors(
    found: Terms, ranges: list[tuple[int, int]], rule: WordRule
) -> list[dict[str, WordVector]]:
    """Return what each segment, of these characters, has of `words` and `document_words`."""
    counts: list[dict[str, WordVector]] = []
    volumes: list[tuple[int, int, int]] = []  # first segment, and its characters
    room = -1
    for index, (start, stop) in enumerate(ranges):
        own = found.vector(start, stop, rule.segment, pairs=rule.pairs)
        counts.append({WORDS: own} if own else {})
        first, last = np.searchsorted(found.starts, (start, stop)).tolist()
        room -= last - first
        if room >= 0:
            volumes[-1] = (*volumes[-1][:2], stop)
            continue
        room = _VOLUME_WORDS - (last - first)
        if room >= 0:
            volumes.append((index, start, stop))
    if rule.document is not None:
        for index, start, stop in volumes:
            whole = found.vector(start, stop, rule.document, pairs=rule.pairs)
            if whole:
                counts[index][DOCUMENT_WORDS] = whole
    return counts


def _row_bytes(
    text: str, embedding: DocumentEmbedding, found: Terms | None, rule: WordRule | None
) -> Ints:
    """Return (L,) the bytes each landmark takes in a request: vectors, span, text and words."""
    numbers = embedding.landmarks.shape[1] * _BYTES_PER_NUMBER
    fixed = numbers + 2 * numbers // _LANDMARKS_PER_SECTION + 32  # sections hold 4 to 8 landmarks
    sizes = [len(json.dumps(text[start:end])) + fixed for start, end in embedding.spans.tolist()]
    bytes_ = np.array(sizes, np.int64)
    if found is not None and rule is not None:  # from above: a segment has each term once
        bounds = np.append(embedding.spans[:, 0], embedding.spans[-1, 1])
        per_word = _BYTES_PER_TERM * (2 if rule.pairs else 1)
        bytes_ += np.diff(np.searchsorted(found.starts, bounds)) * per_word
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
