"""Maximal marginal relevance: LlamaIndex's own arithmetic over the store's document vectors."""

from __future__ import annotations

from collections.abc import Sequence

from llama_index.core.indices.query.embedding_utils import get_top_k_mmr_embeddings

from lmk_rag import QdrantStore
from lmk_rag.types import Floats


def diverse(
    store: QdrantStore, query: Floats, ids: Sequence[str], k: int, threshold: float | None
) -> dict[str, float]:
    """Choose up to `k` of some nodes that differ from each other, best first, with scores.

    Args:
        store: where they are.
        query: (D,).
        ids: the nodes to choose from.
        k: the most.
        threshold: from 0, all difference, to 1, all relevance; None: 0.5.
    """
    vectors = store.document_vectors(ids)
    here = [id_ for id_ in ids if id_ in vectors]
    scores, chosen = get_top_k_mmr_embeddings(
        query.tolist(),
        [vectors[id_].tolist() for id_ in here],
        similarity_top_k=k,
        embedding_ids=here,
        mmr_threshold=threshold,
    )
    return dict(zip(chosen, map(float, scores), strict=True))
