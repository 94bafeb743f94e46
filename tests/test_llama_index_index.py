"""Indexes, ingestion pipelines, query and chat engines over our components, with exact counts."""

import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.chat_engine import CondensePlusContextChatEngine, ContextChatEngine
from llama_index.core.ingestion import DocstoreStrategy, IngestionCache, IngestionPipeline
from llama_index.core.llms.mock import MockLLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import Document
from llama_index.core.storage.docstore import SimpleDocumentStore

from llama_index.embeddings.lmk import LMKEmbedding
from llama_index.node_parser.lmk import LMKNodeParser
from llama_index.retrievers.lmk import LMKRetriever
from llama_index.vector_stores.lmk import LMKVectorStore

pytestmark = pytest.mark.filterwarnings("ignore:.*was not trained with landmarks")


def text(n: int, word: str = "pump") -> str:
    """A text that the parser cuts into n nodes of one sentence each.

    A sentence has 11 tokens or a few more: the toy vocabulary is not the same in every process.
    """
    return "".join(f"The {word} of station {word} stops now and then {i}.\n" for i in range(n))


@pytest.fixture(scope="module")
def embedding(model_folder) -> LMKEmbedding:
    config = {"granularity": 14, "boundary": "sentence", "overlap": 0}
    return LMKEmbedding(
        model_name=model_folder("bert"), config=config, device="cpu", dtype="float32"
    )


@pytest.fixture
def parser(embedding) -> LMKNodeParser:
    return LMKNodeParser(embed_model=embedding, chunk_size=1)


@pytest.fixture
def vector_store(embedding) -> LMKVectorStore:
    return LMKVectorStore(embed_model=embedding)


@pytest.fixture
def count(vector_store):
    """Nodes per source document, once each in store and search."""

    def count() -> dict[str, int]:
        nodes = vector_store.get_nodes()
        assert len({node.node_id for node in nodes}) == len(nodes) == vector_store.store.count()
        found: dict[str, int] = {}
        for node in nodes:
            found[node.ref_doc_id] = found.get(node.ref_doc_id, 0) + 1
        return found

    return count


def make_index(documents, parser, vector_store, **options) -> VectorStoreIndex:
    return VectorStoreIndex.from_documents(
        documents,
        storage_context=StorageContext.from_defaults(vector_store=vector_store),
        transformations=[parser],
        embed_model=parser.embed_model,
        **options,
    )


@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize("insert_batch_size", [2048, 3])
def test_an_index_is_built_the_same_twice(
    parser, vector_store, count, use_async, insert_batch_size
):
    documents = [Document(id_="a", text=text(5)), Document(id_="b", text=text(2, "valve"))]
    options = {"use_async": use_async, "insert_batch_size": insert_batch_size}
    for _ in range(2):
        make_index(documents, parser, vector_store, **options)
        assert count() == {"a": 5, "b": 2}


def test_an_index_is_refreshed_updated_and_shrunk(parser, vector_store, count):
    index = make_index([Document(id_="a", text=text(5))], parser, vector_store)
    same, new = Document(id_="a", text=text(5)), Document(id_="b", text=text(3, "valve"))
    assert index.refresh_ref_docs([same, new]) == [False, True]
    assert count() == {"a": 5, "b": 3}
    edited = Document(id_="a", text=text(5).replace("then 4", "then 7"))
    assert index.refresh_ref_docs([edited, new]) == [True, False]
    assert count() == {"a": 5, "b": 3}
    assert sum("then 7" in node.text for node in vector_store.get_nodes()) == 1
    index.update_ref_doc(Document(id_="a", text=text(2)))
    assert count() == {"a": 2, "b": 3}
    index.delete_ref_doc("a", delete_from_docstore=True)
    index.delete_ref_doc("nobody")
    assert count() == {"b": 3}
    index.delete_nodes([vector_store.get_nodes()[0].node_id])
    assert count() == {"b": 2}
    index.insert(Document(id_="c", text=text(1)))
    assert count() == {"b": 2, "c": 1}


