"""Ordinary user code, checked by mypy only (`make types`): the public names and their types."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lmk_rag import (
    Chunk,
    Document,
    DocumentEmbedding,
    LandmarkChunker,
    LandmarkConfig,
    LandmarkEncoder,
    Passage,
    QdrantStore,
    QueryEmbedding,
    Retriever,
)
from lmk_rag.store import And, CollectionOptions, Eq, Range


def documents() -> Iterator[Document]:
    yield Document("a", "text")
    yield Document("b", "text", {"year": 2026})


encoder = LandmarkEncoder(config=LandmarkConfig(granularity=16, boundary="sentence"))
embeddings: list[DocumentEmbedding] = encoder.encode_documents(["text"], show_progress=False)
vector: NDArray[np.float32] = embeddings[0].vector
queries: NDArray[np.float32] = encoder.encode_queries(["question"])
asked: list[QueryEmbedding] = encoder.encode_query_parts(["question"])
rows: NDArray[np.float32] = asked[0].rows
chunks: list[Chunk] = LandmarkChunker(encoder, chunk_tokens=128).chunk("text", embeddings[0])
with QdrantStore(
    "docs", encoder=encoder, location="folder", options=CollectionOptions(float16=False)
) as store:
    added: list[str] = store.add(documents()).added
    passages: list[Passage] = Retriever(store).search(
        "question", k=3, filter=And(Eq("lang", "en"), Range("year", gte=2020)), mode="two-stage"
    )
    passages = Retriever(store).search(vector, per_document=2)
    passages = Retriever(store).search(asked[0], mode="hybrid", words="question")
