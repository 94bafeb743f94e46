"""Whitening: the map, what it is learned from, and the layer it becomes in a model folder."""

import json

import numpy as np
import pytest

pytest.importorskip("datasets", reason="the extra `train` is not installed")

from dataclasses import replace

from sentence_transformers import SentenceTransformer

from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import CheckpointError, ConfigError, TrainingDataError
from lmk_rag.training import Recipe, Source, Whitening, train
from lmk_rag.training.examples import Example
from lmk_rag.training.start import build_model
from lmk_rag.training.whitening import sample, whitening_matrix

TEXTS = ["pump", "The pump of station V-7 stops when the valve closes.", "Long text, words. " * 20]


def test_the_largest_directions_are_drawn_in():
    rows = np.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # mean squares 4.5 and 0.5
    found = whitening_matrix(rows, power=0.5, shrinkage=0.2)
    assert found.dtype == np.float32
    # Their mean is 2.5: 4.5 / 2.5 + 0.2 = 2, 0.5 / 2.5 + 0.2 = 0.4.
    assert found == pytest.approx(np.diag([2**-0.5, 0.4**-0.5]), abs=1e-6)
    rows[:, 1] = 1  # what all share is a direction as well: mean squares 4.5 and 1
    found = whitening_matrix(rows, power=0.25, shrinkage=1.0)
    assert found == pytest.approx(np.diag([(7.25 / 2.75) ** -0.25, (3.75 / 2.75) ** -0.25]))


def test_all_of_it_leaves_no_direction_before_others():
    rows = np.random.default_rng(0).normal(size=(500, 4)) @ np.diag([5.0, 2.0, 1.0, 0.3])
    rows = rows @ np.linalg.qr(np.random.default_rng(1).normal(size=(4, 4)))[0]
    even = rows @ whitening_matrix(rows, power=0.5, shrinkage=1e-9)
    moment = even.T @ even
    assert moment / moment[0, 0] == pytest.approx(np.eye(4), abs=1e-3)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_too_few_rows_are_refused(n):
    with pytest.raises(TrainingDataError, match=f"{n} landmarks for 3 directions"):
        whitening_matrix(np.ones((n, 3)), power=0.25, shrinkage=1.0)


def test_a_sample_is_even_over_sources():
    names = [("a", f"a{i}") for i in range(9)] + [("b", f"b{i}") for i in range(2)]
    examples = [Example(text, (), ((0, 2),), source) for source, text in names]
    chosen = sample(examples, 6, seed=1)
    assert [example.source for example in chosen] == ["a"] * 4 + ["b"] * 2
    assert len({example.text for example in chosen}) == 6
    assert sample(examples, 6, seed=1) == chosen
    assert sample(examples, 6, seed=2) != chosen
    assert sample(examples, 50, seed=1) == examples


@pytest.mark.parametrize(
    "wrong", [{"power": 0}, {"shrinkage": -1.0}, {"documents": 1}, {"granularity": 0}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Whitening(**wrong)


@pytest.fixture
def recipe(st_folder, tmp_path):
    sentence = "The pump stops when the valve closes. "
    lines = [{"query": "pump", "positive": sentence * i} for i in range(1, 9)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "pairs.jsonl").write_text(text)
    folder = str(st_folder("bert", pooling="mean"))
    return Recipe(
        sources=(Source("pairs", pairs="pairs.jsonl"),),
        model=folder,
        teacher=folder,
        pooling="mean",
        config=LandmarkConfig(granularity=4),
        granularities=(4,),
        query_granularities=(4,),
        boundaries=("word",),
        steps=2,
        whitening=Whitening(power=0.5, shrinkage=0.5, documents=6),
    )


def test_the_layer_is_part_of_the_model_in_both_libraries(recipe, load, tmp_path):
    plain = train(replace(recipe, whitening=None), tmp_path, tmp_path / "plain", device="cpu")
    even = train(recipe, tmp_path, tmp_path / "even", device="cpu")
    theirs = SentenceTransformer(str(even.folder), device="cpu", trust_remote_code=True)
    expected = theirs.encode(TEXTS, normalize_embeddings=True)
    with load(plain.folder) as before, load(even.folder) as after:
        rows = before.encode_documents(TEXTS)
        found = after.encode_documents(TEXTS)
        layer = theirs[2].linear.weight.detach().numpy()
        assert layer == pytest.approx(layer.T, abs=1e-6)
        assert abs(layer - np.eye(len(layer))).max() > 0.01
        assert np.stack([e.vector for e in found]) == pytest.approx(expected, abs=1e-4)
        for one, other in zip(rows, found, strict=True):  # landmarks and document alike
            mapped = one.landmarks * one.norms[:, None] @ layer
            assert other.landmarks * other.norms[:, None] == pytest.approx(mapped, abs=1e-4)
        assert before.encode_queries(TEXTS[:1]) != pytest.approx(after.encode_queries(TEXTS[:1]))
        after.save(tmp_path / "own")  # in our own format alone
    with load(tmp_path / "own") as again:
        assert again.encode_queries(TEXTS) == pytest.approx(expected, abs=1e-4)
    theirs.save_pretrained(str(tmp_path / "theirs"))  # as after training by their trainer
    assert not (tmp_path / "theirs" / "dense.safetensors").exists()
    with load(tmp_path / "theirs") as again:
        assert again.encode_queries(TEXTS) == pytest.approx(expected, abs=1e-4)


def test_a_layer_can_be_learned_from_landmarks_of_another_granularity(recipe, load, tmp_path):
    plain = train(replace(recipe, whitening=None), tmp_path, tmp_path / "plain", device="cpu")
    even = replace(recipe, whitening=replace(recipe.whitening, documents=8, granularity=2))
    result = train(even, tmp_path, tmp_path / "even", device="cpu")
    lines = (tmp_path / "pairs.jsonl").read_text().splitlines()
    texts = [json.loads(line)["positive"] for line in lines]
    moments = {}
    for granularity in (2, 4):
        with load(plain.folder, replace(recipe.config, granularity=granularity)) as encoder:
            found = encoder.encode_documents(texts)
        rows = np.concatenate([embedding.landmarks for embedding in found])
        moments[granularity] = whitening_matrix(rows, power=0.5, shrinkage=0.5)
    layer = SentenceTransformer(str(result.folder), device="cpu", trust_remote_code=True)[2]
    found = layer.linear.weight.detach().numpy()
    assert found == pytest.approx(moments[2], abs=1e-4)
    assert found != pytest.approx(moments[4], abs=1e-4)
    with load(result.folder) as encoder:
        assert encoder.config.granularity == 4


def test_a_model_with_a_layer_is_trained_on_with_another_in_its_place(recipe, load, tmp_path):
    first = train(recipe, tmp_path, tmp_path / "first", device="cpu")
    further = replace(recipe, model=str(first.folder), teacher=recipe.model)
    with pytest.raises(CheckpointError, match="give the recipe a whitening"):
        build_model(replace(further, whitening=None), device="cpu")
    second = train(further, tmp_path, tmp_path / "second", device="cpu")
    with load(second.folder) as encoder:
        assert np.isfinite(encoder.encode_queries(["pump"])).all()


def test_a_recipe_keeps_its_whitening(recipe, tmp_path):
    (tmp_path / "recipe.json").write_text(recipe.to_json())
    assert Recipe.read(tmp_path / "recipe.json") == recipe
    with pytest.raises(ConfigError, match="whitening needs a model that LandmarkEncoder reads"):
        replace(recipe, pooling="latent")
