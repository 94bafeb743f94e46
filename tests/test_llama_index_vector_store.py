"""`LMKVectorStore` and `LMKRetriever`: beyond the conformance suites, what is ours about them."""

import logging
import pickle
from itertools import pairwise

import numpy as np
import pytest
from llama_index.core import MockEmbedding
from llama_index.core.schema import Document, ImageNode, IndexNode, NodeRelationship, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)
from qdrant_client import QdrantClient

from llama_index.embeddings.lmk import LMKEmbedding
from llama_index.node_parser.lmk import LMKNodeParser
from llama_index.retrievers.lmk import LMKRetriever
from llama_index.vector_stores.lmk import LMKVectorStore
from lmk_rag import LandmarkEncoder, Retriever
from lmk_rag.errors import (
    CollectionMismatchError,
    InputError,
    NonFiniteError,
    StoreLockedError,
)
from lmk_rag.store import CollectionOptions
from lmk_rag.store.local import LocalBackend

pytestmark = pytest.mark.filterwarnings("ignore:.*was not trained with landmarks")

VALVE = "The valve of station seven closes at 80 degrees and opens again at 72 degrees."
FILLER = "The weather was fine and nobody worried about anything at all. "
REPORT = FILLER * 12 + VALVE + " " + FILLER * 12


@pytest.fixture(scope="module")
def default() -> LMKEmbedding:
    return LMKEmbedding()


@pytest.fixture
def tiny(model_folder) -> LMKEmbedding:
    config = {"granularity": 4, "overlap": 16}
    return LMKEmbedding(
        model_name=model_folder("bert"), config=config, device="cpu", dtype="float32"
    )


def parsed(embedding, *documents, chunk_size=256):
    return LMKNodeParser(embed_model=embedding, chunk_size=chunk_size)(list(documents))


def query(embedding, text, k=3, **options):
    return VectorStoreQuery(
        query_embedding=embedding.get_query_embedding(text), similarity_top_k=k, **options
    )


def test_the_best_landmark_scores_a_node(default):
    vector_store = LMKVectorStore(embed_model=default)
    (node,) = parsed(default, Document(id_="r", text=REPORT), chunk_size=10_000)
    vector_store.add([node])
    result = vector_store.query(query(default, "when does the valve open?"))
    rows = default.encoder.encode_documents([REPORT])[0].landmarks
    asked = np.float32(default.get_query_embedding("when does the valve open?"))
    assert result.similarities == [pytest.approx(float((rows @ asked).max()), abs=1e-3)]
    assert result.similarities[0] > float(np.float32(node.embedding) @ asked) + 0.1
    assert vector_store.store.documents().__next__().n_landmarks == len(rows) > 8


def test_nodes_of_the_parser_are_not_encoded_again(tiny, monkeypatch):
    nodes = parsed(tiny, Document(id_="r", text=REPORT), chunk_size=32)
    vector_store = LMKVectorStore(embed_model=tiny)
    vector_store.store  # noqa: B018  # opening measures the encoder
    monkeypatch.setattr(LandmarkEncoder, "_encode", None)
    vector_store.add(nodes)
    assert [n.text for n in vector_store.get_nodes([n.node_id for n in nodes])] == [
        n.text for n in nodes
    ]


def test_stored_nodes_bear_no_trace_of_their_landmarks(tiny):
    nodes = parsed(tiny, Document(id_="r", text=REPORT, metadata={"a": 1}), chunk_size=32)
    vector_store = LMKVectorStore(embed_model=tiny)
    vector_store.add(nodes)
    for document in vector_store.store.get([node.node_id for node in nodes]):
        assert "lmk_landmarks" not in document.metadata
        assert document.text not in document.metadata["_node_content"]
        assert len(document.metadata["_node_content"]) < 2_000
    assert all(node.metadata == {"a": 1} for node in vector_store.get_nodes())


def test_nodes_of_other_parsers_get_landmarks_too(tiny):
    """Their own text is encoded, without the metadata that went into their embedding."""
    node = TextNode(id_="a", text=REPORT, metadata={"title": "x"})
    tiny([node])
    vector_store = LMKVectorStore(embed_model=tiny)
    vector_store.add([node])
    (info,) = vector_store.store.documents()
    core = tiny.encoder.encode_documents([REPORT])[0]
    assert info.n_landmarks == core.n_landmarks
    vectors = vector_store.store.document_vectors(["a"])
    np.testing.assert_allclose(vectors["a"], core.vector, atol=1e-6)


