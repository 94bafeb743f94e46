"""Queries, modes, passages; field cases FR-O-11 and FR-O-22."""

import itertools

import numpy as np
import pytest

from lmk_rag import Document, LandmarkEncoder, QdrantStore, Retriever
from lmk_rag.errors import ConfigError, InputError
from lmk_rag.store import Eq

MODES = ("auto", "exact", "two-stage", "document", "hybrid")
FRUIT = [Document("1", "red apple"), Document("2", "green pear"), Document("3", "blue stone")]


@pytest.fixture
def store(word_encoder):
    with QdrantStore("docs", encoder=word_encoder()) as store:
        store.add(FRUIT)
        yield store


@pytest.fixture(scope="module")
def real():
    with LandmarkEncoder() as encoder:
        yield encoder


@pytest.mark.parametrize("mode", MODES)
def test_field_case_k_beyond_the_collection_gives_each_document_once(real, mode):
    with QdrantStore("docs", encoder=real) as store:
        store.add(FRUIT)
        retriever = Retriever(store)
        for found in (
            retriever.search("apple", k=10, mode=mode),
            retriever.search_documents("apple", k=10, mode=mode),
        ):
            assert sorted(hit.document_id for hit in found) == ["1", "2", "3"]
            assert found[0].document_id == "1"
            scores = [hit.score for hit in found]
            assert scores == sorted(scores, reverse=True)
            assert all(-1 <= score <= 1 for score in scores)
        assert [p.text for p in retriever.search("apple", k=1, mode=mode)] == ["red apple"]


@pytest.mark.parametrize("k", [0, -1, True, 2.0, "3", None])
def test_field_case_k_must_be_a_positive_whole_number(store, k):
    retriever = Retriever(store)
    for search in (retriever.search, retriever.search_documents):
        for query in ("apple", "", np.ones(32)):
            with pytest.raises(InputError, match=r"k is .*; expected a whole number of at least 1"):
                search(query, k=k)


@pytest.mark.parametrize("name", ["passage_tokens", "per_document"])
@pytest.mark.parametrize("value", [0, -5, 1.5, None])
def test_other_numbers_must_be_positive_whole_numbers_too(store, name, value):
    with pytest.raises(InputError, match=f"{name} is"):
        Retriever(store).search("apple", **{name: value})


@pytest.mark.parametrize("value", [0, -5, True, 1.5, None])
def test_candidates_must_be_a_positive_whole_number(store, value):
    with pytest.raises(ConfigError, match="candidates is"):
        Retriever(store, candidates=value)


