"""Which documents can be stored, and the revision that tells whether one has changed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from lmk_rag.chunker import covers
from lmk_rag.errors import InputError
from lmk_rag.store.metadata import Json, canonical_json, clean_metadata, surrogate_at
from lmk_rag.types import Document, DocumentEmbedding

_UNIT = 1e-3  # what half precision leaves of a length of 1


@dataclass(frozen=True)
class Skipped:
    """A document that was not stored.

    Attributes:
        document_id: as given, for reading.
        reason: what was found and what to do.
        is_error: False for a blank text, which there is nothing to store of.
    """

    document_id: str
    reason: str
    is_error: bool


@dataclass(frozen=True, eq=False)
class Candidate:
    """A document fit to be stored: with cleaned metadata, revision and embedding, if given."""

    document: Document
    metadata: Json
    revision: str
    embedding: DocumentEmbedding | None


def check_document(
    document: object, embedding: DocumentEmbedding | None, fingerprint: str
) -> Candidate | Skipped:
    """Check one document and compute its revision, or say why it can't be stored."""
    if not isinstance(document, Document):
        return Skipped(f"{document!r:.80}", "not a Document", is_error=True)
    name = f"{document.id!s:.200}"
    if not isinstance(document.id, str) or not document.id:
        kind = type(document.id).__name__
        reason = f"the id is {document.id!r:.80} ({kind}); expected a non-empty string"
        return Skipped(name, reason, is_error=True)
    if not isinstance(document.text, str):
        reason = f"the text of {name!r} is {document.text!r:.80}; expected a string"
        return Skipped(name, reason, is_error=True)
    for what, value in (("id", document.id), ("text", document.text)):
        at = surrogate_at(value)
        if at is not None:
            reason = (
                f"the {what} of {name!r} has a lone surrogate {value[at]!r} at character {at}, "
                "which is no valid text; replace it, by U+FFFD for instance"
            )
            return Skipped(name.encode("utf-8", "replace").decode(), reason, is_error=True)
    try:
        metadata = clean_metadata(document.metadata)
    except InputError as error:
        return Skipped(name, f"document {name!r}: {error}", is_error=True)
    if not document.text.strip():
        return Skipped(name, "the text is blank", is_error=False)
    return Candidate(document, metadata, _revision(document, metadata, fingerprint), embedding)


def embedding_fault(embedding: DocumentEmbedding, text: str, dim: int) -> str | None:
    """Say why an embedding can't be stored with a text, or None if it can."""
    n = len(embedding.spans)
    parts = (embedding.vector, embedding.landmarks, embedding.landmark_tokens, embedding.norms)
    shapes = tuple(part.shape for part in parts)
    if n == 0 or shapes != ((dim,), (n, dim), (n,), (n,)):
        return f"its embedding has the shapes {shapes} for {n} spans; the store has width {dim}"
    if not covers(embedding, text):
        return (
            f"its embedding covers {int(embedding.spans[-1, 1])} characters, the text has "
            f"{len(text)}: it is of another text"
        )
    starts, ends = embedding.spans[:, 0], embedding.spans[:, 1]
    # Two neighbors may share a character, of which each has some tokens.
    steps = starts[1:] - ends[:-1]
    if starts[0] != 0 or (starts > ends).any() or not np.isin(steps, (0, -1)).all():
        return "the spans of its embedding don't follow each other from the text's beginning"
    if not all(np.isfinite(part).all() for part in parts):
        return "its embedding holds NaN or infinity"
    if (embedding.norms <= 0).any():
        return f"a norm of its embedding is {embedding.norms.min():.4g}; expected positive ones"
    lengths = np.linalg.norm(np.vstack([embedding.vector, embedding.landmarks]), axis=1)
    worst = lengths[np.abs(lengths - 1).argmax()]
    if abs(worst - 1) > _UNIT:  # dot products would be no cosines
        return (
            f"a vector or landmark of its embedding has length {worst:.4g}; expected unit length: "
            "divide it by that"
        )
    return None


def _revision(document: Document, metadata: Json, fingerprint: str) -> str:
    # The id is in it: two documents that swap their texts must not share revisions.
    parts = (document.id, document.text, canonical_json(metadata), fingerprint)
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()[:32]
