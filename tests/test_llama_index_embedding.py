"""`LMKEmbedding`: beyond the conformance suite, what is ours about it."""

import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from llama_index.core import Settings
from llama_index.core.ingestion.pipeline import get_transformation_hash
from llama_index.core.schema import TextNode
from llama_index.core.storage.kvstore import SimpleKVStore

from llama_index.embeddings.lmk import LMKEmbedding
from llama_index.embeddings.lmk import encoders as encoders_module
from lmk_rag import LandmarkConfig, LandmarkEncoder
from lmk_rag.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore:.*was not trained with landmarks")

CONFIG = LandmarkConfig(granularity=8, overlap=16, query_prompt="query: ")
TEXTS = ["The pump stops.", "The valve closes " * 40, "", "beta"]


@pytest.fixture(scope="module")
def folder(model_folder) -> Path:
    return model_folder("bert")


@pytest.fixture(scope="module")
def embedding(folder) -> LMKEmbedding:
    return LMKEmbedding(model_name=folder, config=CONFIG, device="cpu", dtype="float32")


@pytest.fixture
def loads(monkeypatch) -> list[LandmarkEncoder]:
    """The encoders loaded during a test."""
    loaded = []

    class Counted(LandmarkEncoder):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            loaded.append(self)

    monkeypatch.setattr(encoders_module, "LandmarkEncoder", Counted)
    return loaded


def test_vectors_equal_the_cores_bit_for_bit(embedding, folder):
    with LandmarkEncoder(folder, config=CONFIG, device="cpu", dtype="float32") as core:
        wanted = np.stack([found.vector for found in core.encode_documents(TEXTS)])
        queries = core.encode_queries(["pump"])
    assert np.array_equal(np.float32(embedding.get_text_embedding_batch(TEXTS)), wanted)
    assert np.array_equal(np.float32([embedding.get_query_embedding("pump")]), queries)


def test_the_default_model_knows_what_is_alike():
    embedding = LMKEmbedding()
    query = embedding.get_query_embedding("when does the valve open?")
    near, far = embedding.get_text_embedding_batch(
        ["The valve opens at 72 degrees.", "The office is closed on Sunday."]
    )
    assert embedding.similarity(query, near) > embedding.similarity(query, far) + 0.2


def test_a_typo_is_refused():
    with pytest.raises(ValueError, match="devise"):
        LMKEmbedding(devise="cpu")
    with pytest.raises(ValueError, match="unknown keys"):
        LMKEmbedding(config={"granularty": 8})
    with pytest.raises(ValueError, match="granularity is 0"):
        LMKEmbedding(config={"granularity": 0})


def test_every_setting_is_in_the_dict_and_so_in_the_ingestion_cache_key(embedding):
    nodes = [TextNode(text="x")]
    keys = {get_transformation_hash(nodes, embedding)}
    for change in (
        {"config": LandmarkConfig(granularity=9)},
        {"dtype": "bfloat16"},
        {"device": "meta"},
        {"model_name": "default"},
        {"batch_tokens": 7},
        {"trust_remote_code": True},
    ):
        keys.add(get_transformation_hash(nodes, embedding.model_copy(update=change)))
    assert len(keys) == 7
    assert embedding.to_dict()["config"]["granularity"] == 8


def test_pickles_hold_settings_and_no_model(embedding, loads):
    embedding.get_query_embedding("x")
    data = pickle.dumps(embedding)
    assert len(data) < 4_000
    twin = pickle.loads(data)
    assert loads == []
    assert twin.config == CONFIG
    assert twin.encoder is embedding.encoder
    assert loads == []


def test_instances_of_equal_settings_share_an_encoder(folder, loads):
    def make(**options):
        return LMKEmbedding(model_name=str(folder), device="cpu", dtype="float32", **options)

    first = make(batch_tokens=1_000)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(make(batch_tokens=1_000).encoder))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {id(encoder) for encoder in found} == {id(first.encoder)}
    assert len(loads) == 1
    assert make(batch_tokens=2_000).encoder is not first.encoder
    assert len(loads) == 2


