"""Opening, reading and deleting, on every engine; field cases FR-O-20 and FR-O-25."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from qdrant_client import AsyncQdrantClient, QdrantClient, models

from lmk_rag import Document, LandmarkConfig, QdrantStore, Retriever
from lmk_rag.errors import (
    ClosedError,
    CollectionMismatchError,
    ConfigError,
    InputError,
    LMKError,
    StoreError,
)
from lmk_rag.store import And, CollectionOptions, Eq, Not, read_config

ENGINES = ["memory", "local"] + ["edge"] * (find_spec("qdrant_edge") is not None)
FOLDER_ENGINES = ENGINES[1:]

A = "".join(f"Part {i} tells of anchors and apples. " for i in range(20))
B = "Bridges carry boats."


@pytest.fixture(params=ENGINES)
def place(request, tmp_path):
    """Keywords that open a store on one of the engines."""
    if request.param == "memory":
        return {"location": ":memory:"}
    return {"location": tmp_path / "store", "engine": request.param}


@pytest.fixture(params=FOLDER_ENGINES)
def folder(request, tmp_path):
    """Keywords that open a store in a folder, again and again."""
    return {"location": tmp_path / "store", "engine": request.param}


@pytest.fixture
def store(place, word_encoder):
    with QdrantStore("docs", encoder=word_encoder(), **place) as store:
        store.add([Document("a", A, {"kind": "long"}), Document("b", B)])
        yield store


def found(store, query):
    """Ids by landmarks, by sections and by document vector."""
    retriever = Retriever(store)
    return [
        {hit.document_id for hit in retriever.search_documents(query, k=9, mode=mode)}
        for mode in ("exact", "two-stage", "document")
    ] + [{p.document_id for p in retriever.search(query, k=9, per_document=9)}]


def test_get_returns_documents_in_the_order_asked(store):
    documents = [Document("b", B), Document("a", A, {"kind": "long"})]
    assert store.get(["b", "no such id", "a", "b"]) == documents
    assert store.get([]) == []
    assert store.get(iter(["b"])) == [documents[0]]


def test_documents_are_listed_with_their_sizes(store):
    infos = {info.id: info for info in store.documents()}
    assert sorted(infos) == ["a", "b"]
    assert replace(infos["b"], revision="") == replace(
        infos["b"], id="b", metadata={}, n_tokens=3, n_landmarks=1, n_segments=1, revision=""
    )
    assert infos["a"].n_tokens == 140
    assert [info.id for info in store.documents(Eq("kind", "long"))] == ["a"]
    assert store.count() == 2
    assert store.count(Not(Eq("kind", "long"))) == 1


def test_document_vectors_are_those_of_the_encoder(store):
    vectors = store.document_vectors(["b", "no such id", "a"])
    assert sorted(vectors) == ["a", "b"]
    for id_, text in (("a", A), ("b", B)):
        expected = store.encoder.encode_documents([text])[0].vector
        assert np.allclose(vectors[id_], expected, atol=1e-6)
    assert store.document_vectors([]) == {}


@pytest.mark.parametrize("ids", [None, "a", b"a", 5, [1], [None], ["a", None]])
def test_ids_that_are_no_list_of_strings_are_refused(store, ids):
    for call in (store.get, store.delete, store.document_vectors):
        with pytest.raises(InputError, match="ids"):
            call(ids)
    assert store.count() == 2


def test_field_case_delete_removes_every_trace(folder, word_encoder):
    with QdrantStore("docs", encoder=word_encoder(), **folder) as store:
        store.add([Document("a", A), Document("b", B)])
        assert found(store, "anchors") == [{"a", "b"}] * 4
        assert store.delete(["a"]) == 1
        assert found(store, "anchors") == [{"b"}] * 4
        assert store.count() == store._backend.count() == 1
        assert store.get(["a", "b"]) == [Document("b", B)]
    with QdrantStore("docs", encoder=word_encoder(), **folder) as store:
        assert found(store, "anchors") == [{"b"}] * 4
        assert store.count() == store._backend.count() == 1
        assert store.delete(["no-such-id"]) == store.delete([]) == store.delete(["a"]) == 0
        with pytest.raises(InputError, match="ids is None"):
            store.delete(None)
        assert store.count() == 1
        assert store.add([Document("a", A)]).added == ["a"]
        assert store.delete(["a", "b", "a", "x"]) == 2
        assert found(store, "anchors") == [set()] * 4


def test_delete_where_deletes_what_fulfills_the_filter(store):
    assert store.delete_where(Eq("kind", "short")) == 0
    assert store.delete_where(Eq("kind", "long")) == 1
    assert [info.id for info in store.documents()] == ["b"]
    with pytest.raises(InputError, match="where is None"):
        store.delete_where(None)
    assert store.count() == 1
    assert store.delete_where(And()) == 1
    assert store.count() == 0


def test_many_documents_are_listed_and_deleted_page_by_page(place, word_encoder):
    with QdrantStore("docs", encoder=word_encoder(k=50, dim=4), **place) as store:
        store.add(Document(f"d{i}", f"text {i}", {"even": i % 2 == 0}) for i in range(300))
        assert store.count() == len({info.id for info in store.documents()}) == 300
        assert len(store.get([f"d{i}" for i in range(300)])) == 300
        assert store.delete_where(Eq("even", True)) == 150
        assert sorted(info.id for info in store.documents())[:3] == ["d1", "d101", "d103"]
        assert store.delete([f"d{i}" for i in range(300)]) == 150
        assert store.count() == 0


# ---- opening


def test_what_was_stored_is_there_after_reopening(folder, word_encoder):
    with QdrantStore("docs", encoder=word_encoder(), **folder) as store:
        store.add([Document("a", A, {"x": [1, {"y": None}]})])
    folder.pop("engine")  # the folder knows
    encoder = word_encoder()
    with QdrantStore("docs", encoder=encoder, **folder) as store:
        assert store.get(["a"]) == [Document("a", A, {"x": [1, {"y": None}]})]
        assert store.add([Document("a", A, {"x": [1, {"y": None}]})]).unchanged == ["a"]
        assert encoder.encoded == []


def test_field_case_every_mismatch_is_reported_and_nothing_lost(folder, word_encoder):
    original = word_encoder(k=16, dim=64, name="model-a")
    with QdrantStore("docs", encoder=original, **folder) as store:
        store.add([Document(str(i), f"Document {i}.") for i in range(3)])
    for other, expected in (
        (word_encoder(k=16, dim=96, name="model-a"), ["width is 64 there and 96 here"]),
        (word_encoder(k=32, dim=64, name="model-a"), ["granularity is 16 there and 32 here"]),
        (
            word_encoder(k=16, dim=64, name="model-b"),
            ["model is 'model-a' there and 'model-b' here"],
        ),
    ):
        with pytest.raises(CollectionMismatchError) as caught:
            QdrantStore("docs", encoder=other, **folder)
        for part in (*expected, "'docs'", "use another collection name"):
            assert part in str(caught.value)
    retrained = word_encoder(k=16, dim=64, name="model-a")
    retrained.fingerprint = "other weights"
    with pytest.raises(CollectionMismatchError, match="weights or tokenizer differ"):
        QdrantStore("docs", encoder=retrained, **folder)
    with QdrantStore("docs", encoder=original, **folder) as store:
        assert store.count() == 3
        assert len(store.get(["0", "1", "2"])) == 3


def test_field_case_a_collection_of_another_tool_is_left_alone(tmp_path, word_encoder):
    for client in (QdrantClient(":memory:"), QdrantClient(path=str(tmp_path / "s"))):
        params = models.VectorParams(size=4, distance=models.Distance.COSINE)
        client.create_collection("docs", params)
        client.upsert("docs", [models.PointStruct(id=1, vector=[1, 0, 0, 0])])
        with pytest.raises(CollectionMismatchError, match="'docs' was not made by lmk-rag"):
            QdrantStore("docs", encoder=word_encoder(), client=client)
        assert client.count("docs").count == 1
        assert read_config("docs", location="", client=client) is None
        client.close()


def test_a_failed_opening_lets_the_folder_go(folder, word_encoder):
    QdrantStore("docs", encoder=word_encoder(), **folder).close()
    for _ in range(3):
        with pytest.raises(CollectionMismatchError):
            QdrantStore("docs", encoder=word_encoder(dim=8), **folder)
    QdrantStore("docs", encoder=word_encoder(), **folder).close()


def test_read_config_returns_what_a_collection_was_made_with(folder, word_encoder):
    location = folder["location"]
    assert read_config("docs", location=location) is None
    assert not location.exists()  # looking makes no folder
    location.mkdir()
    assert read_config("docs", location=location) is None
    assert list(location.iterdir()) == []  # nor files
    with QdrantStore("docs", encoder=word_encoder(k=16), **folder):
        pass
    assert read_config("docs", location=location) == LandmarkConfig(granularity=16)
    assert read_config("docs", location=str(location)) == LandmarkConfig(granularity=16)
    assert read_config("other", location=location) is None
    assert read_config("docs", location=":memory:") is None


def test_a_home_folder_is_written_with_a_tilde(monkeypatch, tmp_path, word_encoder):
    monkeypatch.setenv("HOME", str(tmp_path))
    with QdrantStore("docs", encoder=word_encoder(k=5), location="~/store") as store:
        store.add([Document("a", "text")])
    assert (tmp_path / "store").is_dir()
    assert read_config("docs", location="~/store") == LandmarkConfig(granularity=5)


@pytest.mark.parametrize(
    "location", ["", "localhost:6333", "127.0.0.1:6334", "grpc://host", "file:///tmp/x", None, 5]
)
def test_places_that_are_no_folder_and_no_url_are_refused(location, word_encoder):
    with pytest.raises(InputError, match="expected ':memory:', a folder, or a URL"):
        QdrantStore("docs", encoder=word_encoder(), location=location)


@pytest.mark.parametrize("name", ["", "a/b", "../up", "a\\b", "nul\x00", "x" * 256, None, 5])
def test_collection_names_that_no_server_takes_are_refused(place, name, word_encoder):
    with pytest.raises(InputError, match="collection"):
        QdrantStore(name, encoder=word_encoder(), **place)


def test_several_collections_live_in_one_folder(folder, word_encoder):
    for name in ("one", "two ü.x"):
        with QdrantStore(name, encoder=word_encoder(), **folder) as store:
            store.add([Document(name, f"About {name}.")])
    for name in ("one", "two ü.x"):
        with QdrantStore(name, encoder=word_encoder(), **folder) as store:
            assert [info.id for info in store.documents()] == [name]


def test_a_file_or_a_broken_folder_is_a_store_error(tmp_path, word_encoder):
    (tmp_path / "file").write_text("text", "utf-8")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "meta.json").write_text("{", "utf-8")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "docs.edge.json").write_text("{", "utf-8")
    for name, engine in (
        ("file", "local"), ("broken", "local"), ("file", "edge"), ("torn", "edge")
    ):  # fmt: skip
        if engine == "edge":
            pytest.importorskip("qdrant_edge", reason="the extra `edge` is not installed")
        with pytest.raises(StoreError, match=name):
            QdrantStore("docs", encoder=word_encoder(), location=tmp_path / name, engine=engine)


def test_an_async_client_is_refused(word_encoder):
    with pytest.raises(InputError, match="expected a QdrantClient"):
        QdrantStore("docs", encoder=word_encoder(), client=AsyncQdrantClient(":memory:"))


def test_options_lay_out_a_new_collection(word_encoder):
    client = QdrantClient(":memory:")
    options = CollectionOptions(float16=False, on_disk=False, hnsw=models.HnswConfigDiff(m=32))
    QdrantStore("docs", encoder=word_encoder(dim=8), client=client, options=options)
    vectors = client.get_collection("docs").config.params.vectors
    assert {name: params.size for name, params in vectors.items()} == {
        "document": 8, "sections": 8, "landmarks": 8
    }  # fmt: skip
    assert vectors["landmarks"].hnsw_config.m == 0
    assert vectors["sections"].hnsw_config.m == 32
    assert vectors["landmarks"].datatype == models.Datatype.FLOAT32
    assert vectors["landmarks"].multivector_config.comparator == "max_sim"
    assert vectors["document"].multivector_config is None
    client.close()


# ---- closing and sharing


def test_a_closed_store_says_so(place, word_encoder):
    store = QdrantStore("docs", encoder=word_encoder(), **place)
    store.add([Document("a", "text")])
    store.close()
    store.close()
    retriever = Retriever(store)
    for use in (
        lambda: store.add([]),
        lambda: store.add_encoded([]),
        lambda: store.get(["a"]),
        lambda: store.delete(["a"]),
        lambda: store.delete_where(And()),
        lambda: store.count(),
        lambda: list(store.documents()),
        lambda: store.document_vectors(["a"]),
        lambda: store.exact_is_quick(),
        lambda: store.__enter__(),
        lambda: retriever.search("text"),
        lambda: retriever.search_documents("text"),
    ):
        with pytest.raises(ClosedError, match="'docs' was closed"):
            use()


def test_a_client_of_the_users_stays_open(word_encoder):
    client = QdrantClient(":memory:")
    with QdrantStore("docs", encoder=word_encoder(), client=client) as store:
        store.add([Document("a", "text")])
        assert repr(store) == "QdrantStore('docs', location='client')"
    assert client.count("docs").count == 1
    client.close()


def test_two_stores_on_one_client_share_what_they_hold(word_encoder):
    client = QdrantClient(":memory:")
    one = QdrantStore("docs", encoder=word_encoder(), client=client)
    two = QdrantStore("docs", encoder=word_encoder(), client=client)
    other = QdrantStore("others", encoder=word_encoder(), client=client)
    one.add([Document("a", A)])
    assert found(two, "apples") == [{"a"}] * 4
    two.add([Document("b", B)])
    two.delete(["a"])
    assert found(one, "apples") == [{"b"}] * 4
    assert one.count() == 1
    assert other.count() == 0
    assert found(other, "apples") == [set()] * 4
    client.close()


def test_errors_of_qdrant_are_store_errors(word_encoder):
    client = QdrantClient(":memory:")
    store = QdrantStore("docs", encoder=word_encoder(), client=client)
    client.delete_collection("docs")
    with pytest.raises(StoreError, match="collection 'docs'") as caught:
        store.count()
    assert isinstance(caught.value, LMKError)
    client.close()


def test_a_collection_made_again_is_empty(word_encoder):
    client = QdrantClient(":memory:")
    store = QdrantStore("docs", encoder=word_encoder(), client=client)
    store.add([Document("a", A)])
    assert found(store, "apples") == [{"a"}] * 4
    client.delete_collection("docs")
    store = QdrantStore("docs", encoder=word_encoder(), client=client)
    store.add([Document("b", B)])
    assert found(store, "apples") == [{"b"}] * 4
    client.close()


def test_a_store_is_found_by_its_path_object_or_text(folder, word_encoder):
    location = folder.pop("location")
    with QdrantStore("docs", encoder=word_encoder(), location=Path(location), **folder) as store:
        store.add([Document("a", "text")])
    with QdrantStore("docs", encoder=word_encoder(), location=str(location), **folder) as store:
        assert store.count() == 1


def test_an_encoder_that_reads_no_queries_in_parts_is_told_what_it_needs(word_encoder, tmp_path):
    class Older:
        def __init__(self):
            self._encoder = word_encoder()

        def __getattr__(self, name):
            if name == "encode_query_parts":
                raise AttributeError(name)
            return getattr(self._encoder, name)

    with pytest.raises(
        ConfigError, match=r"a Older, has no method encode_query_parts.*vector_only"
    ):
        QdrantStore("docs", encoder=Older(), location=tmp_path / "store")
    assert not (tmp_path / "store").exists()
