"""`LandmarkChunker`: join neighboring landmarks into chunks; nothing is encoded twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import tee
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lmk_rag.boundaries import edge_strength
from lmk_rag.config import check_int
from lmk_rag.errors import InputError
from lmk_rag.spans import group_stretches
from lmk_rag.types import Chunk, DocumentEmbedding, Ints

if TYPE_CHECKING:
    from lmk_rag.encoder import LandmarkEncoder


class LandmarkChunker:
    """Cut texts into chunks along their landmarks.

    Chunks tile the text (or what of it was encoded, if it was truncated). Each ends at the best
    paragraph, sentence or line end that a landmark boundary offers in the second half of its room.

    Args:
        encoder: makes the embedding where none is given.
        chunk_tokens: the most content tokens in a chunk (a single landmark may hold more).

    Raises:
        ConfigError: `chunk_tokens` is no whole number of at least 1.
    """

    def __init__(self, encoder: LandmarkEncoder, *, chunk_tokens: int = 256) -> None:
        check_int("chunk_tokens", chunk_tokens, minimum=1)
        self.encoder = encoder
        self.chunk_tokens = chunk_tokens

    def chunk(self, text: str, embedding: DocumentEmbedding | None = None) -> list[Chunk]:
        """Cut one text.

        Args:
            text: the text.
            embedding: its embedding, if there is one already; it serves any `chunk_tokens`.

        Raises:
            InputError: the embedding is of another text, by its length.
        """
        if embedding is None:
            embedding = self.encoder.encode_documents([text])[0]
        return _chunks(text, embedding, self.chunk_tokens)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the spans of the chunks of one text, without running the model."""
        layout = self.encoder.lay_out(text)
        groups = _groups(text, layout.spans, layout.landmark_tokens, self.chunk_tokens)
        return [
            (int(layout.spans[first, 0]), int(layout.spans[end - 1, 1])) for first, end in groups
        ]

    def iter_chunks(self, texts: Iterable[str]) -> Iterator[list[Chunk]]:
        """Encode and cut any iterable of texts lazily; one list of chunks per text, in order.

        Raises:
            InputError: `texts` is one string, or no iterable.
        """
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise InputError(f"texts is {texts!r:.80}; expected an iterable of strings")
        return self._iter_chunks(texts)

    def _iter_chunks(self, texts: Iterable[str]) -> Iterator[list[Chunk]]:
        for_encoder, kept = tee(texts)
        for text, embedding in zip(kept, self.encoder.iter_documents(for_encoder), strict=False):
            yield _chunks(text, embedding, self.chunk_tokens)


def covers(embedding: DocumentEmbedding, text: str) -> bool:
    """Whether the embedding can be of this text: its spans end where they should."""
    covered = int(embedding.spans[-1, 1])
    return covered == len(text) or (embedding.truncated and covered < len(text))


def end_grades(text: str, spans: Ints) -> NDArray[np.int8]:
    """Grade the end of each span as a place to stop; higher is better.

    Returns:
        (L,) int8: as `edge_strength`, and -1 inside a character that the next span shares.
    """
    grades = edge_strength(text)[spans[:, 1]]
    grades[:-1][spans[1:, 0] < spans[:-1, 1]] = -1
    return grades


def _chunks(text: str, embedding: DocumentEmbedding, chunk_tokens: int) -> list[Chunk]:
    spans = embedding.spans
    if not covers(embedding, text):
        raise InputError(
            f"the embedding covers {int(spans[-1, 1])} characters, the text has {len(text)}: it "
            "is of another text"
        )
    return [
        Chunk(
            text=text[spans[first, 0] : spans[end - 1, 1]],
            start=int(spans[first, 0]),
            end=int(spans[end - 1, 1]),
            vector=embedding.stretch_vector(first, end - 1),
            first_landmark=first,
            last_landmark=end - 1,
            n_tokens=int(np.sum(embedding.landmark_tokens[first:end])),
        )
        for first, end in _groups(text, spans, embedding.landmark_tokens, chunk_tokens)
    ]


def _groups(text: str, spans: Ints, tokens: Ints, chunk_tokens: int) -> list[tuple[int, int]]:
    return group_stretches(tokens, end_grades(text, spans), chunk_tokens)