def test_a_node_whose_text_was_changed_after_parsing_is_encoded_anew(tiny):
    (node,) = parsed(tiny, Document(text=VALVE), chunk_size=10_000)
    node.text = node.text.upper()
    vector_store = LMKVectorStore(embed_model=tiny)
    vector_store.add([node])
    found = vector_store.store.document_vectors([node.node_id])[node.node_id]
    np.testing.assert_allclose(
        found, tiny.encoder.encode_documents([node.text])[0].vector, atol=1e-6
    )


def test_a_node_without_embedding_is_encoded(tiny):
    vector_store = LMKVectorStore(embed_model=tiny)
    vector_store.add([TextNode(id_="a", text=VALVE)])
    assert vector_store.query(query(tiny, "valve")).ids == ["a"]


def test_landmarks_of_another_encoder_are_refused_before_anything_is_written(tiny):
    other = tiny.model_copy(update={"config": None})
    nodes = parsed(tiny, Document(text=VALVE)) + parsed(other, Document(text=VALVE))
    vector_store = LMKVectorStore(embed_model=tiny)
    with pytest.raises(InputError, match="give the parser and the store one embed_model"):
        vector_store.add(nodes)
    assert vector_store.get_nodes() == []


def test_the_vector_of_another_model_may_change_alone():
    model = MockEmbedding(embed_dim=2)
    vector_store = LMKVectorStore(embed_model=model)
    for vector in ([1.0, 0.0], [0.0, 2.0]):
        vector_store.add([TextNode(id_="a", text="alpha", embedding=vector)])
    result = vector_store.query(VectorStoreQuery(query_embedding=[0.0, 1.0]))
    assert result.similarities == [pytest.approx(1.0)]
    assert vector_store.store.count() == 1


