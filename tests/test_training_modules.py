"""The sentence-transformers modules: equal vectors, and its own losses and samplers on them."""

import numpy as np
import pytest
import torch

pytest.importorskip("datasets", reason="the extra `train` is not installed")

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from lmk_rag.checkpoint import load_checkpoint, with_config
from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import CheckpointError, ConfigError
from lmk_rag.training import LandmarkPooling, LandmarkTransformer, Recipe, Source, train
from lmk_rag.training.loss import Weights
from lmk_rag.training.start import build_model

TEXTS = [
    "pump",
    "The pump of station V-7 stops when the valve closes, and nobody restarts the pump now.",
    "Long text with many words, padding test words. " * 12,  # several windows of 64
    "",
]
CONFIG = LandmarkConfig(granularity=8, overlap=8, boundary="word")


@pytest.fixture
def build(model_folder):
    def make(pooling="lmk", name="bert", config=CONFIG):
        checkpoint = load_checkpoint(model_folder(name), dtype=torch.float32)
        transformer = LandmarkTransformer(with_config(checkpoint, config), pooling=pooling)
        width = transformer.get_embedding_dimension()
        pool = LandmarkPooling(width, latents=4 if pooling == "latent" else 0)
        return SentenceTransformer(modules=[transformer, pool], device="cpu").eval()

    return make


@pytest.mark.parametrize("pooling", ["lmk", "cls", "mean"])
@pytest.mark.parametrize("name", ["bert", "rope"])
def test_a_saved_folder_gives_equal_vectors_in_both_libraries(build, load, tmp_path, pooling, name):
    model = build(pooling, name)
    model.save_pretrained(str(tmp_path), create_model_card=False)
    texts = TEXTS[:3] if pooling == "mean" else TEXTS
    theirs = model.encode(texts, normalize_embeddings=True, batch_size=2)
    again = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    with load(tmp_path) as encoder:
        assert encoder.pooling == pooling
        assert encoder.config.granularity == 8
        assert encoder.config.boundary == "word"
        found = encoder.encode_documents(texts)
    assert found[2].n_windows > 1 or name == "rope"
    ours = np.stack([embedding.vector for embedding in found])
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
    np.testing.assert_allclose(again.encode(texts, normalize_embeddings=True), ours, atol=1e-5)


def test_prompts_are_the_same_in_both_libraries(model_folder, load, tmp_path):
    recipe = Recipe(
        sources=(Source("toy", pairs="pairs.jsonl"),),
        model=str(model_folder("bert")),
        config=LandmarkConfig(
            granularity=4, max_length=48, query_prompt="query one", document_prompt="text two"
        ),
        granularities=(4,),
        query_granularities=(4,),
    )
    model = build_model(recipe, device="cpu").eval()
    model.save_pretrained(str(tmp_path), create_model_card=False)
    again = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    with load(tmp_path) as encoder:
        queries = encoder.encode_queries(["pump"])
        documents = np.stack([e.vector for e in encoder.encode_documents(["pump"])])
    assert not np.allclose(queries, documents, atol=1e-3)
    for name, ours in (("query", queries), ("document", documents)):
        encode = getattr(again, f"encode_{name}")
        np.testing.assert_allclose(encode(["pump"], normalize_embeddings=True), ours, atol=1e-5)


def test_sentence_transformers_refuses_the_folder_unless_its_code_is_trusted(build, tmp_path):
    build().save_pretrained(str(tmp_path), create_model_card=False)
    with pytest.raises(ValueError, match="trust_remote_code"):
        SentenceTransformer(str(tmp_path), device="cpu")


@pytest.mark.parametrize("pooling", ["every-k", "multicls", "latent"])
def test_poolings_of_the_comparison_are_kept_but_not_served(build, tmp_path, pooling):
    model = build(pooling)
    model.save_pretrained(str(tmp_path), create_model_card=False)
    again = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(model.encode(TEXTS), again.encode(TEXTS), atol=1e-5)
    with pytest.raises(CheckpointError, match=pooling):
        load_checkpoint(tmp_path, dtype=torch.float32)


