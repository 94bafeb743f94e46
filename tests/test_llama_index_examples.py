"""The LlamaIndex examples run as they are."""

import runpy
import sys
from pathlib import Path

import pytest
from llama_index.core import MockEmbedding
from llama_index.core.schema import Document, TextNode
from llama_index.core.vector_stores.utils import node_to_metadata_dict
from qdrant_client import QdrantClient, models

from llama_index.vector_stores.lmk import LMKVectorStore

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_existing_index(monkeypatch, capsys):
    run("llama_index_existing_index.py", monkeypatch)
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("valve: The valve closes at 80 degrees and opens again at 72 degrees.")
    assert float(first.split()[0]) > float(second.split()[0])
    run("llama_index_existing_index.py", monkeypatch, "when is the office open?")
    assert "holiday" in capsys.readouterr().out.splitlines()[0]


# Local mode has no payload indexes, and says so to whoever asks for one.
@pytest.mark.filterwarnings("ignore:Payload indexes have no effect")
def test_migration_from_the_stock_store(monkeypatch, capsys):
    pytest.importorskip("llama_index.vector_stores.qdrant")
    run("llama_index_migrate_from_qdrant.py", monkeypatch)
    moved, found = capsys.readouterr().out.splitlines()
    assert moved == "2 nodes moved"
    assert found.endswith("pump {'page': 3}: The pump is restarted by hand.")


def test_migration_of_more_than_a_page_is_repeatable():
    """The format is the stock store's: the node as JSON in the payload."""
    client = QdrantClient(":memory:")
    client.create_collection("old", models.VectorParams(size=2, distance=models.Distance.COSINE))
    source = Document(id_="doc").as_related_node_info()
    nodes = [
        TextNode(text=f"text {i}", metadata={"n": i}, relationships={"1": source})
        for i in range(300)
    ]
    client.upsert(
        "old",
        [
            models.PointStruct(id=n.node_id, vector=[1, 0], payload=node_to_metadata_dict(n))
            for n in nodes
        ],
    )
    module = runpy.run_path(str(EXAMPLES / "llama_index_migrate_from_qdrant.py"))
    new = LMKVectorStore(
        collection_name="new", qdrant_client=client, embed_model=MockEmbedding(embed_dim=4)
    )
    for _ in range(2):
        assert module["migrate"](client, "old", new) == 300
        assert new.store.count() == 300
    assert new.get_nodes([nodes[7].node_id]) == [nodes[7]]
    assert client.count("old").count == 300
