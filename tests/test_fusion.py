"""Two rankings as one: by ranks and by scores."""

import numpy as np
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


def test_weighted_scores_stretch_each_to_one_and_weigh_how_far_its_best_stands_out():
    scores = weighted_scores(COSINES, MATCHES, 0.25)
    # From 0 on: cosines 0.8, 0.4, 0 and 0; matches 0, 8, 0 and 2.
    ours, theirs = 0.75 * 0.8 / 0.11**0.5, 0.25 * 8 / 10.75**0.5
    share = theirs / (ours + theirs)
    assert scores == {
        "a": pytest.approx(1 - share),
        "b": pytest.approx((1 - share) * 0.5 + share),
        "c": pytest.approx(0),
        "d": pytest.approx(share * 2 / 8),
    }


def test_the_order_is_that_of_summed_standard_scores():
    cosines = {"a": 0.5, "b": 0.62, "c": 0.41, "d": 0.3}
    matches = {"a": 9.0, "b": 6.0, "c": 8.0}
    near = np.array(list(cosines.values()))
    match = np.array([*matches.values(), 0.0])
    standard = 0.6 * (near - near.mean()) / near.std() + 0.4 * (match - match.mean()) / match.std()
    expected = ["abcd"[i] for i in np.argsort(-standard)]
    assert list(fuse(cosines, matches, Fusion(words=0.4))) == expected == ["b", "a", "c", "d"]


def test_where_all_are_alike_to_one_ranking_the_other_decides():
    alike = {"a": 0.1 + 0.2, "b": 0.3, "c": 0.3}  # float noise is no difference
    assert fuse(alike, {"b": 2.0, "c": 1.0}, Fusion()) == {"b": 1, "c": 0.5, "a": 0}
    assert fuse({"a": 0.2, "b": 0.6}, {"a": 3.0, "b": 3.0}, Fusion()) == {"b": 1, "a": 0}


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
    near, match = np.array([0.4, 0.3, 0.0]), np.array([1.0, 9.0, 1.0])
    ours, theirs = 0.4 / near.std(), 9 / match.std()
    assert fused["named"] == pytest.approx((ours * 0.75 + theirs) / (ours + theirs), abs=1e-6)