def test_what_is_inserted_and_pooled(build):
    text = "one two three four five six seven eight nine ten"
    positions, ids = {}, {}
    for pooling in ("lmk", "cls", "mean", "every-k", "multicls"):
        transformer = build(pooling, config=LandmarkConfig(granularity=4, boundary="token"))[0]
        features = transformer.preprocess([text])
        positions[pooling] = torch.nonzero(features["pooled"][0]).flatten().tolist()
        ids[pooling] = features["input_ids"][0].tolist()
        first, last = transformer.tokenizer.cls_token_id, transformer.tokenizer.sep_token_id
    n = len(ids["mean"]) - 2  # content tokens
    stretches = -(-n // 4)
    landmarks = [min(5 * (i + 1), n + i + 1) for i in range(stretches)]
    assert positions["lmk"] == landmarks
    assert [ids["lmk"][p] for p in landmarks] == [last] * stretches
    assert positions["cls"] == [0]
    assert positions["mean"] == list(range(n + 2))
    assert positions["every-k"] == [min(4 * (i + 1), n) for i in range(stretches)]
    assert positions["multicls"] == [0, *landmarks[:-1]]
    assert [ids["multicls"][p] for p in positions["multicls"]] == [first] * stretches
    assert ids["multicls"][-1] == last


def test_an_unknown_pooling_is_refused(model_folder):
    checkpoint = load_checkpoint(model_folder("bert"), dtype=torch.float32)
    with pytest.raises(ConfigError, match="'max'; expected one of lmk, cls"):
        LandmarkTransformer(checkpoint, pooling="max")


def test_latent_attention_reads_every_token(build):
    model = build("latent")
    with torch.no_grad():
        features = model(model.preprocess([TEXTS[1]]))
    assert features["sentence_embedding"].shape == (1, 32)
    assert torch.isfinite(features["sentence_embedding"]).all()


@pytest.mark.parametrize(
    "loss",
    [
        losses.MultipleNegativesRankingLoss,
        lambda model: losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=2),
        losses.CoSENTLoss,
    ],
    ids=["mnrl", "cached", "cosent"],
)
def test_their_losses_and_samplers_train_it(build, tmp_path, loss):
    model = build()
    pairs = {"anchor": TEXTS[:3] * 2, "positive": [text + " end" for text in TEXTS[:3] * 2]}
    if loss is losses.CoSENTLoss:
        pairs["score"] = [0.1, 0.9, 0.5] * 2
    before = model[0].auto_model.encoder.layer[0].output.dense.weight.clone()
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=str(tmp_path),
            max_steps=2,
            per_device_train_batch_size=3,
            batch_sampler="no_duplicates",
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            dataloader_pin_memory=False,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict(pairs),
        loss=loss(model),
    )
    assert np.isfinite(trainer.train().training_loss)
    assert not torch.equal(before, model[0].auto_model.encoder.layer[0].output.dense.weight)


def test_their_evaluators_read_it(build):
    evaluator = InformationRetrievalEvaluator(
        {"q": "pump"}, {"a": "pump", "b": "alpha beta gamma"}, {"q": {"a"}}, show_progress_bar=False
    )
    assert evaluator(build())["cosine_ndcg@10"] == 1.0


def test_a_recipe_of_every_pooling_runs(model_folder, st_folder, tmp_path):
    (tmp_path / "pairs.jsonl").write_text(
        "".join(
            f'{{"query": "word {i}", "positive": "{i} one two three four {i}"}}\n' for i in range(8)
        )
    )
    for pooling in ("lmk", "cls", "mean", "every-k", "multicls", "latent"):
        recipe = Recipe(
            sources=(Source("toy", pairs="pairs.jsonl"),),
            model=str(model_folder("bert")),
            teacher=str(st_folder("bert", pooling="mean")),
            pooling=pooling,
            config=LandmarkConfig(granularity=4, max_length=48, overlap=4),
            granularities=(4, 8),
            query_granularities=(4,),
            weights=Weights(part_contrast=0.1, part_scores=0.1),
            steps=2,
            batch_tokens=60,
        )
        result = train(recipe, tmp_path, tmp_path / pooling, device="cpu")
        assert result.finished


@pytest.mark.parametrize("pooling", ["lmk", "mean"])
def test_the_rows_that_are_trained_are_those_of_the_encoder(build, load, tmp_path, pooling):
    from lmk_rag.training import LandmarkLoss
    from lmk_rag.training.collate import LandmarkCollator
    from lmk_rag.training.examples import Example

    model = build(pooling)
    texts = TEXTS[:3]
    examples = [Example(text, (), ((0, len(text)),), "toy") for text in texts]
    collator = LandmarkCollator(
        examples, model[0], None, {}, granularities=(8,), query_granularities=(8,),
        boundaries=("word",),
    )  # fmt: skip
    batch = collator([{"index": i} for i in range(3)])
    features = {key.removeprefix("document_"): value for key, value in batch.items()}
    with torch.no_grad():
        _, rows = LandmarkLoss(model)._documents(features)
    model.save_pretrained(str(tmp_path), create_model_card=False)
    with load(tmp_path) as encoder:
        found = encoder.encode_documents(texts)
    expected = np.concatenate([e.landmarks * e.norms[:, None] for e in found])
    np.testing.assert_allclose(rows.numpy(), expected, atol=1e-5)
