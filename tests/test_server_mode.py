"""What a server is sent, and how its failures are told; the engine is the local one."""

import sqlite3

import numpy as np
import pytest
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import UnexpectedResponse

from lmk_rag import Document, QdrantStore, Retriever
from lmk_rag.errors import (
    CollectionMismatchError,
    LMKError,
    StoreError,
    UnsupportedFilterError,
)
from lmk_rag.queries import vector_only
from lmk_rag.store import And, CollectionOptions, Eq, Or
from lmk_rag.store.backend import ClientBackend
from lmk_rag.store.points import LANDMARKS, SECTIONS
from lmk_rag.store.schema import collection_settings


class RecordingClient(QdrantClient):
    """A client that keeps what it is asked, and may refuse."""

    def __init__(self, location):
        super().__init__(location)
        self.calls = []
        self.refuse = None

    def _note(self, name, kwargs):
        self.calls.append((name, kwargs))
        if self.refuse is not None:
            raise self.refuse

    def create_payload_index(self, collection, field, schema, **kwargs):
        self._note("index", {"field": field, "schema": schema})
        return super().create_payload_index(collection, field, schema, **kwargs)

    def query_points_groups(self, collection, **kwargs):
        self._note("query", kwargs)
        return super().query_points_groups(collection, **kwargs)

    def upsert(self, collection, points, **kwargs):
        self._note("upsert", kwargs | {"points": points})
        return super().upsert(collection, points, **kwargs)

    def delete(self, collection, selector, **kwargs):
        self._note("delete", kwargs | {"selector": selector})
        return super().delete(collection, selector, **kwargs)

    def scroll(self, collection, **kwargs):
        self._note("scroll", kwargs)
        return super().scroll(collection, **kwargs)


@pytest.fixture
def client():
    client = RecordingClient(":memory:")
    yield client
    client.close()


@pytest.fixture
def store(client, word_encoder):
    store = QdrantStore("docs", encoder=word_encoder(), client=client)
    store._backend = ClientBackend(client, "docs", owned=False)
    store.add([Document("a", "apples and anchors", {"n": 1}), Document("b", "boats")])
    return store


def asked(client, name):
    return [kwargs for called, kwargs in client.calls if called == name]


class IndexingClient(RecordingClient):
    """As a server, it tells which fields are indexed."""

    def get_collection(self, collection, **kwargs):
        found = super().get_collection(collection, **kwargs)
        known = models.PayloadIndexInfo(data_type="keyword", points=0)
        fields = {call["field"]: known for call in asked(self, "index")}
        return found.model_copy(update={"payload_schema": fields})


def test_payload_indexes_are_made_once_and_where_they_are_missing(word_encoder, monkeypatch):
    def opened(self):
        with monkeypatch.context() as patched:  # a backend of a server, on the local engine
            patched.setattr("lmk_rag.store.opening.LocalBackend", lambda inner: inner)
            QdrantStore("docs", encoder=word_encoder(), client=self, options=options)
        return [(call["field"], call["schema"]) for call in asked(self, "index")]

    client, options = IndexingClient(":memory:"), CollectionOptions()
    own = [("document_id", "keyword"), ("revision", "keyword"), ("segment", "integer")]
    assert opened(client) == own
    kinds = models.PayloadSchemaType
    options = CollectionOptions(payload_indexes={"year": kinds.FLOAT, '"a.b"': kinds.KEYWORD})
    for _ in range(2):
        assert opened(client) == [*own, ("metadata.year", "float"), ('metadata."a.b"', "keyword")]
    client.calls = [call for call in client.calls if call[1].get("field") != "revision"]
    assert opened(client)[-1] == own[1]  # a run was killed before it made that one
    client.close()


