"""A node's landmarks as one metadata entry: how they travel from the parser to the store.

A node class of our own would not survive the ingestion cache, which knows LlamaIndex's classes
only; a string in the metadata survives it, JSON and pickling. `LMKVectorStore` takes it out.

    "1:<encoder fingerprint>:<checksum of the text>:<base64 of L, spans, tokens, norms, rows>"

Rows are in half precision, as Qdrant stores them: at 384 wide 1 kB for a landmark, 16 kB for a
node of 256 tokens at k = 16, which is twice what its embedding takes in JSON.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace

import numpy as np
from llama_index.core.schema import BaseNode, MetadataMode

from lmk_rag import Chunk, DocumentEmbedding
from lmk_rag.errors import InputError

KEY = "lmk_landmarks"
_FORMAT = "1"


def pack(chunk: Chunk, embedding: DocumentEmbedding, fingerprint: str) -> str:
    """Write the landmarks of a chunk, with spans that count from where it begins."""
    own = slice(chunk.first_landmark, chunk.last_landmark + 1)
    parts = (
        np.array([len(embedding.landmarks[own])], "<i4"),
        (embedding.spans[own] - chunk.start).astype("<i4"),
        embedding.landmark_tokens[own].astype("<i4"),
        embedding.norms[own].astype("<f4"),
        embedding.landmarks[own].astype("<f2"),
    )
    data = base64.b64encode(b"".join(part.tobytes() for part in parts)).decode("ascii")
    return f"{_FORMAT}:{fingerprint}:{_checksum(chunk.text)}:{data}"


def unpack(node: BaseNode, fingerprint: str) -> DocumentEmbedding | None:
    """Read the landmarks of a node; None if it has none, or its text was changed since.

    Raises:
        InputError: they are those of another encoder, or damaged.
    """
    packed = node.metadata.get(KEY)
    if packed is None:
        return None
    version, _, rest = str(packed).partition(":")
    encoder, checksum, data = [*rest.split(":"), "", ""][:3]
    if version != _FORMAT or not data:
        raise InputError(f"node {node.node_id!r} has landmarks of an unknown form")
    if encoder != fingerprint:
        raise InputError(
            f"node {node.node_id!r} has landmarks of the encoder {encoder}, the store has that of "
            f"{fingerprint}: give the parser and the store one embed_model"
        )
    if checksum != _checksum(node.get_content(MetadataMode.NONE)):
        return None
    return _read(base64.b64decode(data), node.embedding)


def is_encoded(node: BaseNode) -> bool:
    """Whether a node brings its vector and its landmarks along."""
    return node.embedding is not None and KEY in node.metadata


def _read(data: bytes, vector: list[float] | None) -> DocumentEmbedding:
    n = int(np.frombuffer(data, "<i4", 1)[0])
    whole = np.frombuffer(data, "<i4", 3 * n, offset=4).astype(np.int64)
    norms = np.frombuffer(data, "<f4", n, offset=4 + 12 * n).astype(np.float32)
    rows = np.frombuffer(data, "<f2", offset=4 + 16 * n).astype(np.float32).reshape(n, -1)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)  # half precision is off by 1e-4
    embedding = DocumentEmbedding(
        vector=np.asarray(vector or rows[0], np.float32),
        landmarks=rows,
        norms=norms,
        spans=whole[: 2 * n].reshape(n, 2),
        landmark_tokens=whole[2 * n :],
        n_windows=1,
    )
    return embedding if vector else replace(embedding, vector=embedding.stretch_vector(0, n - 1))


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"
