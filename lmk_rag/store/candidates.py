"""Which documents can be stored, and the revision that tells whether one has changed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from lmk_rag.errors import InputError
from lmk_rag.store.metadata import Json, canonical_json, clean_metadata, surrogate_at
from lmk_rag.types import Document, DocumentEmbedding


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
    revision = _revision(document.text, metadata, fingerprint)
    if embedding is not None and embedding.spans[-1, 1] > len(document.text):
        reason = f"the embedding given for {name!r} is of another text"
        return Skipped(name, reason, is_error=True)
    return Candidate(document, metadata, revision, embedding)


def _revision(text: str, metadata: Json, fingerprint: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8"))
    digest.update(b"\x1f" + canonical_json(metadata).encode("ascii"))
    digest.update(b"\x1f" + fingerprint.encode("utf-8"))
    return digest.hexdigest()[:32]