@pytest.mark.parametrize("mode", ["fast", "", None, ["exact"]])
def test_unknown_modes_are_refused_by_name(store, mode):
    retriever = Retriever(store)
    for search in (retriever.search, retriever.search_documents):
        for query in ("apple", " "):
            with pytest.raises(ConfigError, match="expected one of auto, exact, two-stage, docum"):
                search(query, mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_collection_gives_nothing(word_encoder, mode):
    with QdrantStore("docs", encoder=word_encoder()) as store:
        assert Retriever(store).search("apple", mode=mode) == []
        assert Retriever(store).search_documents("apple", mode=mode) == []


@pytest.mark.parametrize("query", ["", " ", "\n\t\u00a0"])
def test_a_blank_query_finds_nothing(store, query):
    assert Retriever(store).search(query) == []
    assert Retriever(store).search_documents(query) == []


@pytest.mark.parametrize("query", [None, 5, b"apple", ["apple"], [0.1] * 32, {"text": "apple"}])
def test_queries_of_other_types_are_refused(store, query):
    with pytest.raises(InputError, match="expected a string or an array"):
        Retriever(store).search(query)


@pytest.mark.parametrize(
    "vector",
    [
        np.ones(31),
        np.ones((1, 32)),
        np.ones(()),
        np.zeros(32),
        np.full(32, np.nan),
        np.full(32, np.inf),
        np.array(["a"] * 32),
        np.array([object()] * 32),
    ],
    ids=lambda v: f"{v.dtype}{v.shape}",
)
def test_query_vectors_without_a_direction_are_refused(store, vector):
    with pytest.raises(InputError, match="the query"):
        Retriever(store).search(vector)


@pytest.mark.parametrize("mode", MODES)
def test_a_query_vector_of_any_length_and_type_finds_what_its_text_does(store, mode):
    vector = store.encoder.encode_queries(["apple"])[0]
    by_text = Retriever(store).search("apple", mode=mode)
    for given in (vector, vector * 7, vector.astype(np.float64) * 1e200, vector.astype(np.float16)):
        words = "apple" if mode == "hybrid" else None
        found = Retriever(store).search(given, mode=mode, words=words)
        assert [p.document_id for p in found] == [p.document_id for p in by_text]
        assert [p.score for p in found] == pytest.approx([p.score for p in by_text], abs=1e-3)


TEXT = (
    "Apples grow on trees. They are red. The pump stands in the cellar.\n"
    "It stops at noon. Nobody knows why. An apple a day keeps it running.\n\n"
    "Winter comes. The trees sleep. No apples now.\n"
)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("per_document", [1, 2, 5])
def test_passages_are_exact_disjoint_slices_with_their_lines(word_encoder, mode, per_document):
    with QdrantStore("docs", encoder=word_encoder(k=3)) as store:
        store.add([Document("a", TEXT), Document("b", "The pump. " * 9), Document("c", "Pears.")])
        found = Retriever(store).search(
            "apples pump", k=20, per_document=per_document, passage_tokens=7, mode=mode
        )
        texts = {"a": TEXT, "b": "The pump. " * 9, "c": "Pears."}
        assert {p.document_id for p in found} == set(texts)
        for p in found:
            text = texts[p.document_id]
            assert p.text == text[p.start : p.end] == p.text.strip() != ""
            assert p.line == text[: p.start].count("\n") + 1
            assert p.start <= p.best_start < p.best_end <= p.end
            assert -1 <= p.score <= 1
        for id_ in texts:
            spans = sorted((p.start, p.end) for p in found if p.document_id == id_)
            assert 1 <= len(spans) <= per_document
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
        scores = [p.score for p in found]
        assert scores == sorted(scores, reverse=True)


def test_document_mode_scores_documents_and_shows_their_best_passages(word_encoder):
    encoder = word_encoder(k=3)
    with QdrantStore("docs", encoder=encoder) as store:
        store.add([Document("a", TEXT), Document("b", "The pump. " * 9)])
        (hit,) = Retriever(store).search_documents("winter comes", k=1, mode="document")
        found = Retriever(store).search(
            "winter comes", k=2, per_document=2, passage_tokens=3, mode="document"
        )
        assert (hit.document_id, [p.document_id for p in found]) == ("a", ["a", "a"])
        assert found[0].text.startswith("Winter comes.")
        (query,), (embedding,) = (
            encoder.encode_query_parts(["winter comes"]),
            encoder.encode_documents([TEXT]),
        )
        assert hit.score == pytest.approx(float(query.vector @ embedding.vector), abs=1e-6)
        best, other = (
            (query.rows @ embedding.landmarks[p.first_landmark : p.last_landmark + 1].T)
            .max(1)
            .sum()
            for p in found
        )
        assert other < best
        assert found[0].score == hit.score
        assert found[1].score == pytest.approx(hit.score * other / best, abs=1e-6)


def test_k_counts_passages_and_not_documents(word_encoder):
    with QdrantStore("docs", encoder=word_encoder(k=3)) as store:
        store.add([Document("a", TEXT), Document("b", TEXT.upper())])
        found = Retriever(store).search("apples", k=3, per_document=9, passage_tokens=3)
        assert len(found) == 3


@pytest.mark.parametrize("mode", MODES)
def test_two_passages_of_a_document_are_shown_unless_told_otherwise(word_encoder, mode):
    text = "apples and pears and plums. " * 40
    with QdrantStore("docs", encoder=word_encoder()) as store:
        store.add([Document("long", text), Document("short", "apples")])
        retriever = Retriever(store)
        found = retriever.search("apples", k=9, mode=mode, passage_tokens=20)
        assert sorted(p.document_id for p in found) == ["long", "long", "short"]
        one = retriever.search("apples", k=9, mode=mode, passage_tokens=20, per_document=1)
        assert sorted(p.document_id for p in one) == ["long", "short"]


def test_documents_deleted_while_searching_are_left_out(store):
    class Deleting(QdrantStore):
        """Deletes a document between finding and fetching, as another thread may."""

        def __init__(self):
            self.__dict__ = dict(store.__dict__)

        def segments(self, ids):
            store.delete(["1"])
            return super().segments(ids)

        def metadata(self, ids):
            store.delete(["1"])
            return super().metadata(ids)

    for search in (Retriever(Deleting()).search, Retriever(Deleting()).search_documents):
        store.add(FRUIT)
        assert sorted(hit.document_id for hit in search("apple")) == ["2", "3"]


def test_document_hits_are_made_without_reading_any_text(store, monkeypatch):
    store.add([Document("1", "red apple", {"color": "red"})])
    fetch, asked = store._backend.fetch, []

    def seen(ids, *, fields=None, vectors=()):
        asked.append((fields, vectors))
        return fetch(ids, fields=fields, vectors=vectors)

    monkeypatch.setattr(store._backend, "fetch", seen)
    (hit, *_) = Retriever(store).search_documents("apple", k=1, filter=Eq("color", "red"))
    assert (hit.document_id, hit.metadata) == ("1", {"color": "red"})
    assert asked == [(("metadata",), ())]


def test_filters_hold_in_every_mode(word_encoder):
    with QdrantStore("docs", encoder=word_encoder()) as store:
        store.add(Document(str(i), "apple pie", {"n": i % 2}) for i in range(8))
        for mode in MODES:
            found = Retriever(store).search("apple", k=9, filter=Eq("n", 1), mode=mode)
            assert sorted(p.document_id for p in found) == ["1", "3", "5", "7"]
            assert {p.metadata["n"] for p in found} == {1}


def test_field_case_the_end_of_a_very_long_document_is_found(real):
    text = "Filler line about weather. " * 4000 + "The spare key is under the blue marzipan tin."
    with QdrantStore("docs", encoder=real) as store:
        report = store.add([Document("long", text), Document("other", "Tins are made of tin.")])
        assert report.added == ["long", "other"]
        (info,) = [info for info in store.documents() if info.id == "long"]
        assert info.n_tokens > 20_000
        retriever = Retriever(store)
        for mode in ("auto", "exact", "two-stage"):
            best = retriever.search("where is the spare key", mode=mode)[0]
            assert best.document_id == "long"
            assert "marzipan" in best.text
            assert best.text == text[best.start : best.end]
            assert best.end == len(text)
            assert best.first_landmark <= best.last_landmark == info.n_landmarks - 1


def test_the_readme_example_shows_the_whole_answer(real):
    text = "Wipe the housing with a dry cloth once a month. " * 50
    answer = "To restart the pump after an emergency stop, hold the red button for five seconds."
    text += answer + " Store the spare filters in a dry place." * 50
    with QdrantStore("docs", encoder=real) as store:
        store.add([Document("guide", text)])
        best = Retriever(store).search("How do I restart the pump?", k=1, passage_tokens=64)[0]
        assert answer in best.text
