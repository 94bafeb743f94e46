"""Move a collection of llama-index-vector-stores-qdrant to `LMKVectorStore`.

    python examples/llama_index_migrate_from_qdrant.py http://localhost:6333 old new

reads the collection `old` there and writes `new` beside it; with no arguments it shows the same
on a small collection in memory. Node ids, texts, metadata and relations stay; the texts are
encoded anew, because landmarks can't be made from single vectors. The old collection is only
read: delete it when you are content.
"""

import sys
from collections.abc import Iterator

from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node
from qdrant_client import QdrantClient

from llama_index.embeddings.lmk import LMKEmbedding
from llama_index.vector_stores.lmk import LMKVectorStore


def stored_nodes(client: QdrantClient, collection: str) -> Iterator[list[BaseNode]]:
    """Yield the nodes of a stock collection, a page at a time, without their old vectors."""
    offset = None
    while True:
        records, offset = client.scroll(collection, limit=256, offset=offset, with_payload=True)
        yield [metadata_dict_to_node(record.payload or {}) for record in records]
        if offset is None:
            return


def migrate(client: QdrantClient, collection: str, vector_store: LMKVectorStore) -> int:
    """Copy every node; running it again changes nothing."""
    moved = 0
    for nodes in stored_nodes(client, collection):
        moved += len(vector_store.add(nodes))
    return moved


def demo() -> None:
    """Make a stock collection with another embedding model, and move it."""
    from llama_index.core import Document, MockEmbedding, StorageContext, VectorStoreIndex
    from llama_index.vector_stores.qdrant import QdrantVectorStore

    client = QdrantClient(":memory:")
    old = QdrantVectorStore("old", client=client)
    VectorStoreIndex.from_documents(
        [
            Document(id_="valve", text="The valve closes at 80 degrees and opens again at 72."),
            Document(id_="pump", text="The pump is restarted by hand.", metadata={"page": 3}),
        ],
        storage_context=StorageContext.from_defaults(vector_store=old),
        embed_model=MockEmbedding(embed_dim=8),
    )
    embed_model = LMKEmbedding()
    new = LMKVectorStore(collection_name="new", qdrant_client=client, embed_model=embed_model)
    print(f"{migrate(client, 'old', new)} nodes moved")
    index = VectorStoreIndex.from_vector_store(new, embed_model=embed_model)
    found = index.as_retriever(similarity_top_k=1).retrieve("who starts the pump?")[0]
    print(f"{found.score:.3f}  {found.node.ref_doc_id} {found.metadata}: {found.text}")


def main() -> None:
    """Migrate what the command line names, or show how it goes."""
    if len(sys.argv) == 1:
        demo()
        return
    url, old, new = sys.argv[1:]
    with_landmarks = LMKVectorStore(collection_name=new, location=url)
    print(f"{migrate(QdrantClient(url=url), old, with_landmarks)} nodes moved")


if __name__ == "__main__":
    main()
