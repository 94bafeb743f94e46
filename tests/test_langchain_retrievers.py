"""`LMKRetriever`, and both retrievers inside LangChain's own machinery."""

import functools

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.tools import create_retriever_tool
from langchain_tests.integration_tests import RetrieversIntegrationTests
from pydantic import ValidationError

from langchain_lmk import LMKEmbeddings, LMKRetriever, LMKTextSplitter, LMKVectorStore
from lmk_rag import LandmarkEncoder, Retriever
from lmk_rag.errors import InputError, UnsupportedFilterError
from lmk_rag.store import Eq
from lmk_rag.store.local import LocalBackend

PUMPS = (
    "The pump of station V-7 was built in 1962.\n"
    "Its motor is blue, and so is the roof above it.\n\n"
    "The valve opens at 80 degrees and closes again at 72 degrees.\n"
    "Painters come every second spring.\n"
)
DOCUMENTS = [
    Document(id="pumps.txt", page_content=PUMPS, metadata={"lang": "en", "line": "user's own"}),
    Document(
        id="cats.txt",
        page_content="Cats sleep for most of the day.\nMice wake at night.\n",
        metadata={"lang": "en", "source": "animals/cats.txt"},
    ),
    Document(id="bread.txt", page_content="Bread is made of flour and water.\n"),
    Document(id="sea.txt", page_content="The tide turns twice a day.\n"),
]
QUESTION = "At which temperature does the valve open?"


@functools.cache
def filled() -> LMKVectorStore:
    """One store of four documents over the default model."""
    vector_store = LMKVectorStore(LMKEmbeddings(config={"granularity": 16, "boundary": "sentence"}))
    vector_store.add_documents(DOCUMENTS)
    return vector_store


