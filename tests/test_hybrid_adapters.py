"""`mode="hybrid"` in LangChain, LlamaIndex and on the command line."""

import json
import pickle

import numpy as np
import pytest
from langchain_core.documents import Document as LangChainDocument
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import Document, QueryBundle, TextNode
from llama_index.core.vector_stores.types import (
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)
from typer.testing import CliRunner

from langchain_lmk import LMKEmbeddings, LMKRetriever, LMKVectorStore
from llama_index.embeddings.lmk import LMKEmbedding
from llama_index.node_parser.lmk import LMKNodeParser
from llama_index.retrievers.lmk import LMKRetriever as LlamaIndexRetriever
from llama_index.vector_stores.lmk import LMKVectorStore as LlamaIndexStore
from lmk_rag import Retriever
from lmk_rag.cli import app
from lmk_rag.errors import ConfigError, InputError
from lmk_rag.fusion import Fusion

pytestmark = pytest.mark.filterwarnings("ignore:.*was not trained with landmarks")

TEXTS = {
    "pump": "The pump of the station stops when the valve closes.",
    "part": "Order number XQ-4711 is kept in the cellar beside the old boxes.",
    "cats": "Cats sleep for most of the day, and mice wake at night.",
    "bread": "Bread is made of flour and water.",
}
QUESTION = "XQ 4711"


@pytest.fixture(scope="module")
def embeddings(model_folder):
    return LMKEmbeddings(model=str(model_folder("bert")), device="cpu", dtype="float32")


@pytest.fixture
def langchain(embeddings):
    store = LMKVectorStore(embeddings)
    store.add_texts(list(TEXTS.values()), [{"n": n} for n in range(4)], ids=list(TEXTS))
    return store


def core(store, fusion=None):
    hits = Retriever(store, fusion=fusion).search_documents(QUESTION, k=4, mode="hybrid")
    return [(hit.document_id, hit.score) for hit in hits]


async def test_langchain_stores_search_by_words_too(langchain):
    expected = core(langchain.store)
    assert expected[0][0] == "part"
    found = langchain.similarity_search_with_score(QUESTION, mode="hybrid")
    assert [(document.id, score) for document, score in found] == expected
    ids = [id_ for id_, _ in expected]
    search = {"k": 4, "mode": "hybrid"}
    assert [d.id for d in langchain.similarity_search(QUESTION, **search)] == ids
    assert [d.id for d in await langchain.asimilarity_search(QUESTION, **search)] == ids
    assert [d.id for d in langchain.as_retriever(search_kwargs=search).invoke(QUESTION)] == ids
    vector = langchain.embeddings.embed_query(QUESTION)
    by_both = langchain.similarity_search_by_vector(vector, words=QUESTION, **search)
    assert [d.id for d in by_both] == ids
    with pytest.raises(InputError, match="the query is a vector only"):
        langchain.similarity_search_by_vector(vector, mode="hybrid")


async def test_langchain_relevance_scores_of_hybrid_are_the_fused_ones(langchain):
    expected = core(langchain.store)
    found = langchain.similarity_search_with_relevance_scores(QUESTION, mode="hybrid")
    assert [(document.id, score) for document, score in found] == expected
    again = await langchain.asimilarity_search_with_relevance_scores(QUESTION, mode="hybrid")
    assert again == found
    plain = langchain.similarity_search_with_relevance_scores(QUESTION)
    cosines = langchain.similarity_search_with_score(QUESTION)
    assert [s for _, s in plain] == pytest.approx([(s + 1) / 2 for _, s in cosines])
    retriever = langchain.as_retriever(
        search_type="similarity_score_threshold",
        search_kwargs={"score_threshold": expected[0][1], "mode": "hybrid"},
    )
    assert [document.id for document in retriever.invoke(QUESTION)] == ["part"]


def test_langchain_mmr_chooses_from_what_hybrid_finds(langchain):
    options = {"k": 1, "fetch_k": 1}
    for mode in ("auto", "hybrid"):
        first = langchain.similarity_search(QUESTION, k=1, mode=mode)
        assert langchain.max_marginal_relevance_search(QUESTION, mode=mode, **options) == first
    vector = langchain.embeddings.embed_query(QUESTION)
    with pytest.raises(InputError, match="the query is a vector only"):
        langchain.max_marginal_relevance_search_by_vector(vector, mode="hybrid")


async def test_langchain_retrievers_take_the_mode_and_the_fusion(langchain, embeddings):
    fusion = Fusion("weighted", words=0.9)
    retriever = LMKRetriever(store=langchain.store, k=4, mode="hybrid", fusion=fusion)
    expected = core(langchain.store, fusion)
    found = retriever.invoke(QUESTION)
    assert [(d.metadata["document_id"], d.metadata["score"]) for d in found] == expected
    assert await retriever.ainvoke(QUESTION) == found
    store = LMKVectorStore(embeddings, fusion=fusion)
    store.add_documents([LangChainDocument(text, id=id_) for id_, text in TEXTS.items()])
    found = store.similarity_search_with_score(QUESTION, mode="hybrid")
    assert [(document.id, score) for document, score in found] == [
        (id_, pytest.approx(score, abs=1e-5)) for id_, score in expected
    ]


@pytest.fixture(scope="module")
def embedding(model_folder):
    return LMKEmbedding(model_name=model_folder("bert"), device="cpu", dtype="float32")