def test_the_last_encoder_outlives_its_component(folder, loads):
    """Ingestion workers unpickle a component for each batch and drop it again."""
    options = {"model_name": str(folder), "device": "cpu", "dtype": "float32", "batch_tokens": 999}
    for _ in range(3):
        LMKEmbedding(**options).get_query_embedding("x")
    assert len(loads) == 1


def test_a_changed_setting_or_folder_is_noticed(folder, tmp_path, loads):
    (tmp_path / "model").mkdir()
    for path in folder.iterdir():
        (tmp_path / "model" / path.name).write_bytes(path.read_bytes())

    def make():
        return LMKEmbedding(model_name=tmp_path / "model", device="cpu", dtype="float32")

    embedding = make()
    before = embedding.encoder
    embedding.config = CONFIG
    assert embedding.encoder.config.granularity == 8
    embedding.config = None
    assert embedding.encoder is before
    (tmp_path / "model" / "config.json").touch()
    assert make().encoder is not before
    assert embedding.encoder is not None


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_cache_never_mixes_roles_and_models(embedding, folder, is_async):
    cache = SimpleKVStore()
    cached = embedding.model_copy(update={"embeddings_cache": cache})
    other = LMKEmbedding(model_name=folder, device="cpu", dtype="float32", embeddings_cache=cache)
    for model in (cached, other):
        plain = model.model_copy(update={"embeddings_cache": None})
        for _ in range(2):  # a miss, then a hit
            if is_async:
                text = await model.aget_text_embedding("pump")
                query = await model.aget_query_embedding("pump")
                batch = await model.aget_text_embedding_batch(["pump", "valve"])
            else:
                text = model.get_text_embedding("pump")
                query = model.get_query_embedding("pump")
                batch = model.get_text_embedding_batch(["pump", "valve"])
            assert text == batch[0] == plain.get_text_embedding("pump")
            assert query == plain.get_query_embedding("pump")
    keys = cache.get_all(collection="embeddings")
    fingerprints = [cached.encoder.fingerprint, other.encoder.fingerprint]
    assert sorted(keys) == sorted(
        key
        for f in fingerprints
        for key in (f"text:{f}:pump", f"text:{f}:valve", f"query:{f}:pump")
    )


def test_the_cache_is_used(embedding, monkeypatch):
    cached = embedding.model_copy(update={"embeddings_cache": SimpleKVStore()})
    first = cached.get_text_embedding_batch(TEXTS)
    monkeypatch.setattr(LMKEmbedding, "_get_text_embeddings", None)
    assert cached.get_text_embedding_batch(TEXTS) == first


def test_a_store_of_another_kind_is_no_cache():
    with pytest.raises(TypeError, match="BaseKVStore"):
        LMKEmbedding(embeddings_cache={})


def test_it_serves_as_the_default_model_of_llama_index(embedding):
    before = Settings._embed_model
    try:
        Settings.embed_model = embedding
        assert Settings.embed_model is embedding
    finally:
        Settings._embed_model = before


@pytest.mark.parametrize("device", ["cuda:99", "nonsense"])
def test_a_wrong_device_shows_on_first_use(folder, device):
    embedding = LMKEmbedding(model_name=folder, device=device)
    with pytest.raises(ConfigError, match=device):
        embedding.get_query_embedding("x")


@pytest.mark.parametrize(
    "module",
    [
        "llama_index.embeddings.lmk",
        "llama_index.node_parser.lmk",
        "llama_index.vector_stores.lmk",
        "llama_index.retrievers.lmk",
    ],
)
def test_without_llama_index_the_extra_is_named(module):
    code = f"import sys; sys.modules['llama_index.core'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'lmk-rag[llama-index]'" in done.stderr.splitlines()[-1]


def test_the_namespace_stays_open():
    root = Path(__file__).parents[1] / "integrations" / "llama_index"
    packages = sorted(path.parent for path in root.rglob("__init__.py"))
    assert [path.name for path in packages] == ["lmk"] * 4
    assert sorted(path.parent for path in root.rglob("py.typed")) == packages
