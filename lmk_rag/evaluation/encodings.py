"""Every text encoded once per model and setting, with what that cost."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lmk_rag.evaluation.cache import ArrayCache, Arrays, blocks, key_of
from lmk_rag.evaluation.pieces import piece_tokens, token_spans
from lmk_rag.progress import progress_bar
from lmk_rag.types import DocumentEmbedding, Floats, Ints

if TYPE_CHECKING:
    from lmk_rag.encoder import LandmarkEncoder
    from lmk_rag.evaluation.baseline import Baseline

_QUERIES_AT_ONCE = 64  # times 100,000 rows: 26 MB of scores


@dataclass(frozen=True)
class Encoding:
    """What an encoding of a corpus cost.

    Attributes:
        model: name of the model and how it read the texts.
        rows: vectors.
        tokens: content tokens read, those in overlapping pieces as often as they were.
        seconds: spent encoding, when that was done: blocks from a cache keep theirs.
        cached: whether all of it came from the cache.
        truncated: texts of which the model read only the beginning.
    """

    model: str
    rows: int
    tokens: int
    seconds: float
    cached: bool
    truncated: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Content tokens per second of encoding; 0 if it took no time."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, eq=False)
class Rows:
    """The vectors of a corpus, some per document.

    Attributes:
        vectors: (N, D) float32, unit-length rows, document by document.
        first: (documents,) the first row of each document; none is without rows.
    """

    vectors: Floats
    first: Ints

    def best(self, queries: Floats) -> Floats:
        """Return (Q, documents) float32: cosine of each query and each document's best row."""
        found = [
            np.maximum.reduceat(queries[at : at + _QUERIES_AT_ONCE] @ self.vectors.T, self.first, 1)
            for at in range(0, len(queries), _QUERIES_AT_ONCE)
        ]
        return np.concatenate(found)

    def mean(self) -> Floats:
        """Return (documents, D) float32, unit length: the normalized mean of each one's rows."""
        sums = np.add.reduceat(self.vectors, self.first, 0)
        return np.asarray(sums / np.linalg.norm(sums, axis=1, keepdims=True), np.float32)


@dataclass(frozen=True, eq=False)
class Pieces:
    """Isolated pieces of a corpus.

    Attributes:
        rows: their vectors.
        tokens: (N, 2) each piece's range of its document's tokens.
        encoding: what they cost.
    """

    rows: Rows
    tokens: Ints
    encoding: Encoding


@dataclass(frozen=True, eq=False)
class Landmarks:
    """A corpus as our encoder reads it.

    Attributes:
        embeddings: one per document.
        documents: (documents, D) float32, unit length.
        rows: all landmarks.
        encoding: what they cost.
    """

    embeddings: tuple[DocumentEmbedding, ...]
    documents: Floats
    rows: Rows
    encoding: Encoding


def encode_landmarks(
    encoder: LandmarkEncoder, texts: Sequence[str], cache: ArrayCache, *, show_progress: bool
) -> Landmarks:
    """Encode documents with our encoder."""

    def make(block: Sequence[str]) -> dict[str, Any]:
        found = encoder.encode_documents(block)
        return {
            "vectors": np.stack([e.vector for e in found]),
            "landmarks": np.concatenate([e.landmarks for e in found]),
            "norms": np.concatenate([e.norms for e in found]),
            "spans": np.concatenate([e.spans for e in found]),
            "tokens": np.concatenate([e.landmark_tokens for e in found]),
            "counts": np.array([e.n_landmarks for e in found]),
            "windows": np.array([e.n_windows for e in found]),
            "truncated": np.array([e.truncated for e in found]),
        }

    name = ("landmarks", encoder.fingerprint, str(encoder.dtype))
    made, seconds, cached = _in_blocks(texts, cache, name, make, "encoding", show_progress)
    counts = made["counts"]
    first = np.cumsum(counts) - counts
    embeddings = tuple(
        DocumentEmbedding(
            vector=made["vectors"][i],
            landmarks=made["landmarks"][at : at + counts[i]],
            norms=made["norms"][at : at + counts[i]],
            spans=made["spans"][at : at + counts[i]],
            landmark_tokens=made["tokens"][at : at + counts[i]],
            n_windows=int(made["windows"][i]),
            truncated=bool(made["truncated"][i]),
        )
        for i, at in enumerate(first)
    )
    cost = Encoding(
        model=f"k={encoder.config.granularity} {encoder.config.boundary} "
        f"window={encoder.max_length} overlap={encoder.config.overlap}",
        rows=len(made["landmarks"]),
        tokens=int(made["tokens"].sum()),
        seconds=seconds,
        cached=cached,
        truncated=int(made["truncated"].sum()),
    )
    rows = Rows(made["landmarks"], first)
    return Landmarks(embeddings, made["vectors"], rows, cost)


