"""Whitening: the map, what it is learned from, and the layer it becomes in a model folder."""

import numpy as np
import pytest

pytest.importorskip("datasets", reason="the extra `train` is not installed")

from dataclasses import replace

from sentence_transformers import SentenceTransformer

from lmk_rag.errors import CheckpointError, ConfigError, TrainingDataError
from lmk_rag.training import Recipe, Source, Whitening, train
from lmk_rag.training.examples import Example
from lmk_rag.training.start import build_model
from lmk_rag.training.whitening import sample, whitening_matrix

TEXTS = ["pump", "The pump of station V-7 stops when the valve closes.", "Long text, words. " * 20]


def test_the_directions_that_vary_most_are_drawn_in():
    rows = np.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # variances 4.5 and 0.5
    found = whitening_matrix(rows, power=0.5, shrinkage=1.0)
    assert found.dtype == np.float32
    # Their mean is 2.5: (4.5 + 2.5) / 2.5 = 2.8, (0.5 + 2.5) / 2.5 = 1.2.
    assert found == pytest.approx(np.diag([2.8**-0.5, 1.2**-0.5]), abs=1e-6)
    found = whitening_matrix(rows + 7, power=0.25, shrinkage=3.0)  # where they lie is no variance
    assert found == pytest.approx(np.diag([1.6**-0.25, (8 / 7.5) ** -0.25]), abs=1e-6)


def test_all_of_it_leaves_no_direction_before_others():
    rows = np.random.default_rng(0).normal(size=(500, 4)) @ np.diag([5.0, 2.0, 1.0, 0.3])
    rows = rows @ np.linalg.qr(np.random.default_rng(1).normal(size=(4, 4)))[0]
    even = rows @ whitening_matrix(rows, power=0.5, shrinkage=1e-9)
    covariance = np.cov(even.T)
    assert covariance / covariance[0, 0] == pytest.approx(np.eye(4), abs=1e-3)


@pytest.mark.parametrize("rows", [np.zeros((0, 3)), np.ones((1, 3)), np.ones((5, 3))])
def test_rows_that_do_not_differ_teach_nothing(rows):
    with pytest.raises(TrainingDataError, match=f"{len(rows)} landmarks of which no two differ"):
        whitening_matrix(rows, power=0.25, shrinkage=1.0)


def test_a_sample_is_even_over_sources():
    examples = [Example(f"{s}{i}", (), ((0, 2),), s) for s, n in (("a", 9), ("b", 2)) for i in range(n)]
    chosen = sample(examples, 6, seed=1)
    assert [example.source for example in chosen] == ["a"] * 4 + ["b"] * 2
    assert len({example.text for example in chosen}) == 6
    assert sample(examples, 6, seed=1) == chosen
    assert sample(examples, 6, seed=2) != chosen
    assert sample(examples, 50, seed=1) == examples


@pytest.mark.parametrize("wrong", [{"power": 0}, {"shrinkage": -1.0}, {"documents": 1}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Whitening(**wrong)


@pytest.fixture
def recipe(st_folder, tmp_path):
    lines = ['{"query": "pump", "positive": "The pump stops %s."}' % ("now " * i) for i in range(1, 9)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    folder = str(st_folder("bert", pooling="mean"))
    return Recipe(
        sources=(Source("pairs", pairs="pairs.jsonl"),),
        model=folder,
        teacher=folder,
        pooling="mean",
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
