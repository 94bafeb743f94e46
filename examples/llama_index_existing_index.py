"""Landmark vectors in a LlamaIndex application that exists already: only its `embed_model` changes.

    python examples/llama_index_existing_index.py "when does the valve open?"

Splitter, vector store and query engine stay what they are. For landmarks per node and exact
passages, add `LMKNodeParser`, `LMKVectorStore` and `LMKRetriever` as well.
"""

import sys

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter

from llama_index.embeddings.lmk import LMKEmbedding

DOCUMENTS = [
    Document(id_="valve", text="The valve closes at 80 degrees and opens again at 72 degrees."),
    Document(id_="pump", text="The pump is restarted by hand after every power cut."),
    Document(id_="holiday", text="The office is closed between Christmas and New Year."),
]


def build_index() -> VectorStoreIndex:
    """Build the index as ever, with another embedding model."""
    return VectorStoreIndex.from_documents(
        DOCUMENTS,
        transformations=[SentenceSplitter(chunk_size=512)],
        embed_model=LMKEmbedding(),
    )


def main() -> None:
    """Answer the question on the command line."""
    question = sys.argv[1] if len(sys.argv) > 1 else "when does the valve open?"
    for found in build_index().as_retriever(similarity_top_k=2).retrieve(question):
        print(f"{found.score:.3f}  {found.node.ref_doc_id}: {found.text}")


if __name__ == "__main__":
    main()
