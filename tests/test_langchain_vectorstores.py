"""`LMKVectorStore`: LangChain's own suite, and what that suite leaves open."""

import asyncio
import copy
import datetime
import json
import pathlib
import threading

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_tests.integration_tests import VectorStoreIntegrationTests
from qdrant_client import QdrantClient

from langchain_lmk import LMKEmbeddings, LMKVectorStore
from lmk_rag import QdrantStore, Retriever
from lmk_rag.errors import CollectionMismatchError, InputError, UnsupportedFilterError
from lmk_rag.store import And, Eq, In, Not, Or, Range

WORDS = ["apple", "pear", "stone", "red", "green", "blue"]


class WordEmbeddings(Embeddings):
    """Counts six words; the last entry keeps the vector from being zero. Notes its threads."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        self.threads.add(threading.get_ident())
        return [*(float(text.split().count(word)) for word in WORDS), 0.5]


class TestSuiteWithPlainEmbeddings(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self):
        return LMKVectorStore(self.get_embeddings())


class TestSuiteWithLandmarks(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, embeddings):
        return LMKVectorStore(embeddings)


class TestSuiteInAFolder(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path):
        store = LMKVectorStore(self.get_embeddings(), location=tmp_path / "index")
        yield store
        store.store.close()


@pytest.fixture(scope="module")
def embeddings() -> LMKEmbeddings:
    return LMKEmbeddings()


@pytest.fixture
def store() -> LMKVectorStore:
    return LMKVectorStore(WordEmbeddings())


@pytest.fixture
def fruit(store) -> LMKVectorStore:
    store.add_texts(["red apple", "green pear", "blue stone"], ids=["a", "p", "s"])
    return store


def contents(documents: list[Document]) -> list[str]:
    return [document.page_content for document in documents]


# Documents in


def test_ids_come_back_whatever_string_they_are(store):
    ids = ["reports/2024 q1.txt", "7", "ümlaut/名.txt", " ", "e3b0c44298fc1c149afbf4c8996fb924" * 2]
    documents = [Document(page_content="apple", id=id_) for id_ in ids]
    for _ in range(2):
        assert store.add_documents(documents) == ids
        assert store.store.count() == 5
    assert store.get_by_ids(ids) == documents
    assert {found.id for found in store.similarity_search("apple", k=10)} == set(ids)
    with pytest.raises(InputError, match=r"document 0 .*expected a non-empty string"):
        store.add_documents([Document(page_content="apple", id="")])


def test_given_ids_beat_the_documents_own_and_none_gets_a_new_one(store):
    documents = [Document(page_content=word, id=f"own-{word}") for word in WORDS[:3]]
    ids = store.add_documents(documents, ids=["x", None, "z"])
    assert (ids[0], ids[2]) == ("x", "z")
    assert ids[1] not in ("own-pear", None)
    assert store.get_by_ids(ids) == [
        Document(page_content=word, id=id_) for word, id_ in zip(WORDS, ids, strict=False)
    ]
    assert [document.id for document in documents] == ["own-apple", "own-pear", "own-stone"]


def test_texts_may_come_from_a_generator(store):
    ids = store.add_texts((word for word in WORDS), ({"n": n} for n in range(6)))
    assert len(set(ids)) == 6
    assert [(d.page_content, d.metadata) for d in store.get_by_ids(ids)] == [
        (word, {"n": n}) for n, word in enumerate(WORDS)
    ]
    assert store.add_texts([]) == []
    assert store.add_documents(iter([])) == []


def test_of_two_documents_with_one_id_the_later_counts(store):
    assert store.add_texts(["apple", "pear"], ids=["x", "x"]) == ["x", "x"]
    assert contents(store.get_by_ids(["x"])) == ["pear"]


def test_text_comes_back_unchanged(store):
    text = "  line\r\n\n\ttab  \u00a0 e\u0301 🚀 [SEP]\u200b\x00 \n"
    store.add_texts([text], ids=["x"])
    assert contents(store.similarity_search("apple")) == [text]


@pytest.mark.parametrize("blank", ["", "  ", "\n\t\u00a0"])
def test_a_blank_text_is_refused_and_nothing_stored(store, blank):
    with pytest.raises(InputError, match=r"document 1 \('b'\): the text is blank"):
        store.add_texts(["apple", blank], ids=["a", "b"])
    assert store.store.count() == 0


@pytest.mark.parametrize(
    "value",
    [{1, 2}, b"\xff", float("nan"), 2**64, object(), {1: 2}, "\ud800"],
    ids=lambda value: repr(value).partition(" at 0x")[0],
)
def test_metadata_json_cant_hold_is_refused_and_nothing_stored(store, value):
    documents = [
        Document(page_content="apple"),
        Document(page_content="pear", metadata={"deep": {"k": [value]}}),
    ]
    with pytest.raises(InputError, match=r"document 1 .*\['deep'\]\['k'\]\[0\]"):
        store.add_documents(documents)
    assert store.store.count() == 0


def test_metadata_of_any_json_kind_comes_back(store):
    metadata = {
        "text": "ü",
        "n": 0,
        "x": 0.5,
        "ok": False,
        "none": None,
        "list": [1, [2, {"k": None}], []],
        "nested": {"a.b": {"c": "d"}},
        "empty": {},
        "_id": "user's own",
        "document_id": "user's own",
    }
    document = Document(page_content="apple", metadata=metadata, id="x")
    store.add_documents([document])
    assert store.similarity_search("apple") == [document]
    assert store.get_by_ids(["x"]) == [document]


def test_metadata_of_other_kinds_follows_the_cores_rule(store):
    metadata = {
        "when": datetime.date(2024, 1, 2),
        "score": np.float32(0.5),
        "pair": (1, 2),
        "path": pathlib.PurePosixPath("a/b"),
    }
    before = copy.deepcopy(metadata)
    store.add_texts(["apple"], [metadata])
    (found,) = store.similarity_search("apple")
    assert found.metadata == {"when": "2024-01-02", "score": 0.5, "pair": [1, 2], "path": "a/b"}
    assert json.loads(json.dumps(found.metadata)) == found.metadata
    assert metadata == before


def test_found_documents_are_fresh(store):
    store.add_texts(["apple", "pear"], [{"tags": ["x"]}, {"tags": ["x"]}])
    first, second = store.similarity_search("apple")
    first.metadata["tags"].append("y")
    assert second.metadata == {"tags": ["x"]}
    assert store.similarity_search("apple")[0].metadata == {"tags": ["x"]}


def test_refuses_numbers_of_ids_or_metadatas_that_dont_fit(store):
    with pytest.raises(InputError, match="1 ids for 2 documents"):
        store.add_texts(["apple", "pear"], ids=["a"])
    with pytest.raises(InputError, match="3 metadatas for 2 documents"):
        store.add_texts(["apple", "pear"], [{}, {}, {}])
    assert store.store.count() == 0


def test_a_text_without_a_vector_is_named_and_keeps_no_other_from_being_stored():
    class Failing(WordEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            nan = [float("nan")] * 7
            return [nan if text == "bad" else self.embed_query(text) for text in texts]

    store = LMKVectorStore(Failing())
    with pytest.raises(InputError, match=r"document 1 is not stored: document 'b': .*NaN"):
        store.add_texts(["apple", "bad", "pear"], ids=["a", "b", "c"])
    assert [document.id for document in store.get_by_ids(["a", "b", "c"])] == ["a", "c"]


def test_takes_the_batch_size_that_index_passes(store):
    assert store.add_documents([Document(page_content="apple")], ids=["a"], batch_size=1) == ["a"]


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.add_documents([Document(page_content="apple")], bulk=1),
        lambda s: s.add_texts(["apple"], bulk=1),
        lambda s: s.delete(["a"], bulk=1),
        lambda s: s.similarity_search("apple", bulk=1),
        lambda s: s.similarity_search_with_score("apple", bulk=1),
        lambda s: s.similarity_search_with_relevance_scores("apple", bulk=1),
        lambda s: s.similarity_search_by_vector([1.0] * 7, bulk=1),
        lambda s: s.max_marginal_relevance_search("apple", bulk=1),
        lambda s: s.as_retriever(search_kwargs={"bulk": 1}).invoke("apple"),
        lambda s: LMKVectorStore.from_texts(["apple"], s.embeddings, bulk=1),
    ],
)
def test_refuses_options_it_does_not_know(fruit, call):
    with pytest.raises(TypeError, match="bulk"):
        call(fruit)


# Documents out


def test_scores_are_cosines_best_first(fruit):
    found = fruit.similarity_search_with_score("red apple green", k=10)
    assert [(d.id, round(score, 4)) for d, score in found] == [
        ("a", 0.8321),  # (1 + 1 + 0.25) / (1.5 * sqrt(3.25))
        ("p", 0.4623),
        ("s", 0.0925),
    ]
    assert {type(score) for _, score in found} == {float}


def test_relevance_scores_lie_between_0_and_1(fruit):
    found = fruit.similarity_search_with_relevance_scores("red apple green", k=10)
    assert [(d.id, round(score, 4)) for d, score in found] == [
        ("a", 0.916),
        ("p", 0.7311),
        ("s", 0.5462),
    ]
    exact = fruit.similarity_search_with_relevance_scores("red apple", score_threshold=0.9)
    assert [(document.id, score) for document, score in exact] == [("a", 1.0)]


@pytest.mark.parametrize("k", [0, -1])
def test_k_less_than_1_is_one_error_everywhere(fruit, k):
    for search in (
        fruit.similarity_search,
        fruit.similarity_search_with_score,
        fruit.similarity_search_with_relevance_scores,
        fruit.max_marginal_relevance_search,
    ):
        with pytest.raises(InputError, match=f"k is {k}; expected a whole number of at least 1"):
            search("apple", k=k)
    with pytest.raises(InputError, match=f"k is {k}"):
        fruit.similarity_search_by_vector([1.0] * 7, k=k)


def test_a_blank_query_finds_nothing(fruit):
    assert fruit.similarity_search(" ") == []
    assert fruit.similarity_search_with_relevance_scores("") == []
    assert fruit.max_marginal_relevance_search("\n") == []


def test_search_by_vector_is_search(fruit):
    vector = fruit.embeddings.embed_query("green pear")
    assert fruit.similarity_search_by_vector(vector) == fruit.similarity_search("green pear")
    longer = [10 * number for number in vector]
    assert fruit.similarity_search_by_vector(longer, k=1) == fruit.get_by_ids(["p"])
    with pytest.raises(InputError, match=r"shape \(3,\)"):
        fruit.similarity_search_by_vector([1.0, 0.0, 0.0])


def test_mmr_passes_over_near_copies(store):
    texts = ["apple apple", "apple apple red", "apple apple pear pear", "stone"]
    store.add_texts(texts, ids=["1", "2", "3", "4"])
    assert [d.id for d in store.similarity_search("apple", k=2)] == ["1", "2"]
    assert [d.id for d in store.max_marginal_relevance_search("apple", k=2)] == ["1", "4"]
    most_alike = store.max_marginal_relevance_search("apple", k=2, lambda_mult=1.0)
    assert [d.id for d in most_alike] == ["1", "2"]
    assert [d.id for d in store.max_marginal_relevance_search("apple", k=3, fetch_k=2)] == [
        "1",
        "3",
        "2",
    ]
    vector = store.embeddings.embed_query("apple")
    by_vector = store.max_marginal_relevance_search_by_vector(vector, k=2)
    assert by_vector == store.max_marginal_relevance_search("apple", k=2)
    filtered = store.max_marginal_relevance_search("apple", k=2, filter=Eq("none", 1))
    assert filtered == []


def test_mmr_after_a_search_by_document_vectors(fruit):
    before = fruit.max_marginal_relevance_search("apple", k=2)
    Retriever(fruit.store).search("apple", mode="document")  # takes those vectors into memory
    assert fruit.max_marginal_relevance_search("apple", k=2) == before


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        (Eq("roles", "nobody"), []),
        (Eq("n", 0), ["1"]),
        (Eq("ok", False), ["1"]),
        (Not(In("roles", ["admin"])), ["2"]),
        (And(Or(Range("n", gt=3), Eq("ok", False)), In("roles", ["guest"])), ["2"]),
        (Eq("missing_key", 1), []),
    ],
)
async def test_filters_are_applied_exactly(store, where, ids):
    store.add_texts(
        ["apple", "pear"],
        [{"roles": ["admin"], "n": 0, "ok": False}, {"roles": ["guest"], "n": 5, "ok": True}],
        ids=["1", "2"],
    )
    retriever = store.as_retriever(search_kwargs={"filter": where})
    for found in (
        store.similarity_search("apple", filter=where),
        [d for d, _ in store.similarity_search_with_relevance_scores("apple", filter=where)],
        store.similarity_search_by_vector([1.0] * 7, filter=where),
        store.max_marginal_relevance_search("apple", filter=where),
        retriever.invoke("apple"),
        await retriever.ainvoke("apple"),
    ):
        assert [document.id for document in found] == ids


@pytest.mark.parametrize("where", [{"n": 0}, {}, "n == 0", lambda document: True])
def test_other_filters_are_refused_never_left_out(fruit, where):
    with pytest.raises(UnsupportedFilterError, match="is no filter; expected Eq, In"):
        fruit.similarity_search("apple", filter=where)


def test_get_by_ids_keeps_the_order_asked(fruit):
    assert [d.id for d in fruit.get_by_ids(["s", "no-such-id", "a"])] == ["s", "a"]
    assert fruit.get_by_ids([]) == []


def test_delete_removes_only_what_it_names(fruit):
    assert fruit.delete(["no-such-id"]) is True
    assert fruit.delete([]) is True
    assert fruit.store.count() == 3
    assert fruit.delete(["a"]) is True
    assert contents(fruit.similarity_search("red pear", k=10)) == ["green pear", "blue stone"]
    assert fruit.get_by_ids(["a"]) == []


async def test_delete_without_ids_is_refused(fruit):
    with pytest.raises(InputError, match="ids is None; expected a list of document ids"):
        fruit.delete()
    with pytest.raises(InputError, match="ids is None"):
        await fruit.adelete(None)
    assert fruit.store.count() == 3


# Making one


async def test_from_texts_and_from_documents():
    documents = [Document(page_content="red apple", metadata={"n": 1}, id="a")]
    embedding = WordEmbeddings()
    for made in (
        LMKVectorStore.from_documents(documents, embedding),
        LMKVectorStore.from_texts(["red apple"], embedding, [{"n": 1}], ids=["a"]),
        await LMKVectorStore.afrom_documents(documents, embedding),
        await LMKVectorStore.afrom_texts(["red apple"], embedding, [{"n": 1}], ids=["a"]),
    ):
        assert made.similarity_search("apple") == documents
        assert made.embeddings is embedding
    named = LMKVectorStore.from_texts(["apple"], embedding, collection_name="fruit")
    assert named.store.collection == "fruit"


def test_partial_ids_in_from_documents():
    documents = [Document(page_content="apple", id="a"), Document(page_content="pear")]
    made = LMKVectorStore.from_documents(documents, WordEmbeddings())
    found = made.similarity_search("apple")
    assert found[0] == documents[0]
    assert found[1].id


def test_a_folder_is_opened_again(tmp_path):
    first = LMKVectorStore.from_texts(["apple"], WordEmbeddings(), ids=["a"], location=tmp_path)
    first.store.close()
    again = LMKVectorStore(WordEmbeddings(), location=tmp_path)
    assert again.similarity_search("apple") == [Document(page_content="apple", id="a")]
    again.store.close()


def test_another_model_is_refused(embeddings):
    client = QdrantClient(":memory:")
    LMKVectorStore.from_texts(["apple"], WordEmbeddings(), client=client)
    with pytest.raises(CollectionMismatchError, match=r"width is 7 there and 384 here"):
        LMKVectorStore(embeddings, client=client)
    assert LMKVectorStore(WordEmbeddings(), client=client).store.count() == 1


def test_another_model_of_equal_class_and_width_is_refused():
    class Named(WordEmbeddings):
        def __init__(self, model: str) -> None:
            super().__init__()
            self.model = model

    client = QdrantClient(":memory:")
    LMKVectorStore(Named("one"), client=client)
    with pytest.raises(CollectionMismatchError, match="'Named one' there and 'Named two' here"):
        LMKVectorStore(Named("two"), client=client)


def test_a_model_is_named_by_its_name_and_not_by_an_object_that_holds_it():
    class Loaded(WordEmbeddings):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.model, self.model_name = object(), name  # another address in each process

    class Cached(WordEmbeddings):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.underlying_embeddings = Loaded(name)

    client = QdrantClient(":memory:")
    for embeddings, name in ((Loaded, "loaded"), (Cached, "cached")):
        LMKVectorStore(embeddings("one"), client=client, collection_name=name)
        LMKVectorStore(embeddings("one"), client=client, collection_name=name)
        with pytest.raises(CollectionMismatchError, match=r"one' there and '.*two' here"):
            LMKVectorStore(embeddings("two"), client=client, collection_name=name)


def test_the_cores_store_opens_the_same_collection(embeddings):
    client = QdrantClient(":memory:")
    LMKVectorStore.from_texts(["Pumps move water."], embeddings, ids=["a"], client=client)
    (document,) = QdrantStore("langchain", encoder=embeddings.encoder, client=client).get(["a"])
    assert document.text == "Pumps move water."


# Landmarks


def test_finds_a_long_document_by_one_sentence_in_it(embeddings):
    filler = "The weather report speaks of wind, rain and some sun. " * 30
    needle = "The spare key is under the blue marzipan tin. "
    texts = [filler, filler + needle + filler, "Marzipan is made of almonds."]
    store = LMKVectorStore.from_texts(texts, embeddings, ids=["dull", "key", "almonds"])
    (best, score), *_ = store.similarity_search_with_score("where is the spare key?", k=3)
    assert best == Document(page_content=texts[1], id="key")
    single = np.dot(
        embeddings.embed_query("where is the spare key?"),
        embeddings.embed_documents([texts[1]])[0],
    )
    assert score > single + 0.2  # the landmark matches, the mean of 3,000 characters does not


def test_stored_vectors_are_the_encoders(embeddings):
    store = LMKVectorStore.from_texts(["Pumps move water."], embeddings, ids=["a"])
    stored = store.store.document_vectors(["a"])["a"]
    (expected,) = embeddings.embed_documents(["Pumps move water."])
    np.testing.assert_allclose(stored, expected, rtol=0, atol=1e-6)


# Async


async def test_async_equals_sync_and_stays_off_the_loop(store):
    documents = [Document(page_content=f"{word} red", id=word, metadata={}) for word in WORDS]
    assert await store.aadd_documents(documents) == WORDS
    assert await store.aadd_texts(iter(["blue"]), [{"n": 1}], ids=["b"]) == ["b"]
    vector = [1.0, 0, 0, 1, 0, 0, 0.5]
    query = "red apple"
    where = Not(Eq("n", 1))
    assert await store.aget_by_ids(["pear"]) == store.get_by_ids(["pear"])
    assert await store.asimilarity_search(query, k=3) == store.similarity_search(query, k=3)
    assert await store.asimilarity_search_with_score(
        query, filter=where
    ) == store.similarity_search_with_score(query, filter=where)
    assert await store.asimilarity_search_with_relevance_scores(
        query, k=9, score_threshold=0.8
    ) == store.similarity_search_with_relevance_scores(query, k=9, score_threshold=0.8)
    assert await store.asimilarity_search_by_vector(vector) == store.similarity_search_by_vector(
        vector
    )
    assert await store.amax_marginal_relevance_search(
        query, k=3, lambda_mult=0.1
    ) == store.max_marginal_relevance_search(query, k=3, lambda_mult=0.1)
    assert await store.amax_marginal_relevance_search_by_vector(
        vector, k=3
    ) == store.max_marginal_relevance_search_by_vector(vector, k=3)
    assert await store.adelete(["apple", "b"]) is True
    assert store.store.count() == 5


async def test_async_methods_embed_in_other_threads():
    embedding = WordEmbeddings()
    store = await asyncio.to_thread(LMKVectorStore, embedding)
    embedding.threads.clear()
    await store.aadd_texts(["apple"])
    await store.aadd_documents([Document(page_content="pear")])
    await store.asimilarity_search("apple")
    await store.asimilarity_search_with_score("apple")
    await store.asimilarity_search_with_relevance_scores("apple")
    await store.amax_marginal_relevance_search("apple")
    await store.as_retriever().ainvoke("apple")
    await LMKVectorStore.afrom_texts(["apple"], embedding)
    assert threading.get_ident() not in embedding.threads
    assert embedding.threads


async def test_writes_and_searches_at_once(store):
    async def write(n: int) -> None:
        await store.aadd_texts([f"apple {n}", f"pear {n}"], ids=[f"a{n}", f"p{n}"])
        found = await store.asimilarity_search("apple", k=100)
        assert {f"a{n}", f"p{n}"} <= {document.id for document in found}

    await asyncio.gather(*(write(n) for n in range(20)))
    assert store.store.count() == 40
    assert len(store.similarity_search("apple", k=100)) == 40


async def test_a_cancelled_write_leaves_a_consistent_store(store):
    task = asyncio.create_task(store.aadd_texts(["apple"] * 200, ids=[str(n) for n in range(200)]))
    await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ids = await store.aadd_texts(["apple"] * 200, ids=[str(n) for n in range(200)])
    assert len(await store.asimilarity_search("apple", k=500)) == len(ids) == 200