@pytest.mark.parametrize("vector", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_a_useless_vector_is_refused(vector):
    vector_store = LMKVectorStore(embed_model=MockEmbedding(embed_dim=2))
    with pytest.raises(NonFiniteError, match="node a"):
        vector_store.add([TextNode(id_="a", text="alpha", embedding=vector)])
    assert vector_store.get_nodes() == []


def test_blank_nodes_are_logged(tiny, caplog):
    vector_store = LMKVectorStore(embed_model=tiny)
    with caplog.at_level(logging.WARNING):
        assert vector_store.add([TextNode(id_="a", text=" "), TextNode(id_="b", text="x")]) == [
            "a",
            "b",
        ]
    assert "1 nodes have no text" in caplog.text
    assert [node.node_id for node in vector_store.get_nodes()] == ["b"]


def test_other_kinds_of_nodes_come_back_as_what_they_were(tiny):
    nodes = [
        IndexNode(id_="i", text="see the report", index_id="report"),
        ImageNode(id_="p", text="a picture of a valve", image_path="valve.png"),
    ]
    vector_store = LMKVectorStore(embed_model=tiny)
    vector_store.add(nodes)
    assert vector_store.get_nodes(["i", "p"]) == nodes


def test_a_folder_keeps_its_nodes_and_deletions(tiny, tmp_path):
    nodes = parsed(tiny, Document(id_="A", text=REPORT), Document(id_="B", text=VALVE))
    vector_store = LMKVectorStore(embed_model=tiny, location=tmp_path / "store")
    vector_store.add(nodes)
    vector_store.delete("A")
    vector_store.close()
    vector_store.close()
    again = LMKVectorStore(embed_model=tiny, location=tmp_path / "store")
    assert {node.ref_doc_id for node in again.get_nodes()} == {"B"}
    with pytest.raises(StoreLockedError, match="open in another"):
        vector_store.get_nodes()
    again.close()
    assert len(vector_store.get_nodes()) == len([n for n in nodes if n.ref_doc_id == "B"])
    vector_store.close()


def test_a_collection_of_another_model_is_refused_and_left_alone(tiny):
    client = QdrantClient(":memory:")
    first = LMKVectorStore(embed_model=tiny, qdrant_client=client)
    first.add([TextNode(id_="a", text=VALVE)])
    other = tiny.model_copy(update={"config": None})
    with pytest.raises(CollectionMismatchError, match="granularity is 4 there and 16 here"):
        LMKVectorStore(embed_model=other, qdrant_client=client).get_nodes()
    assert len(first.get_nodes()) == 1
    second = LMKVectorStore(embed_model=other, qdrant_client=client, collection_name="other")
    assert second.get_nodes() == []
    first.close()
    assert client.collection_exists("other")


def test_pickles_hold_settings_and_no_store(tiny, tmp_path):
    options = CollectionOptions(float16=False)
    vector_store = LMKVectorStore(
        embed_model=tiny, location=tmp_path, api_key="secret", options=options, timeout=7
    )
    twin = pickle.loads(pickle.dumps(vector_store))
    assert (twin.location, twin.timeout, twin.options) == (str(tmp_path), 7, options)
    assert twin.api_key.get_secret_value() == "secret"
    assert vector_store.store.count() == 0
    data = pickle.dumps(vector_store)
    assert vector_store.store.count() == 0
    vector_store.close()
    assert pickle.loads(data).store.count() == 0
    assert "secret" not in str(vector_store.to_dict()) + repr(vector_store)
    mine = LMKVectorStore(embed_model=tiny, qdrant_client=QdrantClient(":memory:"))
    with pytest.raises(TypeError, match="give it a location"):
        pickle.dumps(mine)
    with pytest.raises(InputError, match="pass-qdrant_client-again"):
        LMKVectorStore.from_dict(mine.to_dict()).get_nodes()


def test_filters_without_a_condition_delete_nothing(tiny):
    vector_store = LMKVectorStore(embed_model=tiny)
    vector_store.add([TextNode(id_=name, text=f"text {name}") for name in "ab"])
    for condition in FilterCondition:
        filters = MetadataFilters(filters=[], condition=condition)
        with pytest.raises(InputError, match="hold no condition; use clear"):
            vector_store.delete_nodes(["a"], filters)
    assert len(vector_store.get_nodes()) == 2


def test_a_server_is_asked_to_index_what_nodes_are_deleted_by(tiny, monkeypatch):
    asked = []
    monkeypatch.setattr(LocalBackend, "index", lambda self, fields: asked.append(dict(fields)))
    options = CollectionOptions(payload_indexes={"year": "float"})
    assert LMKVectorStore(embed_model=tiny, options=options).get_nodes() == []
    assert asked == [
        {
            "metadata._node_id": "keyword",
            "metadata._source_id": "keyword",
            "metadata.year": "float",
        }
    ]


def test_unknown_options_are_refused(tiny):
    vector_store = LMKVectorStore(embed_model=tiny)
    with pytest.raises(ValueError, match="colection_name"):
        LMKVectorStore(embed_model=tiny, colection_name="x")
    for call in (
        lambda: vector_store.add([], shard=1),
        lambda: vector_store.delete("a", shard=1),
        lambda: vector_store.delete_nodes([], shard=1),
        lambda: vector_store.query(query(tiny, "x"), shard=1),
    ):
        with pytest.raises(TypeError, match="shard"):
            call()


def test_a_query_of_another_width_is_refused(tiny):
    vector_store = LMKVectorStore(embed_model=tiny)
    with pytest.raises(InputError, match=r"expected \(32,\)"):
        vector_store.query(VectorStoreQuery(query_embedding=[1.0, 2.0]))


def test_passages_are_the_cores_with_places_in_the_document(default):
    vector_store = LMKVectorStore(embed_model=default)
    document = Document(id_="r", text=REPORT, metadata={"file": "r.txt"})
    nodes = parsed(default, document, chunk_size=128)
    assert len(nodes) > 2
    vector_store.add(nodes)
    asked = "when does the valve open?"
    found = LMKRetriever(vector_store, similarity_top_k=3, passage_tokens=48).retrieve(asked)
    core = Retriever(vector_store.store).search(asked, k=3, passage_tokens=48)
    assert [node.text for node in found] == [passage.text for passage in core]
    assert [n.score for n in found] == pytest.approx([p.score for p in core], abs=1e-6)
    best = found[0].node
    assert VALVE in best.text
    for node in (one.node for one in found):
        assert REPORT[node.start_char_idx : node.end_char_idx] == node.text
        assert node.ref_doc_id == "r"
        assert node.source_node.hash == document.hash
        assert node.parent_node.node_id in {n.node_id for n in nodes}
        assert node.metadata["file"] == "r.txt"
        assert "lmk_best" not in node.get_content("llm") + node.get_content("embed")
    start, end = best.metadata["lmk_best_start"], best.metadata["lmk_best_end"]
    assert "valve" in best.text[start:end]


@pytest.mark.parametrize("mode", ["default", "mmr", "hybrid"])
def test_an_index_asks_in_parts_and_an_embedding_of_something_else_stands_alone(default, mode):
    texts = {"a": REPORT, "b": FILLER * 9, "c": "The valve is old. " + FILLER * 3}
    vector_store = LMKVectorStore(embed_model=default)
    vector_store.add([TextNode(id_=id_, text=text) for id_, text in texts.items()])
    asked, other = "when does the valve of station seven close?", "the weather"

    def ask(**given):
        found = vector_store.query(
            VectorStoreQuery(similarity_top_k=3, mode=VectorStoreQueryMode(mode), **given)
        )
        return dict(zip(found.ids, found.similarities, strict=True))

    by_text = ask(query_str=asked)
    vector, beside = (default.get_query_embedding(text) for text in (asked, other))
    assert ask(query_str=asked, query_embedding=vector) == pytest.approx(by_text, abs=1e-3)
    alone = ask(query_str=asked, query_embedding=beside)
    if mode == "default":  # of the last the parts are not known
        assert alone == pytest.approx(ask(query_embedding=beside))
        assert by_text != pytest.approx(ask(query_embedding=vector), abs=1e-2)
    else:
        assert alone != pytest.approx(by_text, abs=1e-3)


def test_whole_documents_as_nodes_give_several_passages_each(default):
    text = REPORT + "\n\n" + "The pump is restarted by hand after a power cut. " + FILLER * 12
    vector_store = LMKVectorStore(embed_model=default)
    vector_store.add(parsed(default, Document(id_="r", text=text), chunk_size=1_000_000))
    retriever = LMKRetriever(vector_store, similarity_top_k=4, per_node=4, passage_tokens=64)
    found = retriever.retrieve("who restarts the pump?")
    assert len(found) == 4
    assert len({node.node_id for node in found}) == 4
    assert "restarted by hand" in found[0].text
    spans = sorted((one.node.start_char_idx, one.node.end_char_idx) for one in found)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert all(text[n.node.start_char_idx : n.node.end_char_idx] == n.text for n in found)


def test_passages_of_nodes_without_source_or_offsets(tiny):
    vector_store = LMKVectorStore(embed_model=tiny)
    lone = TextNode(id_="lone", text="  " + VALVE)
    lost = TextNode(id_="lost", text=VALVE)
    lost.relationships[NodeRelationship.SOURCE] = Document(id_="D").as_related_node_info()
    vector_store.add([lone, lost])
    found = {n.node.parent_node.node_id: n.node for n in LMKRetriever(vector_store).retrieve("x")}
    assert found["lone"].ref_doc_id == "lone"
    assert lone.text[found["lone"].start_char_idx : found["lone"].end_char_idx] == VALVE
    assert found["lost"].ref_doc_id == "D"
    assert found["lost"].start_char_idx is None


def test_passages_heed_filters_and_documents(tiny):
    vector_store = LMKVectorStore(embed_model=tiny)
    for id_ in ("A", "B"):
        vector_store.add(parsed(tiny, Document(id_=id_, text=VALVE, metadata={"name": id_})))

    def sources(**options):
        found = LMKRetriever(vector_store, **options).retrieve("valve")
        return {node.node.ref_doc_id for node in found}

    only_b = MetadataFilters(filters=[MetadataFilter(key="name", value="B")])
    assert sources() == {"A", "B"}
    assert sources(filters=only_b) == {"B"}
    assert sources(doc_ids=["A"]) == {"A"}
    assert sources(doc_ids=["A"], filters=only_b) == set()


def test_passages_do_not_share_their_metadata(tiny):
    vector_store = LMKVectorStore(embed_model=tiny)
    vector_store.add([TextNode(id_="a", text=REPORT, metadata={"tags": ["x"]})])
    retriever = LMKRetriever(vector_store, per_node=2, passage_tokens=16)
    first, second = retriever.retrieve("valve")
    first.node.metadata["tags"].append("y")
    assert second.node.metadata["tags"] == ["x"]
    assert retriever.retrieve("valve")[0].node.metadata["tags"] == ["x"]
