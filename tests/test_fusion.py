"""Two rankings as one: by ranks and by scores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmk_rag.errors import ConfigError
from lmk_rag.fusion import Fusion, fuse, reciprocal_ranks, weighted_scores

COSINES = {"a": 0.9, "b": 0.5, "c": 0.1}
MATCHES = {"b": 8.0, "d": 2.0}


def test_reciprocal_ranks_are_those_of_the_paper_times_61():
    scores = reciprocal_ranks(COSINES, MATCHES, 0.5)
    assert scores == {
        "a": pytest.approx(61 * (1 / 61) / 2),
        "b": pytest.approx(61 * (1 / 62 + 1 / 61) / 2),
        "c": pytest.approx(61 * (1 / 63) / 2),
        "d": pytest.approx(61 * (1 / 62) / 2),
    }


def test_weighted_scores_stretch_each_to_one():
    scores = weighted_scores(COSINES, MATCHES, 0.25)
    assert scores == {
        "a": pytest.approx(0.75),
        "b": pytest.approx(0.75 * 0.5 + 0.25),
        "c": pytest.approx(0),
        "d": pytest.approx(0.25 * 2 / 8),
    }


@pytest.mark.parametrize("rule", ["rrf", "weighted"])
def test_the_first_of_both_has_one(rule):
    scores = fuse({"a": 0.3, "b": -0.2}, {"a": 4.0, "b": 1.0}, Fusion(rule))
    assert list(scores) == ["a", "b"]
    assert scores["a"] == pytest.approx(1)


def test_a_single_document_and_none():
    assert fuse({"a": 0.3}, {}, Fusion("weighted", words=0.3)) == {"a": 0.7}
    assert fuse({"a": 0.3}, {}, Fusion("rrf", words=0.3)) == {"a": 0.7}
    assert fuse({}, {"a": 0.3}, Fusion("weighted", words=0.3)) == {"a": 0.3}
    for rule in ("rrf", "weighted"):
        assert fuse({}, {}, Fusion(rule)) == {}


@pytest.mark.parametrize("rule", ["rrf", "weighted"])
def test_a_weight_of_all_or_nothing_is_one_ranking(rule):
    assert list(fuse(COSINES, MATCHES, Fusion(rule, words=0)))[:3] == ["a", "b", "c"]
    assert list(fuse(COSINES, MATCHES, Fusion(rule, words=1)))[:2] == ["b", "d"]


def test_equals_share_a_rank_and_are_ordered_by_cosine_match_and_id():
    # Float noise of different engines is no difference.
    cosines = {"y": 0.4, "x": 0.4000000001, "z": 0.2}
    assert reciprocal_ranks(cosines, {}, 0) == {
        "x": 1, "y": 1, "z": pytest.approx(61 / 63)
    }  # fmt: skip
    ranks = Fusion("rrf", words=0.5)
    assert list(fuse(cosines, {}, ranks)) == ["x", "y", "z"]
    crossed = fuse({"a": 0.1, "b": 0.9}, {"a": 2.0, "b": 1.0}, ranks)
    assert list(crossed) == ["b", "a"]
    assert crossed["a"] == crossed["b"]
    assert list(fuse({}, {"b": 1.0, "a": 1.0}, ranks)) == ["a", "b"]


SCORES = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(-1, 1))
MATCHED = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.01, 90))


@given(SCORES, MATCHED, st.sampled_from(["rrf", "weighted"]), st.floats(0, 1))
def test_scores_fall_lie_between_0_and_1_and_cover_both(cosines, matches, rule, words):
    fused = fuse(cosines, matches, Fusion(rule, words))
    scores = list(fused.values())
    assert set(fused) == set(cosines) | set(matches)
    assert all(0 <= score <= 1 for score in scores)
    assert scores == sorted(scores, reverse=True)
    shuffled = fuse(
        dict(reversed(cosines.items())), dict(reversed(matches.items())), Fusion(rule, words)
    )
    assert list(shuffled) == list(fused)


@pytest.mark.parametrize("rule", ["RRF", "", None, "dbsf"])
def test_unknown_rules_are_refused(rule):
    with pytest.raises(ConfigError, match="expected one of rrf, weighted"):
        Fusion(rule)


@pytest.mark.parametrize("words", [-0.1, 1.1, float("nan"), "0.5", None, True])
def test_weights_outside_0_to_1_are_refused(words):
    with pytest.raises(ConfigError, match="the weight of words is"):
        Fusion(words=words)


def test_by_default_a_word_that_one_document_alone_has_outweighs_a_somewhat_better_cosine():
    assert Fusion() == Fusion("weighted", words=0.5)
    cosines = {"near": 0.6, "named": 0.5, "far": 0.2}
    fused = fuse(cosines, {"near": 1.0, "named": 9.0, "far": 1.0}, Fusion())
    assert list(fused) == ["named", "near", "far"]
    assert fused["named"] == pytest.approx(0.5 * 0.75 + 0.5)
