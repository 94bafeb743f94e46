"""The LangChain examples run, and do what they say."""

import runpy
import uuid
from pathlib import Path

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_qdrant import QdrantVectorStore
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, VectorParams

from langchain_lmk import LMKVectorStore

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_embeddings_in_an_existing_vector_store(capsys):
    runpy.run_path(str(EXAMPLES / "langchain_qdrant_embeddings.py"), run_name="__main__")
    first, second = capsys.readouterr().out.splitlines()
    assert "v7.txt  The pump of station V-7" in first
    assert "notes.txt  Cats sleep" in second


def test_migrating_from_langchain_qdrant(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["langchain_migrate_from_qdrant.py"])
    runpy.run_path(str(EXAMPLES / "langchain_migrate_from_qdrant.py"), run_name="__main__")
    moved, passage = capsys.readouterr().out.splitlines()
    assert moved == "3 documents moved"
    assert passage.endswith(
        "v7.txt  line 1: The pump was built in 1962. Its valve opens at 80 degrees."
    )


def test_migrating_keeps_text_metadata_and_ids_page_by_page():
    example = runpy.run_path(str(EXAMPLES / "langchain_migrate_from_qdrant.py"))
    client = QdrantClient(":memory:")
    client.create_collection("old", vectors_config=VectorParams(size=8, distance=Distance.COSINE))
    embedding = DeterministicFakeEmbedding(size=8)
    documents = [
        Document(id=str(uuid.UUID(int=n)), page_content=f" text {n}\n", metadata={"n": n, "m": {}})
        for n in range(300)
    ]
    blank = Document(id=str(uuid.UUID(int=300)), page_content=" ")
    QdrantVectorStore(client, "old", embedding=embedding).add_documents([*documents, blank])
    new = LMKVectorStore(embedding, client=client, collection_name="new")
    for _ in range(2):
        assert example["migrate"](client, "old", new) == 300
        assert new.store.count() == 300
    assert new.get_by_ids([document.id for document in documents]) == documents
    assert client.count("old").count == 301