def test_of_two_that_make_a_collection_at_once_the_second_takes_it(client, word_encoder):
    class Late(RecordingClient):
        """Another process makes the collection between our look and our request."""

        hidden = True

        def collection_exists(self, collection, **kwargs):
            hidden, self.hidden = self.hidden, False
            return super().collection_exists(collection, **kwargs) and not hidden

    client = Late(":memory:")
    backend = ClientBackend(client, "docs", owned=False)
    backend.create(collection_settings(word_encoder(), CollectionOptions()))
    store = QdrantStore("docs", encoder=word_encoder(), client=client)
    store.add([Document("a", "apples")])
    assert store.count() == 1
    client.hidden = True
    with pytest.raises(CollectionMismatchError, match="width is 32 there and 8 here"):
        QdrantStore("docs", encoder=word_encoder(dim=8), client=client)
    client.close()


def test_a_filter_that_a_server_wants_indexed_says_how(client, store):
    told = b'{"status": {"error": "Bad request: Index required but not found for metadata.year"}}'
    client.refuse = UnexpectedResponse(400, "Bad Request", told, None)
    with pytest.raises(UnsupportedFilterError, match=r"payload_indexes=\{key: kind\}"):
        Retriever(store).search("apples", filter=Eq("year", 2025))


def test_both_stages_are_one_query_with_the_filter_in_each(client, store):
    client.calls.clear()
    Retriever(store, candidates=50).search(
        "apples", k=3, mode="two-stage", filter=Eq("n", 1), per_document=1
    )
    (query,) = asked(client, "query")
    assert query["using"] == LANDMARKS
    assert query["group_by"] == "document_id"
    assert (query["limit"], query["group_size"]) == (3, 1)
    assert np.shape(query["query"]) == (2, 32)  # the vector and a part
    prefetch = query["prefetch"]
    assert (prefetch.using, prefetch.limit) == (SECTIONS, 50)
    assert np.shape(prefetch.query) == (1, 32)
    assert (
        prefetch.filter
        == query["query_filter"]
        == models.Filter(
            must=[models.FieldCondition(key="metadata.n", range=models.Range(gte=1, lte=1))]
        )
    )


def test_candidates_are_at_least_four_times_the_answers(client, store):
    Retriever(store, candidates=1).search("apples", k=40, mode="two-stage")
    assert asked(client, "query")[-1]["prefetch"].limit == 160


class HastyClient(QdrantClient):
    """A client whose server looks for two groups only, as real ones give up after a while."""

    def query_points_groups(self, collection, **kwargs):
        answer = super().query_points_groups(collection, **kwargs)
        answer.groups = answer.groups[:2]
        return answer


@pytest.mark.parametrize("where", [None, Or(Eq("n", 1), Eq("n", 2))])
def test_documents_that_a_server_did_not_look_for_are_asked_for_again(word_encoder, where):
    client = HastyClient(":memory:")
    store = QdrantStore("docs", encoder=word_encoder(k=2), client=client)
    store._backend = ClientBackend(client, "docs", owned=True)
    store.add(Document(f"d{n}", "pump " * (n + 1) + "valve " * 4, {"n": n % 3}) for n in range(8))
    wanted = [f"d{n}" for n in range(8) if where is None or n % 3 > 0]
    (query,) = store.encoder.encode_query_parts(["pump"])
    for using in ("document", LANDMARKS):
        found = store.search_points(query, using=using, limit=8, per_document=2, where=where)
        assert sorted({hit.document_id for hit in found}) == wanted
        best = [next(h.score for h in found if h.document_id == hit.document_id) for hit in found]
        assert best == sorted(best, reverse=True)
        assert len(store.search_points(query, using=using, limit=3, where=where)) == 3
    words = store.search_words("pump", limit=8, where=where)
    assert sorted(hit.document_id for hit in words) == wanted
    assert [hit.score for hit in words] == sorted((hit.score for hit in words), reverse=True)
    store.close()


def test_writes_wait_and_prune_by_the_revisions_that_were_there(client, store):
    (before,) = (info.revision for info in store.documents() if info.id == "a")
    client.calls.clear()
    store.add([Document("a", "another text")])
    order = [name for name, _ in client.calls]
    assert order.index("upsert") < order.index("delete")
    (upsert,), (delete,) = asked(client, "upsert"), asked(client, "delete")
    assert upsert["wait"] is delete["wait"] is True
    (condition,) = delete["selector"].filter.must
    assert (condition.key, condition.match.any) == ("revision", [before])


