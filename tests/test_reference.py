"""Vectors against two independent sources: the paper's formula and sentence-transformers."""

import functools

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from lmk_rag.config import LandmarkConfig

TEXTS = [
    "the pump stops when the valve closes and nobody restarts it",
    "Größe, café: two  spaces\nand a line",
    "x",
]


@functools.cache
def hugging_face(folder):
    return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()


def paper(folder, text: str, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Landmark pooling as in arXiv 2601.21525, written as plainly as it goes.

    Returns:
        the document vector (D,) and the landmark states (L, D), neither normalized by us.
    """
    tokenizer, model = hugging_face(folder)
    cls = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    lmk = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    tokens = tokenizer(text, add_special_tokens=False).input_ids
    sequence, landmarks = [cls], []
    for at in range(0, len(tokens), k):
        sequence += tokens[at : at + k]
        landmarks.append(len(sequence))
        sequence.append(lmk)
    ids = torch.tensor([sequence])
    with torch.no_grad():
        states = model(input_ids=ids, attention_mask=torch.ones_like(ids))
    rows = states.last_hidden_state[0, landmarks]
    return torch.nn.functional.normalize(rows.mean(dim=0), dim=0), rows


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "rope", "decoder"])
@pytest.mark.parametrize("k", [1, 3, 16])
def test_document_and_landmarks_are_those_of_the_paper(model_folder, load, name, k):
    folder = model_folder(name)
    config = LandmarkConfig(granularity=k, boundary="token")
    with load(folder, config) as encoder:
        embeddings = encoder.encode_documents(TEXTS)
    for text, embedding in zip(TEXTS, embeddings, strict=True):
        document, rows = paper(folder, text, k)
        assert embedding.landmarks.shape == tuple(rows.shape)
        np.testing.assert_allclose(embedding.vector, document, atol=1e-5)
        np.testing.assert_allclose(embedding.norms, rows.norm(dim=1), rtol=1e-5)
        np.testing.assert_allclose(
            embedding.landmarks * embedding.norms[:, None], rows, atol=2e-5, rtol=1e-4
        )


def test_the_reference_would_notice_a_landmark_one_token_off(model_folder):
    document, rows = paper(model_folder("bert"), TEXTS[0], 3)
    other, _ = paper(model_folder("bert"), TEXTS[0], 4)
    assert float(document @ other) < 0.999
    assert float(torch.nn.functional.normalize(rows, dim=1)[0] @ document) < 0.999


def sentence_transformer(folder):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def assert_equal_to_sentence_transformers(folder, encoder, texts=TEXTS):
    model = sentence_transformer(folder)
    documents = np.stack([e.vector for e in encoder.encode_documents(texts)])
    np.testing.assert_allclose(documents, unit(model.encode_document(texts)), atol=1e-5)
    np.testing.assert_allclose(
        encoder.encode_queries(texts), unit(model.encode_query(texts)), atol=1e-5
    )


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "rope", "decoder"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_mean_and_cls_are_those_of_sentence_transformers(st_folder, load, name, pooling):
    folder = st_folder(name, pooling=pooling)
    with load(folder) as encoder:
        assert encoder.pooling == pooling
        assert_equal_to_sentence_transformers(folder, encoder)


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "rope", "decoder"])
def test_prompts_are_those_of_sentence_transformers(st_folder, load, name):
    folder = st_folder(name, prompts={"query": "query: ", "passage": "the passage: "})
    model = sentence_transformer(folder)
    with load(folder) as encoder:
        documents = np.stack([e.vector for e in encoder.encode_documents(TEXTS)])
        queries = encoder.encode_queries(TEXTS)
    expected = model.encode(TEXTS, prompt_name="passage")
    np.testing.assert_allclose(documents, unit(expected), atol=1e-5)
    np.testing.assert_allclose(queries, unit(model.encode_query(TEXTS)), atol=1e-5)
    assert (documents * queries).sum(axis=1).max() < 0.999


def test_the_default_prompt_of_sentence_transformers_serves_both_sides(st_folder, load):
    folder = st_folder(prompts={"any": "text: "}, default_prompt_name="any")
    with load(folder) as encoder:
        assert encoder.config.query_prompt == encoder.config.document_prompt == "text: "
        queries = encoder.encode_queries(TEXTS)
    model = sentence_transformer(folder)
    np.testing.assert_allclose(queries, unit(model.encode(TEXTS)), atol=1e-5)


@pytest.mark.parametrize(
    "dense",
    [
        [(16, torch.nn.Tanh())],
        [(16, torch.nn.Identity())],
        [(48, torch.nn.GELU()), (8, torch.nn.Identity())],
    ],
    ids=["tanh", "identity", "two"],
)
def test_dense_layers_are_those_of_sentence_transformers(st_folder, load, dense):
    folder = st_folder(dense=dense, normalize=True)
    with load(folder) as encoder:
        assert encoder.dim == dense[-1][0]
        embedding = encoder.encode_documents([TEXTS[0]])[0]
        assert embedding.landmarks.shape[1] == dense[-1][0]
        assert_equal_to_sentence_transformers(folder, encoder)


def test_lower_casing_is_that_of_sentence_transformers(st_folder, load, edit_json):
    folder = st_folder("modernbert")
    edit_json(folder / "sentence_bert_config.json", do_lower_case=True)
    with load(folder) as encoder:
        assert_equal_to_sentence_transformers(folder, encoder, ["The PUMP", "ÄÖ"])
        upper, lower = encoder.encode_queries(["THE PUMP", "the pump"])
    np.testing.assert_allclose(upper, lower, atol=1e-6)


def test_landmarks_of_mean_pooling_are_the_means_of_their_tokens(st_folder, load):
    folder = st_folder("bert")
    with load(folder, LandmarkConfig(granularity=3, boundary="token")) as encoder:
        embedding = encoder.encode_documents([TEXTS[0]])[0]
    tokens = sentence_transformer(folder).encode(TEXTS[0], output_value="token_embeddings")
    content = tokens[1:-1].numpy()
    assert len(content) == embedding.n_tokens
    expected = [content[at : at + 3].mean(axis=0) for at in range(0, len(content), 3)]
    np.testing.assert_allclose(embedding.landmarks, unit(np.stack(expected)), atol=1e-5)


def test_mean_pooling_over_windows_is_the_mean_over_all_their_tokens_once(st_folder, load):
    folder = st_folder("bert")
    text = "the pump stops when the valve closes " * 12
    config = LandmarkConfig(granularity=4, boundary="token", max_length=34, overlap=0)
    with load(folder, config) as encoder:
        layout, embedding = encoder.lay_out(text), encoder.encode_documents([text])[0]
    _, model = hugging_face(folder)
    with torch.no_grad():
        states = [
            model(input_ids=torch.from_numpy(window.ids)[None]).last_hidden_state[0]
            for window in layout.windows
        ]
    assert len(states) > 2
    np.testing.assert_allclose(
        embedding.vector, unit(torch.cat(states).mean(dim=0).numpy()), atol=1e-5
    )


def test_landmarks_of_later_windows_come_from_the_window_that_owns_them(model_folder, load):
    text = "the pump stops when the valve closes " * 12
    config = LandmarkConfig(granularity=4, boundary="token", max_length=34, overlap=8)
    with load(model_folder("bert"), config) as encoder:
        layout, embedding = encoder.lay_out(text), encoder.encode_documents([text])[0]
    _, model = hugging_face(model_folder("bert"))
    rows = []
    for window in layout.windows:
        with torch.no_grad():
            states = model(input_ids=torch.from_numpy(window.ids)[None]).last_hidden_state[0]
        rows.append(states[window.stretches[window.n_context :, 1]])
    expected = torch.cat(rows).numpy()
    np.testing.assert_allclose(embedding.landmarks, unit(expected), atol=1e-5)
    np.testing.assert_allclose(embedding.vector, unit(expected.mean(axis=0)), atol=1e-5)
    assert embedding.n_windows == len(layout.windows) > 2