async def test_an_index_is_changed_asynchronously(parser, vector_store, count):
    index = make_index([Document(id_="a", text=text(3))], parser, vector_store)
    await index.ainsert(Document(id_="b", text=text(2, "valve")))
    assert count() == {"a": 3, "b": 2}
    assert await index.arefresh_ref_docs([Document(id_="a", text=text(1))]) == [True]
    assert count() == {"a": 1, "b": 2}
    await index.adelete_ref_doc("b")
    assert count() == {"a": 1}
    (found,) = await index.as_retriever().aretrieve("pump")
    assert found.node.ref_doc_id == "a"


def test_an_index_opens_a_store_that_is_there(parser, vector_store, embedding):
    make_index([Document(id_="a", text=text(3))], parser, vector_store)
    index = VectorStoreIndex.from_vector_store(vector_store, embed_model=embedding)
    found = index.as_retriever(similarity_top_k=10).retrieve("pump")
    assert len(found) == 3
    assert [node.score for node in found] == sorted((n.score for n in found), reverse=True)


def test_an_index_with_a_stock_splitter(vector_store, embedding, count):
    index = make_index(
        [Document(id_="a", text=text(60), metadata={"lang": "en"})],
        LMKNodeParser(embed_model=embedding),
        vector_store,
    )
    vector_store.clear()
    splitter = SentenceSplitter(chunk_size=128, chunk_overlap=0)
    index._transformations = [splitter]
    index.insert(Document(id_="a", text=text(60), metadata={"lang": "en"}))
    assert count() == {"a": len(splitter([Document(text=text(60), metadata={"lang": "en"})]))}


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_pipeline_with_upserts_and_cache(parser, vector_store, count, is_async):
    pipeline = IngestionPipeline(
        transformations=[parser],
        vector_store=vector_store,
        docstore=SimpleDocumentStore(),
        docstore_strategy=DocstoreStrategy.UPSERTS,
        cache=IngestionCache(),
    )

    async def run(*documents) -> int:
        if is_async:
            return len(await pipeline.arun(documents=list(documents)))
        return len(pipeline.run(documents=list(documents)))

    a, b = Document(id_="a", text=text(5)), Document(id_="b", text=text(2, "valve"))
    assert await run(a, b) == 7
    assert count() == {"a": 5, "b": 2}
    assert await run(a, b) == 0
    assert count() == {"a": 5, "b": 2}
    edited = Document(id_="a", text=text(5).replace("then 0", "then 7"))
    assert await run(edited, b) == 5
    assert count() == {"a": 5, "b": 2}
    assert await run(Document(id_="a", text=text(2)), b) == 2
    assert count() == {"a": 2, "b": 2}
    assert await run(a) == 5  # its nodes come from the cache, landmarks and all
    assert count() == {"a": 5, "b": 2}
    assert await run(Document(id_="a", text=""), b) == 0
    assert count() == {"b": 2}


def test_cached_nodes_equal_fresh_ones(parser, vector_store, embedding, monkeypatch, tmp_path):
    documents = [Document(id_="a", text=text(5), metadata={"tags": ["x"]})]
    pipeline = IngestionPipeline(transformations=[parser], vector_store=vector_store)
    fresh = pipeline.run(documents=documents)
    stored = vector_store.get_nodes()
    pipeline.persist(str(tmp_path))
    again = IngestionPipeline(
        transformations=[LMKNodeParser.from_dict(parser.to_dict())],
        vector_store=LMKVectorStore(embed_model=embedding),
    )
    again.load(str(tmp_path))
    monkeypatch.setattr(LMKNodeParser, "_parse_nodes", None)
    assert again.run(documents=documents) == fresh
    assert again.vector_store.get_nodes() == stored
    other = parser.model_copy(update={"chunk_size": 2})
    again.transformations = [other]
    with pytest.raises(TypeError):  # another setting: the parser is asked
        again.run(documents=documents)


def test_a_pipeline_with_upserts_and_delete(parser, vector_store, count):
    pipeline = IngestionPipeline(
        transformations=[parser],
        vector_store=vector_store,
        docstore=SimpleDocumentStore(),
        docstore_strategy=DocstoreStrategy.UPSERTS_AND_DELETE,
    )
    a, b = Document(id_="a", text=text(5)), Document(id_="b", text=text(2, "valve"))
    pipeline.run(documents=[a, b])
    pipeline.run(documents=[b])
    assert count() == {"b": 2}
    pipeline.run(documents=[a, b])
    assert count() == {"a": 5, "b": 2}