def test_of_two_writers_at_once_neither_deletes_what_the_other_wrote(client, store):
    class Meanwhile:
        """Writes another revision just before ours, as another process may."""

        def __getattr__(self, name):
            return getattr(store._backend_before, name)

        def upsert(self, points):
            store._backend = store._backend_before
            store.add([Document("a", "text of the other writer")])
            store._backend_before.upsert(points)

    store._backend_before, store._backend = store._backend, Meanwhile()
    store.add([Document("a", "our text")])
    texts = {r.payload["text"] for r in store._backend.scroll(None, fields=["text"])}
    assert texts == {"our text", "text of the other writer", "boats"}
    store.add([Document("a", "our text")])
    assert store.get(["a"])[0].text == "our text"
    assert store._backend.count() == store.count() == 2


def test_empty_requests_are_never_sent(client, store):
    client.calls.clear()
    assert store.get([]) == []
    assert store.delete([]) == store.delete(["no such id"]) == 0
    assert store.document_vectors([]) == {}
    assert store.segments([]) == store.metadata([]) == {}
    store.add([])
    store.add([Document("blank", " ")])
    assert asked(client, "upsert") == asked(client, "delete") == []


def test_unchanged_documents_cost_one_look_and_no_write(client, store):
    client.calls.clear()
    report = store.add([Document("b", "boats")])
    assert report.unchanged == ["b"]
    assert [name for name, _ in client.calls] == ["scroll"]


def test_filters_that_match_nothing_or_everything_are_sent_as_such(client, store):
    retriever = Retriever(store)
    assert retriever.search("apples", filter=Or()) == []
    assert asked(client, "query")[-1]["query_filter"] == models.Filter(
        must=[models.HasIdCondition(has_id=[])]
    )
    assert len(retriever.search("apples", filter=And())) == 2


@pytest.mark.parametrize(
    "error",
    [
        UnexpectedResponse(500, "Internal", b'{"status": "out of memory"}', None),
        ValueError("refused"),
        ResourceExhaustedResponse("refused: too many requests", 7),
        sqlite3.OperationalError("refused: the disk is full"),
    ],
)
def test_a_refusal_is_a_store_error_with_its_words(client, store, error):
    client.refuse = error
    for use in (
        lambda: store.add([Document("c", "text")]),
        lambda: store.get(["a"]),
        lambda: list(store.documents()),
        lambda: Retriever(store).search("apples"),
    ):
        with pytest.raises(StoreError, match=r"out of memory|refused") as caught:
            use()
        assert "'docs'" in str(caught.value)
        assert caught.value.__cause__ is error


def test_a_server_that_is_not_there_is_a_store_error(word_encoder):
    with pytest.raises(StoreError, match=r"[Cc]onnect") as caught:
        QdrantStore("docs", encoder=word_encoder(), location="http://127.0.0.1:9", timeout=2)
    assert isinstance(caught.value, LMKError)


def test_a_server_without_collection_metadata_is_refused(word_encoder):
    class Old(QdrantClient):
        def create_collection(self, collection, *, metadata, **kwargs):
            return super().create_collection(collection, **kwargs)

    client = Old(":memory:")
    with pytest.raises(StoreError, match=r"1\.16 or later"):
        QdrantStore("docs", encoder=word_encoder(), client=client)
    client.close()


def test_scores_of_a_server_are_cut_to_the_range_of_a_cosine(store):
    class Generous:
        def __getattr__(self, name):
            return getattr(store._backend.client, name)

        def query_points_groups(self, *args, **kwargs):
            point = models.ScoredPoint(id="x", version=0, score=1.0000002)
            return models.GroupsResult(groups=[models.PointGroup(id="a", hits=[point])])

    backend = ClientBackend(Generous(), "docs", owned=False)
    query = vector_only(np.ones(32, np.float32))
    found = backend.search(query, using=LANDMARKS, limit=1)
    assert [hit.score for hit in found] == [1.0]