@pytest.fixture
def llama(embedding):
    store = LlamaIndexStore(embed_model=embedding)
    nodes = [
        TextNode(id_=id_, text=text, metadata={"n": n})
        for n, (id_, text) in enumerate(TEXTS.items())
    ]
    store.add(nodes)
    return store


def ask(**options):
    return VectorStoreQuery(
        **({"similarity_top_k": 4, "mode": VectorStoreQueryMode.HYBRID} | options)
    )


async def test_llama_index_stores_take_text_with_or_without_an_embedding(llama, embedding):
    expected = core(llama.store)
    assert expected[0][0] == "part"
    vector = embedding.get_query_embedding(QUESTION)
    for query in (ask(query_str=QUESTION), ask(query_str=QUESTION, query_embedding=vector)):
        result = llama.query(query)
        assert list(zip(result.ids, result.similarities, strict=True)) == expected
        assert (await llama.aquery(query)).ids == result.ids
    assert llama.query(ask(query_str=" ")).ids == []
    for words in (None, "", " "):
        with pytest.raises(InputError, match="has an embedding only"):
            llama.query(ask(query_str=words, query_embedding=vector))
    where = MetadataFilters(filters=[MetadataFilter(key="n", value=1, operator="!=")])
    found = llama.query(ask(query_str=QUESTION, filters=where)).ids
    assert sorted(found) == ["bread", "cats", "pump"]


def test_llama_index_alpha_and_numbers(llama, embedding):
    def similarities(**options):
        result = llama.query(ask(query_str=QUESTION, **options))
        return list(zip(result.ids, result.similarities, strict=True))

    assert similarities(alpha=0.25) == core(llama.store, Fusion(words=0.75))
    by_landmarks = llama.query(ask(query_str=QUESTION, mode=VectorStoreQueryMode.DEFAULT)).ids
    assert [id_ for id_, _ in similarities(alpha=1.0)] == by_landmarks
    assert similarities(alpha=0.0)[0] == ("part", 1.0)
    assert len(similarities(hybrid_top_k=2)) == 2
    assert len(similarities(hybrid_top_k=3, similarity_top_k=1, sparse_top_k=1)) == 3
    with pytest.raises(ConfigError, match="alpha is 2"):
        similarities(alpha=2.0)
    with pytest.raises(InputError, match="k is 0"):
        similarities(hybrid_top_k=0)


def test_llama_index_stores_keep_their_fusion(embedding):
    fusion = Fusion("weighted", words=0.9)
    store = LlamaIndexStore(embed_model=embedding, fusion=fusion)
    for copy in (
        LlamaIndexStore.from_dict(json.loads(json.dumps(store.to_dict()))),
        pickle.loads(pickle.dumps(store)),
    ):
        assert copy.fusion == fusion
    store.add([TextNode(id_=id_, text=text) for id_, text in TEXTS.items()])
    result = store.query(ask(query_str=QUESTION))
    assert list(zip(result.ids, result.similarities, strict=True)) == core(store.store, fusion)


async def test_llama_index_indexes_and_retrievers_search_by_words_too(embedding):
    store = LlamaIndexStore(embed_model=embedding)
    index = VectorStoreIndex.from_documents(
        [Document(id_=id_, text=text) for id_, text in TEXTS.items()],
        storage_context=StorageContext.from_defaults(vector_store=store),
        transformations=[LMKNodeParser(embed_model=embedding)],
        embed_model=embedding,
    )
    of_index = index.as_retriever(vector_store_query_mode="hybrid", similarity_top_k=4, alpha=0.1)
    assert of_index.retrieve(QUESTION)[0].node.ref_doc_id == "part"
    assert (await of_index.aretrieve(QUESTION))[0].node.ref_doc_id == "part"
    ours = LlamaIndexRetriever(store, similarity_top_k=4, mode="hybrid")
    found = ours.retrieve(QUESTION)
    assert [hit.score for hit in found] == [score for _, score in core(store.store)]
    assert found[0].node.ref_doc_id == "part"
    assert [hit.score for hit in await ours.aretrieve(QUESTION)] == [hit.score for hit in found]
    # The words are those of the question, whatever was embedded.
    bundle = QueryBundle(QUESTION, embedding=embedding.get_query_embedding("flour and water"))
    by_both = Retriever(store.store).search_documents(
        np.float32(bundle.embedding), k=4, mode="hybrid", words=QUESTION
    )
    assert [hit.score for hit in ours.retrieve(bundle)] == [hit.score for hit in by_both]
    with pytest.raises(InputError, match="the query is a vector only"):
        ours.retrieve(QueryBundle("", embedding=bundle.embedding))


def test_the_command_line_searches_by_words_too(tmp_path, monkeypatch, model_folder):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMK_RAG_MODEL", str(model_folder("bert")))
    monkeypatch.delenv("LMK_RAG_STORE", raising=False)
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.txt").write_text(text)

    def run(*args):
        result = CliRunner().invoke(app, list(args))
        assert result.exit_code == 0, result.output
        return result.stdout

    run("index", "*.txt")
    found = json.loads(run("search", QUESTION, "--mode", "hybrid", "--json"))
    assert found[0]["path"] == "part.txt"
    scores = [passage["score"] for passage in found]
    assert len(scores) == 4
    assert all(0 <= score <= 1 for score in scores)
    assert scores == sorted(scores, reverse=True)
    assert "hybrid" in run("search", "--help")