def encode_pieces(
    base: Baseline,
    texts: Sequence[str],
    cache: ArrayCache,
    *,
    size: int,
    overlap: int,
    show_progress: bool,
) -> Pieces:
    """Cut documents into pieces of `size` tokens and encode each alone with the base model."""
    encoder = base.piece_encoder(size)

    def make(block: Sequence[str]) -> dict[str, Any]:
        pieces, ranges = [], []
        for text in block:
            offsets = base.offsets(text)
            ranges.append(piece_tokens(text, offsets, size=size, overlap=overlap))
            spans = token_spans(text, offsets, ranges[-1])
            pieces += [text[start:end] for start, end in spans.tolist()]
        return {
            "ranges": np.concatenate(ranges),
            "counts": np.array([len(own) for own in ranges]),
            **_vectors(encoder, pieces),
        }

    name = ("pieces", encoder.fingerprint, str(encoder.dtype), str(size), str(overlap))
    title = f"encoding pieces of {size}" + (f"/{overlap}" if overlap else "")
    made, seconds, cached = _in_blocks(texts, cache, name, make, title, show_progress)
    counts = made["counts"]
    model = f"{base.name} pieces of {size} tokens, overlap {overlap}"
    rows = Rows(made["vectors"], np.cumsum(counts) - counts)
    return Pieces(rows, made["ranges"], _cost(model, made, seconds, cached))


def encode_cut(
    base: Baseline, texts: Sequence[str], cache: ArrayCache, *, window: int, show_progress: bool
) -> tuple[Floats, Encoding]:
    """Encode what the base model reads of each document in one window.

    Returns:
        (documents, D) float32, unit length, and what they cost.
    """
    encoder = base.encoder(window)
    name = ("cut", encoder.fingerprint, str(encoder.dtype))
    made, seconds, cached = _in_blocks(
        texts, cache, name, lambda block: _vectors(encoder, block), "encoding cut", show_progress
    )
    return made["vectors"], _cost(f"{base.name} cut at {window}", made, seconds, cached)


def encode_queries(encoder: LandmarkEncoder, texts: Sequence[str], cache: ArrayCache) -> Floats:
    """Return (Q, D) float32, unit length."""
    key = key_of("queries", encoder.fingerprint, str(encoder.dtype), *texts)
    kept = cache.load(key)
    if kept is None:
        kept = {"vectors": encoder.encode_queries(texts)}
        cache.save(key, kept)
    return kept["vectors"]


def _vectors(encoder: LandmarkEncoder, texts: Sequence[str]) -> dict[str, Any]:
    with warnings.catch_warnings():  # that texts are cut is the method, and is counted
        warnings.filterwarnings("ignore", message=".*on_overflow='truncate'")
        found = encoder.encode_documents(texts)
    return {
        "vectors": np.stack([e.vector for e in found]),
        "tokens": np.array([e.n_tokens for e in found]),
        "truncated": np.array([e.truncated for e in found]),
    }


def _cost(model: str, made: Arrays, seconds: float, cached: bool) -> Encoding:
    return Encoding(
        model=model,
        rows=len(made["vectors"]),
        tokens=int(made["tokens"].sum()),
        seconds=seconds,
        cached=cached,
        truncated=int(made["truncated"].sum()),
    )


def _in_blocks(
    texts: Sequence[str],
    cache: ArrayCache,
    name: tuple[str, ...],
    make: Callable[[Sequence[str]], dict[str, Any]],
    title: str,
    show_progress: bool,
) -> tuple[Arrays, float, bool]:
    """Make arrays of all texts, block by block, those in the cache not again.

    Returns:
        the arrays of all blocks, joined; seconds; and whether nothing had to be made.
    """
    parts, cached = [], True
    with progress_bar(title, len(texts), show=show_progress) as advance:
        for block in blocks(texts, cache.block_chars):
            own = texts[block]
            key = key_of(*name, *own)
            part = cache.load(key)
            if part is None:
                started = time.perf_counter()
                made = make(own)
                part = {**made, "seconds": np.array([time.perf_counter() - started])}
                cache.save(key, part)
                cached = False
            parts.append(part)
            advance(len(own))
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    return joined, float(joined["seconds"].sum()), cached
