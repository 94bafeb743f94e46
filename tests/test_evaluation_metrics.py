"""Metrics worked out by hand, fusion, TREC files, significance."""

import math

import numpy as np
import pytest

from lmk_rag.errors import InputError
from lmk_rag.evaluation import (
    MethodResult,
    RetrievalSet,
    Run,
    fuse_scores,
    judge,
    paired_p_value,
    read_trec,
    write_trec,
)
from lmk_rag.evaluation.metrics import Group, by_length, by_passkey_length, means
from lmk_rag.evaluation.runs import run_of, score_rows
from lmk_rag.fusion import Fusion
from lmk_rag.types import Document

pytest.importorskip("ir_measures", reason="the extra eval is not installed")


def test_metrics_are_those_worked_out_by_hand():
    qrels = {"q1": {"a": 1}, "q2": {"a": 2, "b": 1, "c": 0}, "q3": {"z": 1}}
    run = Run(
        "m", {"q1": {"x": 3.0, "a": 2.0, "y": 1.0}, "q2": {"b": 0.9, "a": 0.8, "c": 0.7}, "q3": {}}
    )
    found = judge(run, qrels)
    second = 1 / math.log2(3)
    assert found["nDCG@10"] == pytest.approx(
        {"q1": second, "q2": (1 + 2 * second) / (2 + second), "q3": 0.0}
    )
    assert found["R@100"] == {"q1": 1.0, "q2": 1.0, "q3": 0.0}
    assert found["RR"] == {"q1": 0.5, "q2": 1.0, "q3": 0.0}
    assert found["Success@1"] == {"q1": 0.0, "q2": 1.0, "q3": 0.0}
    assert means(found)["RR"] == 0.5


def test_only_the_first_ten_count_for_ndcg():
    run = Run("m", {"q": {f"d{i:02}": -float(i) for i in range(20)}})
    assert judge(run, {"q": {"d09": 1}})["nDCG@10"]["q"] == pytest.approx(1 / math.log2(11))
    assert judge(run, {"q": {"d10": 1}})["nDCG@10"]["q"] == 0.0
    assert judge(run, {"q": {"d10": 1}})["RR"]["q"] == pytest.approx(1 / 11)


def test_nothing_found_at_all_scores_nothing():
    assert judge(Run("m", {"q": {}}), {"q": {"d": 1}})["R@100"] == {"q": 0.0}


def test_a_run_keeps_the_best_and_leaves_out_what_was_not_found():
    scores = np.array([[0.25, -np.inf, 0.75, 0.25], [-np.inf] * 4], np.float32)
    run = run_of("m", scores, ["q1", "q2"], ["a", "b", "c", "d"], depth=2)
    assert run == Run("m", {"q1": {"c": 0.75, "a": 0.25}, "q2": {}})
    assert list(run.scores["q1"]) == ["c", "a"]


def test_the_order_of_a_run_counts_among_equal_scores():
    for ids, first in ((("a", "b"), 1.0), (("b", "a"), 0.5)):
        run = Run("m", {"q": dict.fromkeys(ids, 0.5)})
        assert judge(run, {"q": {"a": 1}})["RR"]["q"] == first


NONE = -np.inf


def test_fusion_adds_reciprocal_ranks():
    first = np.array([[0.9, 0.8, NONE, NONE]], np.float32)
    second = np.array([[NONE, 7.0, 3.0, NONE]], np.float32)
    rule = Fusion("rrf", words=0.5)
    fused = fuse_scores("a+b", first, second, ["q"], list("xyzw"), fusion=rule)
    assert fused.method == "a+b"
    assert fused.scores["q"] == pytest.approx(
        {"y": (61 / 62 + 1) / 2, "x": 1 / 2, "z": 61 / 62 / 2}, abs=1e-6
    )
    assert list(fused.scores["q"]) == ["y", "x", "z"]
    shallow = fuse_scores("m", first, second, ["q"], list("xyzw"), fusion=rule, depth=1)
    assert list(shallow.scores["q"]) == ["y"]


def test_a_weighted_fusion_sees_both_scores_of_a_document():
    # The 401st by the first method is the best by the second.
    first = np.linspace(1, 0, 402, dtype=np.float32)[None]
    second = np.full((1, 402), NONE, np.float32)
    second[0, 400] = 5.0
    ids = [f"d{i}" for i in range(402)]
    rule = Fusion(rule="rrf", words=0.5)
    ranks = fuse_scores("m", first, second, ["q"], ids, fusion=rule).scores["q"]
    assert ranks["d400"] == 0.5
    rule = Fusion(rule="weighted", words=0.5)
    weighted = fuse_scores("m", first, second, ["q"], ids, fusion=rule).scores["q"]
    # The only match stands out further than any of 401 evenly spread cosines, of which its is 0.
    assert weighted["d400"] == pytest.approx(0.853, abs=1e-3)
    assert weighted["d0"] == pytest.approx(1 - weighted["d400"], abs=1e-6)
    assert weighted["d50"] == pytest.approx(0.875 * weighted["d0"], abs=1e-5)


def test_a_run_is_turned_into_rows_of_scores():
    run = Run("m", {"q1": {"b": 0.5}, "q2": {}})
    assert score_rows(run, ["q1", "q2"], ["a", "b"]).tolist() == [[NONE, 0.5], [NONE, NONE]]