def test_a_pipeline_for_duplicates_only(parser, vector_store, count):
    pipeline = IngestionPipeline(
        transformations=[parser],
        vector_store=vector_store,
        docstore=SimpleDocumentStore(),
        docstore_strategy=DocstoreStrategy.DUPLICATES_ONLY,
    )
    a = Document(id_="a", text=text(5))
    assert len(pipeline.run(documents=[a, Document(id_="copy", text=text(5))])) == 5
    assert len(pipeline.run(documents=[a])) == 0
    assert count() == {"a": 5}


def test_equal_texts_under_two_ids_are_two_documents(parser, vector_store, count):
    pipeline = IngestionPipeline(transformations=[parser], vector_store=vector_store)
    pipeline.run(documents=[Document(id_="a", text=text(2)), Document(id_="b", text=text(2))])
    assert count() == {"a": 2, "b": 2}


def test_the_embedding_model_may_follow_the_parser(parser, vector_store, embedding):
    documents = [Document(id_="a", text=text(3))]
    pipeline = IngestionPipeline(
        transformations=[parser, embedding], vector_store=vector_store, disable_cache=True
    )
    assert pipeline.run(documents=documents) == parser(documents)


def test_a_pipeline_with_a_stock_splitter(vector_store, embedding, count):
    splitter = SentenceSplitter(chunk_size=64, chunk_overlap=0)
    pipeline = IngestionPipeline(
        transformations=[splitter, embedding],
        vector_store=vector_store,
        docstore=SimpleDocumentStore(),
    )
    for n in (30, 30, 10):
        pipeline.run(documents=[Document(id_="a", text=text(n))])
        assert count() == {"a": len(splitter([Document(text=text(n))]))}


def test_query_engines_answer_from_our_nodes(parser, vector_store):
    index = make_index([Document(id_="a", text=text(3))], parser, vector_store)
    response = index.as_query_engine(llm=MockLLM(), similarity_top_k=2).query("pump?")
    assert len(response.source_nodes) == 2
    assert response.source_nodes[0].text in str(response)
    assert "lmk_" not in str(response)
    engine = RetrieverQueryEngine.from_args(
        LMKRetriever(vector_store, similarity_top_k=2), llm=MockLLM()
    )
    response = engine.query("pump?")
    assert len(response.source_nodes) == 2
    assert response.source_nodes[0].text in str(response)
    assert "lmk_" not in str(response)


async def test_query_engines_answer_asynchronously(parser, vector_store):
    make_index([Document(id_="a", text=text(3))], parser, vector_store)
    retriever = LMKRetriever(vector_store, similarity_top_k=2)
    engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM())
    assert (await engine.aquery("pump?")).source_nodes == engine.query("pump?").source_nodes


def memory() -> ChatMemoryBuffer:
    """The default memory keeps a database connection that nobody closes."""
    return ChatMemoryBuffer.from_defaults(token_limit=3_000)


@pytest.mark.parametrize("kind", [CondensePlusContextChatEngine, ContextChatEngine])
async def test_chat_engines_talk_over_our_passages(parser, vector_store, kind):
    make_index([Document(id_="a", text=text(3))], parser, vector_store)
    retriever = LMKRetriever(vector_store, similarity_top_k=2)
    engine = kind.from_defaults(retriever=retriever, llm=MockLLM(), memory=memory())
    for _ in range(2):  # the second turn condenses the first
        assert len(engine.chat("when does the pump stop?").source_nodes) == 2
    assert "".join(engine.stream_chat("and the valve?").response_gen)
    assert len((await engine.achat("and the valve?")).source_nodes) == 2


def test_a_chat_engine_of_the_index(parser, vector_store):
    index = make_index([Document(id_="a", text=text(3))], parser, vector_store)
    engine = index.as_chat_engine(chat_mode="context", llm=MockLLM(), memory=memory())
    assert len(engine.chat("when does the pump stop?").source_nodes) == 2
