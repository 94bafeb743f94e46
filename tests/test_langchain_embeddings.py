"""`LMKEmbeddings` and what importing the package needs."""

import asyncio
import json
import pickle
import subprocess
import sys
import threading
import warnings

import pytest
from langchain_core.embeddings import Embeddings
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests
from pydantic import ValidationError

import langchain_lmk
from langchain_lmk import LMKEmbeddings
from lmk_rag import LandmarkConfig, LandmarkEncoder

TEXTS = ["The pump stops.", "", " \n", "one two three four five " * 60, "Größe\n\ncafé 🚀"]


class TestUnitSuite(EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return LMKEmbeddings

    @property
    def embedding_model_params(self) -> dict:
        return {"config": {"granularity": 16}, "device": "cpu"}


class TestIntegrationSuite(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return LMKEmbeddings


@pytest.fixture(scope="module")
def embeddings(model_folder) -> LMKEmbeddings:
    """Windows of 64 tokens of a random BERT."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*was not trained with landmarks")
        return LMKEmbeddings(
            model=model_folder("bert"),
            config=LandmarkConfig(granularity=8, overlap=16),
            device="cpu",
            dtype="float32",
        )


def test_exports_four_names():
    assert langchain_lmk.__all__ == [
        "LMKEmbeddings",
        "LMKRetriever",
        "LMKTextSplitter",
        "LMKVectorStore",
    ]
    assert all(hasattr(langchain_lmk, name) for name in langchain_lmk.__all__)


def test_names_the_extra_where_langchain_is_missing():
    code = "import sys; sys.modules['langchain_core'] = None; import langchain_lmk"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "lmk_rag.errors.MissingExtraError: langchain_lmk needs `langchain_core`; install it with: "
        "pip install 'lmk-rag[langchain]'"
    )


def test_vectors_are_the_encoders_bit_for_bit(embeddings):
    core = embeddings.encoder.encode_documents(TEXTS)
    assert embeddings.embed_documents(TEXTS) == [e.vector.tolist() for e in core]
    assert embeddings.embed_documents([]) == []
    for text in TEXTS:
        assert embeddings.embed_query(text) == embeddings.encoder.encode_queries([text])[0].tolist()


def test_vectors_are_lists_of_python_floats(embeddings):
    for vector in (*embeddings.embed_documents(TEXTS), embeddings.embed_query("")):
        assert type(vector) is list
        assert len(vector) == 32
        assert {type(number) for number in vector} == {float}
        assert sum(number * number for number in vector) == pytest.approx(1)
        assert json.loads(json.dumps(vector)) == vector


def test_queries_and_documents_have_their_own_prompts(model_folder):
    folder = model_folder("bert")
    config = {"query_prompt": "one two ", "document_prompt": "three "}
    with pytest.warns(UserWarning, match="not trained with landmarks"):
        embeddings = LMKEmbeddings(model=folder, config=config)
    with pytest.warns(UserWarning, match="not trained with landmarks"):
        plain = LMKEmbeddings(model=folder)
    (document,), query = embeddings.embed_documents(["alpha"]), embeddings.embed_query("alpha")
    assert document != query
    assert plain.embed_documents(["alpha"]) == [plain.embed_query("alpha")]
    assert embeddings.encoder.config.document_prompt == "three "


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "x", "modle": 1}, "modle\n  Extra inputs are not permitted"),
        ({"config": {"granularity": 0}}, "granularity is 0; expected a whole number"),
        ({"config": {"granularty": 8}}, r"unknown keys \['granularty'\]"),
    ],
)
def test_refuses_unknown_and_impossible_options(options, message):
    with pytest.raises(ValidationError, match=message):
        LMKEmbeddings(**options)


def test_settings_are_fixed(embeddings):
    with pytest.raises(ValidationError, match="frozen"):
        embeddings.device = "cuda"


@pytest.mark.filterwarnings("ignore:.*was not trained with landmarks")
def test_pickling_and_dumping_keep_every_setting(embeddings):
    copied = pickle.loads(pickle.dumps(embeddings))
    assert copied == embeddings
    assert copied.config == LandmarkConfig(granularity=8, overlap=16)
    assert copied.embed_documents(TEXTS) == embeddings.embed_documents(TEXTS)
    again = LMKEmbeddings.model_validate_json(embeddings.model_dump_json())
    assert again.encoder.fingerprint == embeddings.encoder.fingerprint
    assert repr(again.config) == repr(embeddings.config)


async def test_async_equals_sync(embeddings):
    assert await embeddings.aembed_documents(TEXTS) == embeddings.embed_documents(TEXTS)
    assert await embeddings.aembed_query("pump") == embeddings.embed_query("pump")
    assert await embeddings.aembed_documents([]) == []


async def test_the_event_loop_turns_while_texts_are_embedded(embeddings, waits_for_the_loop):
    turns = waits_for_the_loop(LandmarkEncoder, "_run")
    assert len(await embeddings.aembed_documents(TEXTS)) == len(TEXTS)
    assert turns == [True]
    await embeddings.aembed_query("pump")
    assert turns == [True, True]


async def test_works_after_a_cancelled_call(embeddings):
    task = asyncio.create_task(embeddings.aembed_documents(["some words " * 500] * 20))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await embeddings.aembed_query("pump") == embeddings.embed_query("pump")


def test_sixteen_threads_get_the_single_threads_vectors(embeddings):
    texts = ["hi", *("w " * n for n in (1, 30, 300))]
    expected = [embeddings.embed_query(text) for text in texts]
    wrong = []

    def work(first: int) -> None:
        for i in range(8):
            text = texts[(first + i) % 4]
            if embeddings.embed_query(text) != expected[(first + i) % 4]:
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
