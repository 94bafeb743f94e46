"""LMKEmbeddings in a Qdrant vector store that you have already.

    pip install 'lmk-rag[langchain]' langchain-qdrant
    python examples/langchain_qdrant_embeddings.py

Nothing but the embedding changes: a text of any length becomes one vector, so long documents go
in whole. A collection holds the vectors of one model: use a new one, and index again.
"""

from langchain_qdrant import QdrantVectorStore
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, VectorParams

from langchain_lmk import LMKEmbeddings

MANUAL = (
    "The pump of station V-7 was built in 1962 and moves 40 litres a second. "
    + "It is inspected every spring, when the water is low. " * 60
    + "Its valve opens at 80 degrees and closes again at 72 degrees."
)
NOTES = "Cats sleep for most of the day, and mice wake at night."


def main() -> None:
    """Index two texts and ask for one."""
    embeddings = LMKEmbeddings()
    client = QdrantClient(":memory:")
    client.create_collection(
        "manuals",
        vectors_config=VectorParams(size=embeddings.encoder.dim, distance=Distance.COSINE),
    )
    vector_store = QdrantVectorStore(client, "manuals", embedding=embeddings)
    vector_store.add_texts([MANUAL, NOTES], metadatas=[{"file": "v7.txt"}, {"file": "notes.txt"}])
    for document, score in vector_store.similarity_search_with_score("How is the pump used?"):
        print(f"{score:.2f}  {document.metadata['file']}  {document.page_content[:50]}...")
    client.close()


if __name__ == "__main__":
    main()
