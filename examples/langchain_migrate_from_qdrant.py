"""From langchain-qdrant's QdrantVectorStore to LMKVectorStore, in the same Qdrant.

    pip install 'lmk-rag[langchain]' langchain-qdrant
    python examples/langchain_migrate_from_qdrant.py http://localhost:6333 old new

reads the collection `old` there and writes `new` beside it; with no arguments it shows the same
on a small collection in memory. Texts, metadata and ids move; vectors are made anew, since
landmarks can't be made from single vectors. Running again changes nothing that is done already.

This moves the old store's pieces as they are. If you still have the whole documents, index those
instead: no splitting is needed, and `LMKRetriever` finds the passages in them.
"""

import sys
from collections.abc import Iterator

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_qdrant import QdrantVectorStore
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, VectorParams

from langchain_lmk import LMKEmbeddings, LMKRetriever, LMKVectorStore


def pages(client: QdrantClient, collection: str, size: int = 256) -> Iterator[list[Document]]:
    """Yield what langchain-qdrant stored, a page at a time; blank texts are left out."""
    offset = None
    while True:
        points, offset = client.scroll(collection, limit=size, offset=offset)
        payloads = [(str(point.id), point.payload or {}) for point in points]
        yield [
            Document(
                id=id_, page_content=payload["page_content"], metadata=payload.get("metadata") or {}
            )
            for id_, payload in payloads
            if payload["page_content"].strip()
        ]
        if offset is None:
            return


def migrate(client: QdrantClient, old: str, new: LMKVectorStore) -> int:
    """Copy every document of the collection `old` into `new`; returns how many."""
    return sum(len(new.add_documents(page)) for page in pages(client, old))


def sample() -> QdrantClient:
    """Fill a collection as langchain-qdrant does."""
    client = QdrantClient(":memory:")
    client.create_collection("old", vectors_config=VectorParams(size=8, distance=Distance.COSINE))
    old = QdrantVectorStore(client, "old", embedding=DeterministicFakeEmbedding(size=8))
    old.add_texts(
        [
            "The pump was built in 1962. Its valve opens at 80 degrees.",
            "Cats sleep for most of the day.",
            "Bread is made of flour and water.",
        ],
        metadatas=[{"file": "v7.txt"}, {"file": "cats.txt"}, {"file": "bread.txt"}],
    )
    return client


def main() -> None:
    """Move a collection, and ask the new one."""
    url, old, new = sys.argv[1:] or (None, "old", "new")
    client = QdrantClient(url=url) if url else sample()
    vector_store = LMKVectorStore(LMKEmbeddings(), client=client, collection_name=new)
    print(f"{migrate(client, old, vector_store)} documents moved")
    retriever = LMKRetriever(store=vector_store.store, k=1)
    for passage in retriever.invoke("When does the valve open?"):
        print(f"{passage.metadata['score']:.2f}  {passage.metadata.get('file', '')}", end="  ")
        print(f"line {passage.metadata['line']}: {passage.page_content}")
    client.close()


if __name__ == "__main__":
    main()
