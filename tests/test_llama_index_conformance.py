"""Conformance suites in the shape of langchain-tests: a class per kind of component, subclassed
for each component that is to pass whole. LlamaIndex ships none of its own.
"""

import asyncio
import copy
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.node_parser import NodeParser
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import (
    Document,
    NodeRelationship,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from llama_index.embeddings.lmk import LMKEmbedding
from llama_index.node_parser.lmk import LMKNodeParser
from llama_index.retrievers.lmk import LMKRetriever
from llama_index.vector_stores.lmk import LMKVectorStore
from lmk_rag.encoder import LandmarkEncoder
from lmk_rag.errors import InputError
from lmk_rag.store.local import LocalBackend

pytestmark = pytest.mark.filterwarnings("ignore:.*was not trained with landmarks")

TEXTS = ["The pump of station V-7 stops.", "", "Gr\u00fc\u00dfe \U0001f680\n\n", "w " * 300, "beta"]


class Bag(BaseEmbedding):
    """A model of another kind: counts words in 16 buckets; queries are told apart by a bit."""

    def _vector(self, text: str, role: float) -> list[float]:
        vector = [0.1, role, *[0.0] * 14]
        for word in text.lower().split():
            vector[2 + sum(map(ord, word.strip(".?!,"))) % 14] += 1.0
        return vector

    def _get_text_embedding(self, text):
        return self._vector(text, 0.0)

    def _get_query_embedding(self, query):
        return self._vector(query, 0.01)

    async def _aget_query_embedding(self, query):
        return self._get_query_embedding(query)


class Events(BaseEventHandler):
    names: list[str]

    def handle(self, event, **kwargs):
        self.names.append(event.class_name())


@pytest.fixture
def events():
    """The names of all instrumentation events, in order."""
    handler = Events(names=[])
    get_dispatcher().add_event_handler(handler)
    yield handler.names
    get_dispatcher().event_handlers.remove(handler)


@pytest.fixture(scope="module")
def lmk_embedding(model_folder) -> LMKEmbedding:
    config = {"granularity": 8, "overlap": 16, "query_prompt": "query: "}
    return LMKEmbedding(
        model_name=str(model_folder("bert")), config=config, device="cpu", dtype="float32"
    )


class EmbeddingSuite:
    """Subclass and give a fixture `model`."""

    def test_is_an_embedding_model(self, model):
        assert isinstance(model, BaseEmbedding)
        assert model.class_name() == type(model).__name__

    def test_vectors_are_lists_of_floats_that_json_takes(self, model):
        for vector in (model.get_text_embedding("foo"), model.get_query_embedding("foo")):
            assert all(type(number) is float for number in vector)
            assert json.loads(json.dumps(vector)) == vector

    def test_batch_equals_single_in_order_and_leaves_the_input(self, model):
        texts = list(TEXTS)
        batch = model.get_text_embedding_batch(texts)
        assert texts == TEXTS
        single = [model.get_text_embedding(text) for text in TEXTS]
        np.testing.assert_allclose(batch, single, atol=1e-5)
        assert np.isfinite(batch).all()

    def test_small_batches_equal_large_ones(self, model):
        small = model.model_copy(update={"embed_batch_size": 2})
        np.testing.assert_allclose(
            small.get_text_embedding_batch(TEXTS), model.get_text_embedding_batch(TEXTS), atol=1e-5
        )

    def test_empty_input_gives_empty_output(self, model):
        assert model.get_text_embedding_batch([]) == []
        assert model([]) == []

    async def test_async_equals_sync(self, model):
        assert await model.aget_query_embedding("foo") == model.get_query_embedding("foo")
        assert await model.aget_text_embedding("foo") == model.get_text_embedding("foo")
        batch = await model.aget_text_embedding_batch(TEXTS)
        assert batch == model.get_text_embedding_batch(TEXTS)
        assert await model.aget_text_embedding_batch([]) == []

    def test_queries_and_texts_are_told_apart(self, model):
        assert model.get_query_embedding("foo") != model.get_text_embedding("foo")

    def test_pickle_and_dict_keep_every_setting(self, model):
        for twin in (pickle.loads(pickle.dumps(model)), type(model).from_dict(model.to_dict())):
            assert twin.to_dict() == model.to_dict()
            assert twin.get_query_embedding("foo") == model.get_query_embedding("foo")

    def test_events_and_callbacks_fire(self, model, events):
        debug = LlamaDebugHandler(print_trace_on_end=False)
        watched = model.model_copy(update={"callback_manager": CallbackManager([debug])})
        watched.get_query_embedding("foo")
        watched.get_text_embedding("foo")
        watched.get_text_embedding_batch(["foo", "bar"])
        assert events == ["EmbeddingStartEvent", "EmbeddingEndEvent"] * 3
        assert len(debug.get_event_pairs(CBEventType.EMBEDDING)) == 3

    def test_nodes_are_embedded_in_place(self, model):
        nodes = [TextNode(text="foo"), TextNode(text="bar")]
        assert model(nodes) is nodes
        np.testing.assert_allclose(
            [node.embedding for node in nodes], model.get_text_embedding_batch(["foo", "bar"])
        )

    def test_threads_get_the_results_of_one_thread(self, model):
        texts = ["w " * n for n in (1, 30, 100)]
        query, batch = model.get_query_embedding("hi"), model.get_text_embedding_batch(texts)
        with ThreadPoolExecutor(16) as pool:
            queries = [pool.submit(model.get_query_embedding, "hi") for _ in range(80)]
            batches = [pool.submit(model.get_text_embedding_batch, texts) for _ in range(40)]
        assert all(future.result() == query for future in queries)
        assert all(future.result() == batch for future in batches)

    async def test_sync_methods_work_inside_a_running_loop(self, model):
        assert model.get_text_embedding("foo") == await model.aget_text_embedding("foo")

    async def test_the_event_loop_turns_while_texts_are_embedded(self, model, waits_for_the_loop):
        turns = waits_for_the_loop(LandmarkEncoder, "_run")
        await model.aget_text_embedding_batch(TEXTS)
        assert turns == [True]
        await model.aget_query_embedding("the pump")
        assert turns == [True, True]


class TestLMKEmbedding(EmbeddingSuite):
    @pytest.fixture
    def model(self, lmk_embedding):
        return lmk_embedding


class NodeParserSuite:
    """Subclass and give a fixture `parser` that makes several nodes of `documents`."""

    @pytest.fixture
    def documents(self):
        return [
            Document(id_="a", text="Restart the pump now.\n" * 12, metadata={"lang": "en"}),
            Document(id_="b", text="if x:\n\tfor y in z:\n\t\tprint( y )\n\n\n    # end  \n" * 4),
        ]

    def test_is_a_node_parser(self, parser):
        assert isinstance(parser, NodeParser)
        assert parser.class_name() == type(parser).__name__

    def test_offsets_are_exact_and_tile_the_text(self, parser, documents):
        nodes = parser.get_nodes_from_documents(documents)
        for document in documents:
            own = [node for node in nodes if node.ref_doc_id == document.id_]
            assert len(own) > 1
            assert all(document.text[n.start_char_idx : n.end_char_idx] == n.text for n in own)
            starts = [node.start_char_idx for node in own]
            assert starts == sorted(set(starts))
            kept = "".join(node.text for node in own)
            assert kept.split() == document.text.split()

    def test_nodes_have_vectors_ids_and_relations(self, parser, documents):
        nodes = parser(documents)
        assert all(node.embedding for node in nodes)
        assert len({node.node_id for node in nodes}) == len(nodes)
        own = [node for node in nodes if node.ref_doc_id == "a"]
        assert own[0].prev_node is None
        assert [node.prev_node.node_id for node in own[1:]] == [node.node_id for node in own[:-1]]
        assert [node.next_node.node_id for node in own[:-1]] == [node.node_id for node in own[1:]]
        assert own[-1].next_node is None
        assert own[0].source_node.hash == documents[0].hash

    def test_ids_are_the_same_at_every_run(self, parser, documents):
        first = [node.node_id for node in parser(documents)]
        assert [node.node_id for node in parser(copy.deepcopy(documents))] == first

    def test_metadata_is_copied_for_every_node(self, parser, documents):
        documents[0].metadata["tags"] = ["x"]
        nodes = [node for node in parser(documents) if node.ref_doc_id == "a"]
        nodes[0].metadata["tags"].append("y")
        assert nodes[1].metadata["tags"] == ["x"]
        assert documents[0].metadata == {"lang": "en", "tags": ["x"]}

    def test_empty_and_blank_input_gives_no_nodes(self, parser):
        assert parser([]) == []
        blank = [Document(text=text) for text in ("", "   ", "\n\t\u00a0")]
        assert parser(blank) == []

    async def test_async_equals_sync(self, parser, documents):
        sync = parser.get_nodes_from_documents(documents)
        assert await parser.aget_nodes_from_documents(documents) == sync
        assert await parser.acall(documents) == sync

    def test_pickle_and_dict_keep_every_setting(self, parser, documents):
        nodes = parser(documents)
        for twin in (pickle.loads(pickle.dumps(parser)), type(parser).from_dict(parser.to_dict())):
            assert twin.to_dict() == parser.to_dict()
            assert twin(documents) == nodes

    def test_callbacks_fire(self, parser, documents):
        debug = LlamaDebugHandler(print_trace_on_end=False)
        watched = parser.model_copy(update={"callback_manager": CallbackManager([debug])})
        watched.get_nodes_from_documents(documents)
        assert len(debug.get_event_pairs(CBEventType.NODE_PARSING)) == 1

    async def test_the_event_loop_turns_while_texts_are_parsed(self, parser, waits_for_the_loop):
        turns = waits_for_the_loop(LandmarkEncoder, "_run")
        await parser.aget_nodes_from_documents([Document(text=text) for text in TEXTS])
        assert turns == [True]


class TestLMKNodeParser(NodeParserSuite):
    @pytest.fixture
    def parser(self, lmk_embedding):
        return LMKNodeParser(embed_model=lmk_embedding, chunk_size=16)


def make_nodes(model, texts: dict[str, str], ref_doc_id: str | None = None, **metadata):
    """Nodes with the ids and texts given, embedded as an index would."""
    source = {} if ref_doc_id is None else {NodeRelationship.SOURCE: ref_doc_id}
    vectors = model.get_text_embedding_batch(list(texts.values()))
    return [
        TextNode(
            id_=id_,
            text=text,
            metadata=copy.deepcopy(metadata),
            embedding=vector,
            relationships={kind: RelatedNodeInfo(node_id=id_) for kind, id_ in source.items()},
        )
        for (id_, text), vector in zip(texts.items(), vectors, strict=True)
    ]


def where(*conditions, condition="and") -> MetadataFilters:
    """Filters from (key, operator, value) and from other filters."""
    return MetadataFilters(
        filters=[
            MetadataFilter(key=c[0], operator=c[1], value=c[2]) if isinstance(c, tuple) else c
            for c in conditions
        ],
        condition=condition,
    )


class VectorStoreSuite:
    """Subclass and give fixtures `model` and `vector_store`, an empty one with that model."""

    @pytest.fixture
    def ask(self, vector_store, model):
        def ask(text: str, k: int = 10, **options):
            embedding = model.get_query_embedding(text)
            return vector_store.query(
                VectorStoreQuery(query_embedding=embedding, similarity_top_k=k, **options)
            )

        return ask

    def test_is_a_vector_store_that_keeps_texts(self, vector_store):
        assert isinstance(vector_store, BasePydanticVectorStore)
        assert vector_store.stores_text
        assert vector_store.class_name() == type(vector_store).__name__

    def test_an_empty_store_finds_nothing(self, vector_store, ask):
        result = ask("pump")
        assert (list(result.nodes), result.similarities, result.ids) == ([], [], [])
        assert vector_store.get_nodes() == []
        assert vector_store.add([]) == []
        vector_store.delete("nobody")
        vector_store.delete_nodes([])
        vector_store.clear()

    def test_nodes_come_back_as_they_were(self, vector_store, model, ask):
        nodes = make_nodes(model, {"a": " red apple\n", "b": "green pear"}, "doc", n=1, tags=["x"])
        nodes[0].start_char_idx, nodes[0].end_char_idx = 5, 16
        nodes[0].excluded_llm_metadata_keys = ["n"]
        before = copy.deepcopy(nodes)
        assert vector_store.add(nodes) == ["a", "b"]
        assert nodes == before
        for node in before:
            node.embedding = None
        assert sorted(vector_store.get_nodes(), key=lambda node: node.node_id) == before
        assert vector_store.get_nodes(["b", "nobody", "a"]) == before[::-1]
        assert sorted(ask("apple").ids) == ["a", "b"]

    def test_similarities_are_finite_and_fall(self, vector_store, model, ask):
        vector_store.add(make_nodes(model, {"a": "red apple", "b": "green pear", "c": "a stone"}))
        result = ask("apple", 10)
        assert sorted(result.ids) == ["a", "b", "c"]
        assert [node.node_id for node in result.nodes] == result.ids
        assert result.similarities == sorted(result.similarities, reverse=True)
        assert all(type(score) is float and abs(score) <= 1 for score in result.similarities)
        assert ask("apple", 1).ids == result.ids[:1]

    @pytest.mark.parametrize("k", [0, -1])
    @pytest.mark.parametrize("mode", ["default", "mmr"])
    def test_a_k_below_one_is_refused(self, ask, k, mode):
        with pytest.raises(InputError, match=f"k is {k}"):
            ask("apple", k, mode=VectorStoreQueryMode(mode))

    def test_adding_again_changes_nothing(self, vector_store, model):
        nodes = make_nodes(model, {"a": "alpha", "b": "alpha"}, "doc")
        vector_store.add(nodes)
        vector_store.add(copy.deepcopy(nodes))
        assert [node.text for node in vector_store.get_nodes(["a", "b"])] == ["alpha", "alpha"]
        assert len(vector_store.get_nodes()) == 2

    def test_adding_an_id_again_replaces_text_and_metadata(self, vector_store, model):
        vector_store.add(make_nodes(model, {"a": "alpha"}, old=1))
        vector_store.add(make_nodes(model, {"a": "beta"}, new=2))
        (node,) = vector_store.get_nodes()
        assert (node.text, node.metadata) == ("beta", {"new": 2})

    def test_any_string_is_an_id(self, vector_store, model, ask):
        ids = ["1", "foo", "reports/2024 q1.txt", "\u00fcmlaut/\u540d.txt", "f" * 64]
        texts = {id_: f"text {i}" for i, id_ in enumerate(ids)}
        assert vector_store.add(make_nodes(model, texts, "docs/\u540d 1.txt")) == ids
        assert [node.node_id for node in vector_store.get_nodes(ids)] == ids
        assert sorted(ask("text").ids) == sorted(ids)
        vector_store.delete("docs/\u540d 1.txt")
        assert vector_store.get_nodes() == []

    def test_nodes_of_one_document_may_come_in_several_calls(self, vector_store, model):
        nodes = make_nodes(model, {str(i): f"text {i}" for i in range(5)}, "doc")
        for part in (nodes[:2], nodes[2:3], nodes[3:]):
            vector_store.add(part)
        assert len(vector_store.get_nodes()) == 5
        vector_store.delete("doc")
        assert vector_store.get_nodes() == []

    def test_delete_takes_the_nodes_of_one_document_only(self, vector_store, model, ask):
        vector_store.add(make_nodes(model, {"a1": "red apple", "a2": "apple pie"}, "A"))
        vector_store.add(make_nodes(model, {"b1": "apple juice"}, "B"))
        vector_store.add(make_nodes(model, {"c1": "apple tree"}))
        vector_store.delete("nobody")
        vector_store.delete("None")
        vector_store.delete("A")
        assert sorted(ask("apple").ids) == ["b1", "c1"]
        with pytest.raises(InputError, match="ref_doc_id is None"):
            vector_store.delete(None)

    def test_delete_nodes_by_ids_and_filters(self, vector_store, model):
        def left():
            return sorted(node.node_id for node in vector_store.get_nodes())

        vector_store.add(make_nodes(model, {"a": "a", "b": "b"}, n=1))
        vector_store.add(make_nodes(model, {"c": "c", "d": "d"}, n=2))
        with pytest.raises(InputError, match="use clear"):
            vector_store.delete_nodes()
        vector_store.delete_nodes([])
        vector_store.delete_nodes(["a", "c"], where(("n", "==", 2)))
        assert left() == ["a", "b", "d"]
        vector_store.delete_nodes(filters=where(("n", "==", 1)))
        assert left() == ["d"]
        vector_store.delete_nodes(["d", "nobody"])
        assert left() == []

    def test_clear_empties_the_store_for_further_use(self, vector_store, model):
        vector_store.add(make_nodes(model, {"a": "alpha"}))
        vector_store.clear()
        assert vector_store.get_nodes() == []
        vector_store.add(make_nodes(model, {"b": "beta"}))
        assert len(vector_store.get_nodes()) == 1

    def test_more_nodes_than_a_page(self, vector_store, model):
        nodes = make_nodes(model, {str(i): "text" for i in range(300)}, n=1)
        vector_store.add(nodes)
        found = vector_store.get_nodes(filters=where(("n", "==", 1)))
        assert {node.node_id for node in found} == {str(i) for i in range(300)}

    def test_blank_nodes_are_not_stored(self, vector_store, model, ask):
        nodes = make_nodes(model, {"a": "", "b": "  \n", "c": "real text about pumps"})
        vector_store.add(nodes)
        assert ask("pumps", 4).ids == ["c"]

    @pytest.mark.parametrize(
        ("filters", "found"),
        [
            (where(("roles", "contains", "nobody")), []),
            (where(("n", "==", 0)), ["1"]),
            (where(where(("roles", "in", ["admin"])), condition="not"), ["2"]),
            (
                where(
                    where(("n", ">", 3), ("n", "==", 0), condition="or"),
                    ("roles", "any", ["guest"]),
                ),
                ["2"],
            ),
            (where(("missing_key", "==", 1)), []),
            (where(("roles", "contains", "admin")), ["1"]),
            (where(("n", "!=", 0)), ["2"]),
            (where(("missing_key", "!=", 1)), ["1", "2"]),
            (where(("n", "<", 5)), ["1"]),
            (where(("n", "<=", 5)), ["1", "2"]),
            (where(("n", ">=", 5)), ["2"]),
            (where(("n", "in", [5, 7])), ["2"]),
            (where(("n", "in", [])), []),
            (where(("n", "nin", [5, 7])), ["1"]),
            (where(("roles", "all", ["guest", "late"])), ["2"]),
            (where(("roles", "all", ["guest", "admin"])), []),
            (where(("opt", "is_empty", None)), ["1"]),
            (where(("when", ">", "2024-06-01")), ["2"]),
            (where(("ref_doc_id", "==", "two")), ["2"]),
            (where(("author.name", "==", "Ada")), ["1"]),
            (where(("dotted.key", "==", 2)), ["2"]),
            (where(("dotted.key", "!=", 2)), ["1"]),
            (where(("gr\u00f6\u00dfe (m)", "==", 2)), ["2"]),
            (where(MetadataFilter.model_construct(key="ok", value=False)), ["1"]),
            (where(MetadataFilter.model_construct(key="n", value=False)), []),
            (where(), ["1", "2"]),
            (where(condition="or"), []),
        ],
    )
    def test_filters_are_applied_exactly(self, vector_store, model, ask, filters, found):
        vector_store.add(
            make_nodes(
                model,
                {"1": "one"},
                "one",
                roles=["admin"],
                n=0,
                ok=False,
                when="2024-01-02",
                author={"name": "Ada"},
            )
        )
        more = {"dotted.key": 2, "gr\u00f6\u00dfe (m)": 2}
        vector_store.add(
            make_nodes(
                model,
                {"2": "two"},
                "two",
                roles=["guest", "late"],
                n=5,
                ok=True,
                opt="x",
                when="2024-12-31",
                author={"name": "Bob"},
                **more,
            )
        )
        assert sorted(ask("text", filters=filters).ids) == found
        assert sorted(node.node_id for node in vector_store.get_nodes(filters=filters)) == found

    @pytest.mark.parametrize(
        ("operator", "value"),
        [
            ("text_match", "x"),
            ("text_match_insensitive", "x"),
            ("in", "scalar"),
            ("==", ["a", "list"]),
            ("all", []),
            (">", "no date"),
        ],
    )
    def test_a_filter_that_cant_be_exact_is_refused_by_name(self, ask, operator, value):
        with pytest.raises(NotImplementedError, match=repr(operator)):
            ask("text", filters=where(("key", operator, value)))

    def test_an_entry_named_doc_id_is_the_users(self, vector_store, model, ask):
        vector_store.add(make_nodes(model, {"a": "alpha"}, "source", doc_id="mine"))
        assert ask("x", filters=where(("doc_id", "==", "mine"))).ids == ["a"]
        assert ask("x", filters=where(("doc_id", "==", "source"))).ids == []
        assert vector_store.get_nodes()[0].metadata == {"doc_id": "mine"}
        vector_store.delete("source")
        assert vector_store.get_nodes() == []

    def test_ids_and_filters_must_all_hold(self, vector_store, model, ask):
        vector_store.add(make_nodes(model, {"a": "a", "b": "b"}, "A", n=1))
        vector_store.add(make_nodes(model, {"c": "c"}, "B", n=1))
        assert sorted(ask("x", doc_ids=["A"]).ids) == ["a", "b"]
        assert ask("x", doc_ids=[]).ids == []
        assert sorted(ask("x", node_ids=["b", "c"]).ids) == ["b", "c"]
        assert sorted(ask("x", node_ids=[]).ids) == ["a", "b", "c"]
        assert ask("x", doc_ids=["A"], node_ids=["b", "c"]).ids == ["b"]
        assert ask("x", node_ids=["b"], filters=where(("n", "==", 2))).ids == []
        found = vector_store.get_nodes(["a", "c"], where(("n", "==", 1), ("ref_doc_id", "==", "B")))
        assert [node.node_id for node in found] == ["c"]

    @pytest.mark.parametrize(
        "mode", [m for m in VectorStoreQueryMode if m.value not in ("default", "mmr", "hybrid")]
    )
    def test_other_modes_are_refused_by_name(self, ask, mode):
        with pytest.raises(NotImplementedError, match=mode.value):
            ask("apple", mode=mode)

    def test_mmr_prefers_what_differs(self, vector_store, model):
        texts = {"a": "red apple", "twin": "red apple", "c": "the valve of the station closes"}
        vector_store.add(make_nodes(model, texts))

        def ask(k, mode, threshold=None):
            query = VectorStoreQuery(
                query_embedding=model.get_text_embedding("red apple"),
                similarity_top_k=k,
                mode=VectorStoreQueryMode(mode),
                mmr_threshold=threshold,
            )
            return set(vector_store.query(query).ids)

        assert ask(2, "default") == {"a", "twin"}
        assert "c" in ask(2, "mmr", 0.1)
        assert ask(2, "mmr", 1.0) == {"a", "twin"}
        assert ask(10, "mmr") == {"a", "twin", "c"}

    def test_a_query_may_be_text_and_can_not_be_nothing(self, vector_store, model, ask):
        vector_store.add(make_nodes(model, {"a": "red apple", "b": "green pear"}))
        for mode in (VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.MMR):
            text = VectorStoreQuery(query_str="apple", similarity_top_k=2, mode=mode)
            assert vector_store.query(text).ids == ask("apple", 2, mode=mode).ids
            assert vector_store.query(VectorStoreQuery(query_str=" ", mode=mode)).ids == []
        with pytest.raises(InputError, match="neither"):
            vector_store.query(VectorStoreQuery())

    def test_metadata_follow_one_rule(self, vector_store, model):
        given = {
            "when": date(2024, 1, 2),
            "score": np.float32(0.5),
            "path": Path("x"),
            "pair": (1, 2),
            "nested": {"k": [1, None, True], "e": []},
        }
        nodes = make_nodes(model, {"a": "alpha"}, "doc", **given)
        vector_store.add(nodes)
        (node,) = vector_store.get_nodes()
        assert node.metadata == {
            "when": "2024-01-02",
            "score": 0.5,
            "path": "x",
            "pair": [1, 2],
            "nested": {"k": [1, None, True], "e": []},
        }
        assert nodes[0].metadata == given
        json.dumps(node.metadata)

    @pytest.mark.parametrize("bad", [{"a", "b"}, b"\xff", float("nan"), 2**64, object()])
    def test_metadata_that_json_cant_hold_is_refused_before_anything_is_written(
        self, vector_store, model, bad
    ):
        nodes = make_nodes(model, {"a": "alpha", "b": "beta"})
        nodes[1].metadata["bad"] = bad
        with pytest.raises(InputError, match=r"node 'b': metadata\['bad'\]"):
            vector_store.add(nodes)
        assert vector_store.get_nodes() == []

    def test_an_embedding_of_another_width_is_refused(self, vector_store, model):
        node = TextNode(id_="a", text="alpha", embedding=[1.0, 2.0])
        with pytest.raises(InputError, match="2 wide"):
            vector_store.add([node])

    async def test_async_and_sync_see_the_same_data(self, vector_store, model, ask):
        nodes = make_nodes(model, {"a": "red apple", "b": "green pear"}, "A", n=1)
        assert await vector_store.async_add(nodes) == ["a", "b"]
        vector_store.add(make_nodes(model, {"c": "blue stone", "d": "d"}, "B", n=2))
        embedding = model.get_query_embedding("apple")
        query = VectorStoreQuery(query_embedding=embedding, similarity_top_k=3)
        assert await vector_store.aquery(query) == vector_store.query(query)
        assert await vector_store.aget_nodes(["a", "c"]) == vector_store.get_nodes(["a", "c"])
        await vector_store.adelete("A")
        assert len(vector_store.get_nodes()) == 2
        await vector_store.adelete_nodes(["c"])
        assert [node.node_id for node in vector_store.get_nodes()] == ["d"]
        await vector_store.aclear()
        assert await vector_store.aget_nodes() == []

    async def test_cancelling_leaves_a_store_that_works(self, vector_store, model):
        nodes = make_nodes(model, {str(i): f"text {i} " * 20 for i in range(50)})
        task = asyncio.ensure_future(vector_store.async_add(nodes))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(await vector_store.async_add(nodes)) == 50
        assert len(vector_store.get_nodes()) == 50

    async def test_the_event_loop_turns_while_nodes_are_stored_and_sought(
        self, vector_store, model, waits_for_the_loop
    ):
        nodes = make_nodes(model, {"a": "red apple", "b": "green pear"})
        writing = waits_for_the_loop(LocalBackend, "upsert")
        await vector_store.async_add(nodes)
        assert writing == [True]
        searching = waits_for_the_loop(LocalBackend, "search")
        query = VectorStoreQuery(query_embedding=nodes[0].embedding, similarity_top_k=2)
        assert len((await vector_store.aquery(query)).nodes) == 2
        assert searching == [True]

    def test_threads_write_and_read_together(self, vector_store, model):
        parts = [
            make_nodes(model, {f"{i}-{j}": f"text {i} {j}" for j in range(10)}) for i in range(6)
        ]
        vectors = model.get_query_embedding("text")
        query = VectorStoreQuery(query_embedding=vectors, similarity_top_k=3)
        with ThreadPoolExecutor(8) as pool:
            writes = [pool.submit(vector_store.add, part) for part in parts]
            reads = [pool.submit(vector_store.query, query) for _ in range(20)]
        for future in (*writes, *reads):
            future.result()
        assert len(vector_store.get_nodes()) == 60

    def test_pickle_and_dict_keep_every_setting(self, vector_store):
        for twin in (
            pickle.loads(pickle.dumps(vector_store)),
            type(vector_store).from_dict(vector_store.to_dict()),
        ):
            assert twin.to_dict() == vector_store.to_dict()


class TestLMKVectorStore(VectorStoreSuite):
    @pytest.fixture
    def model(self, lmk_embedding):
        return lmk_embedding

    @pytest.fixture
    def vector_store(self, model):
        return LMKVectorStore(embed_model=model)


class TestLMKVectorStoreWithAnotherModel(VectorStoreSuite):
    @pytest.fixture
    def model(self):
        return Bag()

    @pytest.fixture
    def vector_store(self, model):
        return LMKVectorStore(embed_model=model)

    def test_pickle_and_dict_keep_every_setting(self, vector_store):
        twin = pickle.loads(pickle.dumps(vector_store))
        assert twin.to_dict() == vector_store.to_dict()


class RetrieverSuite:
    """Subclass and give `make`, which makes a retriever with a given k over five texts or more."""

    def test_is_a_retriever(self, make):
        assert isinstance(make(1), BaseRetriever)

    @pytest.mark.parametrize("k", [1, 3, 5])
    def test_k_is_what_comes(self, make, k):
        found = make(k).retrieve("the pump")
        assert len(found) == k
        assert len({node.node_id for node in found}) == k

    def test_scores_fall_and_ids_are_stable(self, make):
        first, second = make(3).retrieve("the pump"), make(3).retrieve("the pump")
        assert first == second
        assert [node.score for node in first] == sorted((n.score for n in first), reverse=True)

    @pytest.mark.parametrize("k", [0, -1])
    def test_a_k_below_one_is_refused(self, make, k):
        with pytest.raises(InputError, match=f"k is {k}"):
            make(k).retrieve("the pump")

    def test_a_blank_query_finds_nothing(self, make):
        assert make(3).retrieve("") == []
        assert make(3).retrieve(QueryBundle("  \n")) == []

    async def test_async_equals_sync(self, make):
        assert await make(3).aretrieve("the pump") == make(3).retrieve("the pump")

    def test_the_embedding_of_a_query_bundle_counts(self, make, model):
        wanted = model.get_query_embedding("the valve")
        bundle = QueryBundle("something else", embedding=wanted)
        by_embedding = make(3).retrieve(bundle)
        assert [n.node_id for n in by_embedding] == [
            n.node_id for n in make(3).retrieve("the valve")
        ]
        custom = QueryBundle("something else", custom_embedding_strs=["the valve"])
        assert make(3).retrieve(custom) == make(3).retrieve("the valve")

    def test_events_fire(self, make, events):
        make(1).retrieve("the pump")
        assert [name for name in events if "Retrieval" in name] == [
            "RetrievalStartEvent",
            "RetrievalEndEvent",
        ]

    async def test_sync_works_inside_a_running_loop(self, make):
        assert len(make(3).retrieve("the pump")) == 3

    async def test_the_event_loop_turns_while_passages_are_sought(self, make, waits_for_the_loop):
        turns = waits_for_the_loop(LocalBackend, "search")
        assert len(await make(3).aretrieve("the pump")) == 3
        assert turns
        assert all(turns)


class TestLMKRetriever(RetrieverSuite):
    @pytest.fixture
    def model(self, lmk_embedding):
        return lmk_embedding

    @pytest.fixture
    def make(self, model):
        documents = [
            Document(id_=str(i), text=f"Part {i}. " + "The pump stops. The valve closes.\n" * i)
            for i in range(1, 6)
        ]
        vector_store = LMKVectorStore(embed_model=model)
        vector_store.add(LMKNodeParser(embed_model=model, chunk_size=16)(documents))
        return lambda k: LMKRetriever(vector_store, similarity_top_k=k)