class TestSuite(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return LMKRetriever

    @property
    def retriever_constructor_params(self) -> dict:
        return {"store": filled().store}

    @property
    def retriever_query_example(self) -> str:
        return QUESTION


class TestSuiteOfTheVectorStoresOwn(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self):
        def make(k: int = 4) -> BaseRetriever:
            return filled().as_retriever(search_kwargs={"k": k})

        return make

    @property
    def retriever_query_example(self) -> str:
        return QUESTION


@pytest.fixture
def retriever() -> LMKRetriever:
    return LMKRetriever(store=filled().store, k=2, passage_tokens=16)


def test_a_passage_says_where_it_stands(retriever):
    best = retriever.invoke(QUESTION)[0]
    assert best.page_content == "The valve opens at 80 degrees and closes again at 72 degrees."
    score = best.metadata.pop("score")
    assert 0.4 < score <= 1
    assert best.metadata == {
        "source": "pumps.txt",
        "lang": "en",
        "document_id": "pumps.txt",
        "start": 92,
        "end": 153,
        "line": 4,
        "best_start": 92,
        "best_end": 153,
    }
    assert PUMPS[92:153] == best.page_content


def test_a_source_in_the_metadata_is_kept(retriever):
    (best,) = retriever.invoke("Which animals sleep?", k=1)
    assert best.metadata["source"] == "animals/cats.txt"
    assert best.metadata["document_id"] == "cats.txt"


def test_passages_are_the_cores(retriever):
    passages = Retriever(retriever.store).search(QUESTION, k=4, passage_tokens=16)
    found = retriever.invoke(QUESTION, k=4)
    assert [d.page_content for d in found] == [p.text for p in passages]
    assert [d.metadata["score"] for d in found] == [p.score for p in passages]
    scores = [document.metadata["score"] for document in found]
    assert scores == sorted(scores, reverse=True)
    assert {type(score) for score in scores} == {float}


async def test_options_count_at_construction_and_at_call(retriever):
    for options in (
        {"k": 1},
        {"filter": Eq("lang", "en")},
        {"per_document": 2, "k": 10},
        {"passage_tokens": 64},
        {"mode": "document"},
    ):
        made = LMKRetriever(store=retriever.store, **{"k": 2, "passage_tokens": 16} | options)
        expected = made.invoke(QUESTION)
        assert retriever.invoke(QUESTION, None, **options) == expected
        assert await made.ainvoke(QUESTION) == expected
        assert await retriever.ainvoke(QUESTION, None, **options) == expected
        assert expected != retriever.invoke(QUESTION) or "filter" in options
    assert len(retriever.invoke(QUESTION, k=1)) == 1
    several = retriever.invoke(QUESTION, k=10, per_document=3)
    assert [d.metadata["document_id"] for d in several].count("pumps.txt") == 3
    english = retriever.invoke("flour and tide", k=10, filter=Eq("lang", "en"))
    assert {d.metadata["document_id"] for d in english} == {"pumps.txt", "cats.txt"}


async def test_refuses_what_it_does_not_know(retriever):
    with pytest.raises(TypeError, match="kk"):
        retriever.invoke(QUESTION, kk=1)
    with pytest.raises(TypeError, match="kk"):
        await retriever.ainvoke(QUESTION, kk=1)
    with pytest.raises(ValidationError, match=r"kk\n  Extra inputs are not permitted"):
        LMKRetriever(store=retriever.store, kk=1)
    with pytest.raises(UnsupportedFilterError, match="is no filter"):
        retriever.invoke(QUESTION, filter={"lang": "en"})
    for k in (0, -1):
        with pytest.raises(InputError, match=f"k is {k}; expected a whole number of at least 1"):
            retriever.invoke(QUESTION, k=k)
        with pytest.raises(InputError, match=f"k is {k}"):
            await retriever.ainvoke(QUESTION, k=k)


def test_a_blank_query_finds_nothing(retriever):
    assert retriever.invoke(" ") == []


def test_passages_of_pieces_keep_the_pieces_offsets():
    embeddings = filled().embeddings
    pieces = LMKTextSplitter(embeddings, chunk_tokens=16).split_documents(DOCUMENTS[:1])
    vector_store = LMKVectorStore.from_documents(pieces, embeddings)
    (best,) = LMKRetriever(store=vector_store.store, k=1).invoke(QUESTION)
    start = best.metadata["start_index"] + best.metadata["start"]
    end = best.metadata["start_index"] + best.metadata["end"]
    assert PUMPS[start:end] == best.page_content
    assert "80 degrees" in best.page_content


def test_passages_are_fresh(retriever):
    retriever.invoke(QUESTION)[0].metadata["lang"] = "changed"
    assert retriever.invoke(QUESTION)[0].metadata["lang"] == "en"


def test_tracing_names_store_and_model(retriever):
    assert retriever._get_ls_params() == {
        "ls_retriever_name": "lmk",
        "ls_vector_store_provider": "QdrantStore",
        "ls_embedding_provider": "LandmarkEncoder",
        "ls_embedding_model": retriever.store.encoder.name,
    }


def test_callbacks_fire(retriever):
    seen = []

    class Handler(BaseCallbackHandler):
        def on_retriever_start(self, serialized, query, **kwargs):
            seen.append(query)

        def on_retriever_end(self, documents, **kwargs):
            seen.append(len(documents))

    retriever.invoke(QUESTION, {"callbacks": [Handler()]})
    assert seen == [QUESTION, 2]


# Both retrievers in LangChain's machinery


@pytest.fixture(params=["passages", "documents", "mmr", "threshold"])
def any_retriever(request) -> BaseRetriever:
    if request.param == "passages":
        return LMKRetriever(store=filled().store, k=2, passage_tokens=16)
    search_type, search_kwargs = {
        "documents": ("similarity", {"k": 2}),
        "mmr": ("mmr", {"k": 2, "fetch_k": 3, "lambda_mult": 0.9}),
        "threshold": ("similarity_score_threshold", {"k": 4, "score_threshold": 0.6}),
    }[request.param]
    return filled().as_retriever(search_type=search_type, search_kwargs=search_kwargs)


async def test_invoke_batch_and_their_async_twins_agree(any_retriever):
    questions = [QUESTION, "Which animals sleep?", "How is bread made?"]
    single = [any_retriever.invoke(question) for question in questions]
    assert ["80 degrees" in single[0][0].page_content, len(single)] == [True, 3]
    assert any_retriever.batch(questions) == single
    assert await any_retriever.abatch(questions) == single
    assert [await any_retriever.ainvoke(question) for question in questions] == single
    assert list(any_retriever.stream(QUESTION)) == [single[0]]


async def test_works_in_a_chain(any_retriever):
    def join(documents: list[Document]) -> str:
        return "\n".join(document.page_content for document in documents)

    seen = []
    prompt = ChatPromptTemplate.from_template("{context}\n\nQuestion: {question}")
    chain = (
        {"context": any_retriever | join, "question": RunnablePassthrough()}
        | prompt
        | RunnableLambda(lambda value: seen.append(value.to_string()) or value)
        | FakeListChatModel(responses=["at 80 degrees"])
        | StrOutputParser()
    )
    assert chain.invoke(QUESTION) == "at 80 degrees"
    assert await chain.ainvoke(QUESTION) == "at 80 degrees"
    assert await chain.abatch([QUESTION, QUESTION]) == ["at 80 degrees"] * 2
    assert "".join(chain.stream(QUESTION)) == "at 80 degrees"
    assert all("The valve opens at 80 degrees" in text for text in seen)
    assert len(seen) == 5


async def test_works_as_a_tool(any_retriever):
    tool = create_retriever_tool(any_retriever, "search_manual", "Search the manual.")
    assert "The valve opens at 80 degrees" in tool.invoke({"query": QUESTION})
    assert await tool.ainvoke({"query": QUESTION}) == tool.invoke({"query": QUESTION})


async def test_the_event_loop_turns_while_a_chain_indexes_and_asks(waits_for_the_loop):
    vector_store = LMKVectorStore(filled().embeddings)
    encoding = waits_for_the_loop(LandmarkEncoder, "_run")
    writing = waits_for_the_loop(LocalBackend, "upsert")
    searching = waits_for_the_loop(LocalBackend, "search")
    await vector_store.aadd_texts([PUMPS * 10 + str(n) for n in range(10)])
    assert encoding
    assert writing == [True]
    await vector_store.as_retriever().abatch([QUESTION] * 8)
    await LMKRetriever(store=vector_store.store).abatch([QUESTION] * 8)
    assert len(searching) == 16
    assert all(encoding + searching)