def test_a_trec_file_gives_the_run_back(tmp_path):
    run = Run("chunk-max@256", {"q1": {"b": 1 / 3, "a": 0.1}, "q2": {"c": -2.5}})
    write_trec(run, tmp_path / "runs/set/m.trec")
    text = (tmp_path / "runs/set/m.trec").read_text()
    assert text.splitlines()[1:] == ["q1 Q0 a 2 0.1 chunk-max@256", "q2 Q0 c 1 -2.5 chunk-max@256"]
    assert read_trec(tmp_path / "runs/set/m.trec") == run


def test_a_trec_file_is_replaced_whole(tmp_path):
    path, before = tmp_path / "run.trec", tmp_path / "before.trec"
    write_trec(Run("old", {"q": {"d": 1.0}}), path)
    before.hardlink_to(path)
    write_trec(Run("new", {"q": {"d": 1.0}}), path)
    assert read_trec(path).method == "new"
    assert read_trec(before).method == "old"  # nothing was written over: a kill leaves one or both
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(InputError, match="can't be written"):
        write_trec(Run("new", {}), path / "below")


def test_a_trec_file_of_another_form_is_refused(tmp_path):
    path = tmp_path / "x.trec"
    path.write_text("q Q0 d 1 0.5 m\nq Q0 d 1 high m\n")
    with pytest.raises(InputError, match=r"x.trec:2: found 'q Q0 d 1 high m'; expected"):
        read_trec(path)
    with pytest.raises(InputError, match="can't be read"):
        read_trec(tmp_path / "none")
    with pytest.raises(InputError, match="the id 'a b' holds white space"):
        write_trec(Run("m", {"q": {"a b": 1.0}}), path)


def test_few_differences_are_tested_exactly():
    # All of 3 differences go one way: 2 of the 8 sign patterns are as extreme.
    assert paired_p_value(np.array([1.0, 0.5, 0.2]), np.zeros(3)) == 0.25
    assert paired_p_value(np.zeros(3), np.array([1.0, 0.5, 0.2])) == 0.25
    # +1, +1, -1: every pattern's sum is at least 1 away from 0.
    assert paired_p_value(np.array([1.0, 1, 0]), np.array([0.0, 0, 1])) == 1.0
    # Queries without a difference say nothing.
    assert paired_p_value(np.array([0.3, 1, 1]), np.array([0.3, 0, 0])) == 0.5
    assert paired_p_value(np.ones(5), np.ones(5)) == 1.0


def test_many_differences_are_tested_by_random_patterns_of_a_fixed_seed():
    random = np.random.default_rng(1)
    noise = random.normal(size=400)
    assert paired_p_value(noise + 1, np.zeros(400)) == 1 / 10_001
    p = paired_p_value(noise, np.zeros(400))
    assert p == paired_p_value(noise, np.zeros(400))
    # Two-sided p of a normal mean: 2 * (1 - Phi(|t|))
    t = abs(noise.mean()) / math.sqrt(np.mean(noise**2) / 400)
    assert p == pytest.approx(math.erfc(t / math.sqrt(2)), abs=0.02)


def test_unpaired_metrics_are_refused():
    with pytest.raises(InputError, match=r"shapes \(2,\) and \(3,\)"):
        paired_p_value(np.zeros(2), np.zeros(3))
    with pytest.raises(InputError, match=r"shapes \(0,\)"):
        paired_p_value(np.zeros(0), np.zeros(0))


PER_QUERY = {
    "nDCG@10": {"q1": 1.0, "q2": 0.5, "q3": 0.0},
    "R@100": {"q1": 1.0, "q2": 1.0, "q3": 0.0},
    "RR": {"q1": 1.0, "q2": 0.5, "q3": 0.25},
    "Success@1": {"q1": 1.0, "q2": 0.0, "q3": 0.0},
}


def set_of(qrels):
    documents = tuple(
        Document(id_, "text") for id_ in sorted({d for of in qrels.values() for d in of})
    )
    return RetrievalSet("s", documents, dict.fromkeys(qrels, "query"), qrels)


def test_queries_are_grouped_by_the_tokens_of_the_relevant_document():
    data = set_of({"q1": {"short": 1}, "q2": {"long": 1, "short": 0}, "q3": {"long": 1, "edge": 1}})
    groups = by_length(data, {"short": 255, "edge": 256, "long": 20_000}, PER_QUERY)
    assert [(g.name, g.queries, g.scores["nDCG@10"]) for g in groups] == [
        ("0-256", 1, 1.0),
        ("8192-16384", 1, 0.0),
        ("16384+", 1, 0.5),
    ]


def test_passkeys_are_grouped_by_the_length_their_ids_name():
    data = set_of({"q1": {"L256-0": 1}, "q2": {"L256-1": 1}, "q3": {"L1024-0": 1}})
    assert by_passkey_length(data, PER_QUERY) == (
        Group("256", 2, {"Success@1": 0.5, "nDCG@10": 0.75}),
        Group("1024", 1, {"Success@1": 0.0, "nDCG@10": 0.0}),
    )
    assert by_passkey_length(set_of({"q1": {"L256-0": 1}, "q2": {"d": 1}}), PER_QUERY) == ()


def test_results_are_frozen():
    result = MethodResult("m", 1, {"RR": 1.0}, 0.0)
    with pytest.raises(AttributeError):
        result.seconds = 1.0
