"""`LandmarkEncoder`: batches, blanks, bad input, long texts, settings."""

import pickle
import shutil
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lmk_rag.config import LandmarkConfig
from lmk_rag.encoder import LandmarkEncoder
from lmk_rag.errors import (
    ClosedError,
    ConfigError,
    InputError,
    NonFiniteError,
    TextTooLongError,
)

ARCHITECTURES = [
    "bert",
    "roberta",
    "xlm-roberta",
    "modernbert",
    "eurobert",
    "nomic",
    "gte",
    "rope",
    "decoder",
]
MIXED = [
    "short",
    "a text of medium length with some words",
    "long text with many words " * 60,
    "short",
    "",
    "[SEP] </s> <|endoftext|>",
]


def assert_equal(found, expected, atol=1e-5):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.vector, other.vector, atol=atol, rtol=0)
        np.testing.assert_allclose(one.landmarks, other.landmarks, atol=atol, rtol=0)
        np.testing.assert_allclose(one.norms, other.norms, rtol=1e-4)
        np.testing.assert_array_equal(one.spans, other.spans)
        np.testing.assert_array_equal(one.landmark_tokens, other.landmark_tokens)
        assert one.n_windows == other.n_windows
        assert one.truncated == other.truncated


def assert_well_formed(embedding, dim):
    assert embedding.vector.shape == (dim,)
    assert embedding.landmarks.shape == (embedding.n_landmarks, dim)
    for array in (embedding.vector, embedding.landmarks, embedding.norms):
        assert array.dtype == np.float32
        assert np.isfinite(array).all()
    np.testing.assert_allclose(np.linalg.norm(embedding.vector), 1, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(embedding.landmarks, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("batch_tokens", [1, 100, 10_000])
def test_batch_size_and_order_do_not_change_a_vector(model_folder, load, name, batch_tokens):
    config = LandmarkConfig(granularity=4, max_length=48, overlap=8)
    with load(model_folder(name), config) as encoder:
        alone = [encoder.encode_documents([text])[0] for text in MIXED]
    with load(model_folder(name), config, batch_tokens=batch_tokens) as encoder:
        assert_equal(encoder.encode_documents(MIXED), alone)
        order = [3, 5, 0, 4, 2, 1]
        shuffled = encoder.encode_documents([MIXED[i] for i in order])
        assert_equal([shuffled[order.index(i)] for i in range(6)], alone)
        queries = encoder.encode_queries(MIXED)
    np.testing.assert_allclose(queries, np.stack([e.vector for e in alone]), atol=1e-5)
    for embedding in alone:
        assert_well_formed(embedding, 32)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_batch_size_does_not_change_pooled_token_vectors(st_folder, load, pooling):
    config = LandmarkConfig(granularity=4, max_length=48, overlap=8)
    folder = st_folder("bert", pooling=pooling, dense=[(16, torch.nn.Tanh())])
    with load(folder, config, batch_tokens=10_000) as encoder:
        together = encoder.encode_documents(MIXED)
        assert_equal(together, [encoder.encode_documents([text])[0] for text in MIXED])
    for embedding in together:
        assert_well_formed(embedding, 16)


def test_a_neighbor_that_spells_special_tokens_changes_nothing(model_folder, load):
    texts = ["Write [SEP] and </s>, <|endoftext|>; leave [PAD] and [MASK] alone.", "plain text"]
    with load(model_folder("bert"), LandmarkConfig(granularity=4, boundary="token")) as encoder:
        both = encoder.encode_documents(texts)
        assert_equal(both, [encoder.encode_documents([text])[0] for text in texts])
        assert both[0].n_landmarks == -(-both[0].n_tokens // 4)
        assert both[0].spans[-1, 1] == len(texts[0])


@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_where_pad_is_eos_every_landmark_is_attended_and_pooled(
    model_folder, load, tmp_path, edit_json, padding_side
):
    folder = shutil.copytree(model_folder("decoder"), tmp_path / "decoder")
    edit_json(folder / "tokenizer_config.json", padding_side=padding_side)
    texts = ["one two three four five six seven eight nine ten", "alpha beta"]
    with load(folder, LandmarkConfig(granularity=4, boundary="token")) as encoder:
        together = encoder.encode_documents(texts)
        assert_equal(together, [encoder.encode_documents([text])[0] for text in texts])
        for embedding in together:
            assert embedding.n_landmarks == -(-embedding.n_tokens // 4)
        assert together[0].n_landmarks > 2
    with load(model_folder("decoder"), encoder.config) as other:
        assert_equal(together, other.encode_documents(texts))


def test_a_landmark_is_read_and_not_masked_as_padding(model_folder, load):
    # If the first landmark were masked, the second could not feel what the text is cut into.
    with load(model_folder("decoder"), LandmarkConfig(granularity=4, boundary="token")) as one:
        first = one.encode_documents(["one two three four"])[0]
    with load(model_folder("decoder"), LandmarkConfig(granularity=2, boundary="token")) as two:
        second = two.encode_documents(["one two three four"])[0]
    assert float(first.landmarks[-1] @ second.landmarks[-1]) < 0.9999


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_finite_and_close(model_folder, load, name, dtype):
    texts = ["a", "padding test words " * 100, ""]
    with load(model_folder(name)) as encoder:
        exact = encoder.encode_documents(texts)
    with load(model_folder(name), dtype=dtype) as encoder:
        half = encoder.encode_documents(texts)
    for one, other in zip(half, exact, strict=True):
        assert_well_formed(one, 32)
        assert float(one.vector @ other.vector) >= 0.999
        assert (one.landmarks * other.landmarks).sum(axis=1).min() >= 0.998


@pytest.mark.parametrize("name", ["bert", "decoder"])
def test_eager_attention_gives_the_same_vectors(model_folder, load, name):
    with load(model_folder(name)) as eager, load(model_folder(name)) as sdpa:
        eager._checkpoint.model.set_attn_implementation("eager")
        assert sdpa._checkpoint.model.config._attn_implementation == "sdpa"
        assert_equal(eager.encode_documents(MIXED), sdpa.encode_documents(MIXED))


@pytest.fixture
def poisoned(model_folder, load, tmp_path):
    """A BERT whose embedding of "x" is spoilt."""

    def make(value: float, key: str = "embeddings.word_embeddings.weight"):
        folder = shutil.copytree(model_folder("bert"), tmp_path / "poisoned")
        weights = load_file(folder / "model.safetensors")
        with load(folder) as encoder:
            x = int(encoder._tokenizer.tokenize("x")[0][0])
        weights[key] = weights[key].clone()
        weights[key][x] = value
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return load(folder)

    return make


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_text_that_gives_nan_is_named_by_its_index(poisoned, value):
    encoder = poisoned(value)
    assert len(encoder.encode_documents(["a", "b"])) == 2
    for texts, index in ((["x"], 0), (["a", "b", "a x", "c"], 2), (["a", "b " * 200 + "x"], 1)):
        with pytest.raises(NonFiniteError, match=rf"for text {index} \(torch.float32 on cpu\)"):
            encoder.encode_documents(texts)
        with pytest.raises(NonFiniteError, match=f"for text {index} "):
            encoder.encode_queries(texts)
    with pytest.raises(NonFiniteError, match="for text 1 "):
        list(encoder.iter_documents(iter(["a", "x"])))


def test_a_model_that_only_gives_nan_is_refused_at_once(model_folder, load, tmp_path):
    folder = shutil.copytree(model_folder("bert"), tmp_path / "nan")
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.output.LayerNorm.bias"].fill_(float("nan"))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(NonFiniteError):
        load(folder)


def test_states_without_a_direction_are_refused_not_nan(st_folder, load, tmp_path):
    folder = shutil.copytree(st_folder(dense=[(8, torch.nn.ReLU())]), tmp_path / "dead")
    weights = load_file(folder / "2_Dense" / "model.safetensors")
    save_file(
        {"linear.weight": weights["linear.weight"] * 0, "linear.bias": torch.full((8,), -1.0)},
        folder / "2_Dense" / "model.safetensors",
    )
    with pytest.raises(NonFiniteError, match="or a zero vector for text 0"):
        load(folder)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_blank_texts_have_the_vector_of_cls_and_landmark(model_folder, load, name):
    blanks = ["", "   ", "\n\t\u00a0"]
    with load(model_folder(name)) as encoder:
        embeddings = encoder.encode_documents([*blanks, "real text about pumps"])
        queries = encoder.encode_queries(blanks)
    for text, embedding in zip(blanks, embeddings, strict=False):
        assert_well_formed(embedding, 32)
        assert embedding.spans.tolist() == [[0, len(text)]]
        assert (embedding.n_landmarks, embedding.n_tokens, embedding.n_windows) == (1, 0, 1)
        np.testing.assert_allclose(embedding.vector, embeddings[0].vector, atol=1e-5)
        np.testing.assert_allclose(embedding.landmarks[0], embedding.vector, atol=1e-5)
    np.testing.assert_allclose(queries, np.stack([embeddings[0].vector] * 3), atol=1e-5)
    assert float(embeddings[0].vector @ embeddings[3].vector) < 0.9999


@pytest.mark.parametrize("name", ["bert", "decoder"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_blank_texts_have_a_vector_where_tokens_are_pooled(st_folder, load, name, pooling):
    with load(st_folder(name, pooling=pooling)) as encoder:
        for embedding in encoder.encode_documents(["", " ", "\u200b\n"]):
            assert_well_formed(embedding, 32)
            assert embedding.n_landmarks == 1


def test_nothing_encodes_to_nothing(bert):
    assert bert.encode_documents([]) == []
    assert list(bert.iter_documents([])) == []
    assert bert.encode_queries([]).shape == (0, 32)
    assert bert.encode_queries([]).dtype == np.float32


@pytest.mark.parametrize("bad", [None, 42, 1.5, b"bytes", ["list"]])
def test_an_entry_that_is_no_string_is_named_by_its_index(bert, bad):
    texts = ["ok", "ok", bad, "ok"]
    for call in (
        bert.encode_documents,
        bert.encode_queries,
        lambda t: list(bert.iter_documents(t)),
    ):
        with pytest.raises(InputError, match=r"text 2 is .*; expected a string"):
            call(texts)


@pytest.mark.parametrize("bad", ["one string", None, 42])
def test_texts_that_are_no_list_are_refused(bert, bad):
    for call in (
        bert.encode_documents,
        bert.encode_queries,
        lambda t: next(bert.iter_documents(t)),
    ):
        with pytest.raises(InputError, match=r"texts is .*; expected a list of strings"):
            call(bad)


def test_lone_surrogates_and_nul_bytes_encode(bert, assert_span_rule):
    texts = ["bad \ud800 char", "nul \x00 byte", "\udfff"]
    for text, embedding in zip(texts, bert.encode_documents(texts), strict=True):
        assert_well_formed(embedding, 32)
        assert_span_rule(text, embedding.spans)
    queries = bert.encode_queries(["bad \ud800 char", "bad \ufffd char"])
    np.testing.assert_allclose(queries[0], queries[1], atol=1e-6)


def test_input_is_left_as_it_was(bert):
    texts = ["one", "  two  ", "\ud800"]
    bert.encode_documents(texts)
    assert texts == ["one", "  two  ", "\ud800"]


def test_a_text_of_sixty_thousand_words_is_encoded_whole(model_folder, load, assert_span_rule):
    text = "the pump stops when the valve " * 10_000 + "marzipan"
    config = LandmarkConfig(granularity=32, max_length=256, overlap=32)
    with load(model_folder("modernbert"), config) as encoder:
        (embedding,) = encoder.encode_documents([text])
        assert_span_rule(text, embedding.spans)
        start, end = embedding.spans[-1]
        assert "marzipan" in text[start:end]
        assert embedding.n_tokens == len(encoder._tokenizer.tokenize(text)[0]) >= 60_000
    assert_well_formed(embedding, 32)
    assert embedding.n_windows > 200
    assert not embedding.truncated


def test_too_long_a_text_is_named_by_its_index_where_that_is_an_error(model_folder, load):
    config = LandmarkConfig(max_length=40, on_overflow="error")
    with load(model_folder("bert"), config) as encoder:
        encoder.encode_documents(["short"])
        for call in (encoder.encode_documents, encoder.encode_queries):
            with pytest.raises(TextTooLongError, match=r"^text 1: the text has \d+ tokens"):
                call(["short", "the pump " * 100])


def test_a_truncated_text_says_so_and_says_how_far_it_got(model_folder, load):
    text = "the pump " * 100
    config = LandmarkConfig(max_length=40, on_overflow="truncate", boundary="token")
    with load(model_folder("bert"), config) as encoder:
        with pytest.warns(UserWarning, match="^text 0 did not fit the window of 40 tokens"):
            cut, whole = encoder.encode_documents([text, "the pump"])
        with pytest.warns(UserWarning, match="^text 1 and 1 more did not fit"):
            encoder.encode_query_parts(["short", text, text])
        covered = int(cut.spans[-1, 1])
        same = encoder.encode_documents([text[:covered]])[0]
    assert cut.truncated
    assert not whole.truncated
    assert 0 < covered < len(text)
    assert cut.n_windows == 1
    np.testing.assert_allclose(cut.vector, same.vector, atol=1e-5)


def test_iter_documents_equals_encode_documents(bert):
    assert_equal(list(bert.iter_documents(iter(MIXED))), bert.encode_documents(MIXED))


@pytest.mark.parametrize("text", ["the pump stops " * 20, "", "x"])
def test_iter_documents_takes_texts_as_it_goes(model_folder, load, text):
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            assert taken < 10_000
            yield text

    with load(model_folder("bert"), batch_tokens=64) as encoder:
        embeddings = encoder.iter_documents(endless())
        assert taken == 0
        next(embeddings)
        ahead = taken
        assert 1 <= ahead <= 1_000
        for _ in range(ahead - 1):
            next(embeddings)
        assert taken == ahead
        next(embeddings)
        assert ahead < taken <= 2 * ahead + 1


def test_iter_documents_yields_what_comes_before_a_bad_entry_in_an_earlier_batch(
    model_folder, load
):
    with load(model_folder("bert"), batch_tokens=64) as encoder:
        embeddings = encoder.iter_documents(["the pump stops " * 300] * 3 + [None])
        for _ in range(3):
            next(embeddings)
        with pytest.raises(InputError, match="text 3 is None"):
            next(embeddings)


def test_queries_and_documents_have_prompts_of_their_own(model_folder, load):
    config = LandmarkConfig(query_prompt="query: ", document_prompt="passage: ")
    with load(model_folder("bert"), config) as encoder:
        document = encoder.encode_documents(["the pump"])[0]
        query = encoder.encode_queries(["the pump"])[0]
        assert document.spans.tolist() == [[0, 8]]
        assert document.n_tokens == len(encoder._tokenizer.tokenize("the pump")[0])
    assert float(document.vector @ query) < 0.9999
    with load(model_folder("bert"), LandmarkConfig(query_prompt="passage: ")) as encoder:
        np.testing.assert_allclose(
            encoder.encode_queries(["the pump"])[0], document.vector, atol=1e-5
        )


@pytest.mark.parametrize("side", ["query_prompt", "document_prompt"])
def test_a_prompt_that_does_not_fit_is_refused_on_loading(model_folder, load, side):
    config = LandmarkConfig(**{side: "the pump stops when " * 20})
    with pytest.raises(ConfigError, match="shorten the prompt"):
        load(model_folder("bert"), config)


def test_a_granularity_that_does_not_fit_is_refused_on_loading(model_folder, load):
    with pytest.raises(ConfigError, match="lower the granularity"):
        load(model_folder("bert"), LandmarkConfig(granularity=64))


@pytest.mark.parametrize("batch_tokens", [0, -1, 1.5, "many"])
def test_a_batch_must_hold_a_token(model_folder, load, batch_tokens):
    with pytest.raises(ConfigError, match=r"batch_tokens is .*; expected a whole number"):
        load(model_folder("bert"), batch_tokens=batch_tokens)


def test_an_unknown_device_or_dtype_is_refused(model_folder, load):
    with pytest.raises(ConfigError, match="device 'nonsense' is not usable here"):
        load(model_folder("bert"), device="nonsense")
    with pytest.raises(ConfigError, match="dtype is 'int8'; expected auto, float32, bfloat16"):
        load(model_folder("bert"), dtype="int8")


def test_auto_says_what_it_chose(model_folder, load):
    with load(model_folder("bert"), device="auto", dtype="auto") as encoder:
        assert encoder.dtype in (torch.float32, torch.bfloat16)
        assert f"device={str(encoder.device)!r}" in repr(encoder)
        assert f"dtype={str(encoder.dtype)[6:]!r}" in repr(encoder)
        parameter = next(encoder._checkpoint.model.parameters())
        assert parameter.dtype == encoder.dtype
        assert parameter.device.type == encoder.device.type


def test_repr_shows_every_setting(model_folder, load):
    config = LandmarkConfig(granularity=5, boundary="token", overlap=7, query_prompt="q: ")
    with load(model_folder("bert"), config) as encoder:
        shown = repr(encoder)
    assert shown == (
        f"LandmarkEncoder({str(model_folder('bert'))!r}, pooling='lmk', k=5, boundary='token', "
        "window=64, overlap=7, query_prompt='q: ', document_prompt=None, device='cpu', "
        "dtype='float32')"
    )


def test_a_pickled_encoder_comes_back_equal(model_folder, load):
    config = LandmarkConfig(granularity=4, query_prompt="q: ")
    encoder = load(model_folder("bert"), config, batch_tokens=99)
    data = pickle.dumps(encoder)
    assert len(data) < 2_000  # settings, not weights
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = pickle.loads(data)
    assert isinstance(again, LandmarkEncoder)
    assert repr(again) == repr(encoder)
    assert again.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal(again.encode_queries(MIXED), encoder.encode_queries(MIXED))


def test_a_relative_folder_survives_pickling_into_another_directory(
    model_folder, load, tmp_path, monkeypatch
):
    monkeypatch.chdir(model_folder("bert").parent)
    data = pickle.dumps(load(model_folder("bert").name))
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert pickle.loads(data).dim == 32


def test_a_closed_encoder_refuses_work(model_folder, load, tmp_path):
    encoder = load(model_folder("bert"))
    with encoder as same:
        assert same is encoder
        encoder.encode_queries(["x"])
    encoder.close()  # twice is fine
    for call in (
        lambda: encoder.encode_queries(["x"]),
        lambda: encoder.encode_queries([]),
        lambda: encoder.encode_documents(["x"]),
        lambda: list(encoder.iter_documents(["x"])),
        lambda: encoder.save(tmp_path / "never"),
        encoder.__enter__,
    ):
        with pytest.raises(ClosedError, match="was closed; make a new one"):
            call()
    assert "bert" in repr(encoder)
    assert not (tmp_path / "never").exists()


def test_closing_lets_go_of_the_weights(model_folder, load):
    import gc
    import weakref

    encoder = load(model_folder("bert"))
    model = weakref.ref(encoder._checkpoint.model)
    encoder.close()
    gc.collect()
    assert model() is None


def test_the_layout_is_that_of_the_embedding(bert):
    text = "the pump stops when the valve closes " * 9
    layout, embedding = bert.lay_out(text), bert.encode_documents([text])[0]
    np.testing.assert_array_equal(layout.spans, embedding.spans)
    np.testing.assert_array_equal(layout.landmark_tokens, embedding.landmark_tokens)
    assert len(layout.windows) == embedding.n_windows > 1


def test_laying_out_names_a_bad_text(bert):
    with pytest.raises(InputError, match="text 0 is None"):
        bert.lay_out(None)


def test_a_thousand_short_texts_keep_their_order(bert):
    texts = [f"pump {i}" for i in range(1_000)]
    some = bert.encode_documents(texts)
    alone = bert.encode_queries([texts[0], texts[500], texts[999]])
    np.testing.assert_allclose(np.stack([some[i].vector for i in (0, 500, 999)]), alone, atol=1e-5)
