"""Examples, batches and collation: what is learned from, and what is no negative."""

import gzip
import json

import pytest
import torch

pytest.importorskip("datasets", reason="the extra `train` is not installed")

from lmk_rag.checkpoint import load_checkpoint, with_config
from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import ConfigError, TrainingDataError
from lmk_rag.training.batches import BatchPlan
from lmk_rag.training.collate import LandmarkCollator, known_positives
from lmk_rag.training.examples import (
    Example,
    Pair,
    Query,
    concatenate,
    from_pairs,
    from_texts,
    read_pairs,
    read_texts,
)
from lmk_rag.training.modules import LandmarkTransformer
from lmk_rag.training.recipe import Recipe, Source
from lmk_rag.training.teacher import Teacher, rows_of

FIELD_CASE = [
    ("q1", "p1"), ("q2", "p1"), ("q3", "p3"), ("q3", "p4"), ("q5", "p5"), ("q6", "p6"),
    ("q7", "p7"), ("q8", "p8"), ("q9", "p9"),
]  # fmt: skip


@pytest.fixture
def transformer(model_folder):
    config = LandmarkConfig(granularity=4, overlap=4, boundary="word")
    checkpoint = load_checkpoint(model_folder("bert"), dtype=torch.float32)
    return LandmarkTransformer(with_config(checkpoint, config))


def collate(examples, transformer, **options):
    collator = LandmarkCollator(
        examples, transformer, None, known_positives(examples), granularities=(4,),
        query_granularities=(4,), boundaries=("word",), **options,
    )  # fmt: skip
    return collator([{"index": i} for i in range(len(examples))])


def test_pairs_are_read_plain_or_compressed(tmp_path):
    lines = (
        '{"query": "q", "positive": "p"}\n\n{"query": "r", "positive": "s", "negatives": ["n"]}\n'
    )
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    expected = [Pair("q", "p"), Pair("r", "s", ("n",))]
    assert read_pairs(tmp_path / "a.jsonl") == expected
    assert read_pairs(tmp_path / "b.jsonl.gz") == expected


@pytest.mark.parametrize(
    "line", ['{"query": "q"}', '{"query": "q", "positive": " "}', "[1]", "{",
             '{"query": "q", "positive": "p", "negatives": "n"}',
             '{"query": "q", "positive": "p", "negative": ["n"]}'],
)  # fmt: skip
def test_a_bad_pair_is_named(tmp_path, line):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"query": "q", "positive": "p"}\n' + line + "\n")
    with pytest.raises(TrainingDataError, match=r"pairs\.jsonl"):
        read_pairs(path)


def test_a_bad_text_is_named_with_its_line(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "a"}\n{"id": 1}\n')
    with pytest.raises(TrainingDataError, match=r"texts\.jsonl:2 holds"):
        read_texts(path)


def test_passages_behind_each_other_are_parts_with_their_queries():
    pairs = [Pair(f"q{i}", f"passage {i}") for i in range(5)]
    examples = concatenate(pairs, 2, "toy", seed=1)
    assert len(examples) == 2  # the fifth is left over
    for example in examples:
        assert [example.text[a:b] for a, b in example.parts] == example.text.split("\n\n")
        for query in example.queries:
            start, end = example.parts[query.part]
            assert example.text[start:end] == "passage " + query.text[1:]
    assert concatenate(pairs, 2, "toy", seed=1) == examples
    assert concatenate(pairs, 2, "toy", seed=2) != examples


def test_a_passage_with_several_queries_stands_once_with_all_of_them():
    pairs = [Pair("a", "one"), Pair("b", "two"), Pair("c", "one"), Pair("d", "two")]
    (example,) = concatenate(pairs, 2, "toy", seed=1)
    assert sorted(example.text.split("\n\n")) == ["one", "two"]
    answers = {"a": "one", "b": "two", "c": "one", "d": "two"}
    for query in example.queries:
        start, end = example.parts[query.part]
        assert example.text[start:end] == answers.pop(query.text)
    assert not answers


def test_a_text_finds_its_queries_and_loses_their_headings():
    text = (
        "# Pumps\n\n## Care\nOil the pump every week.\n\nUse\n---\nTurn the key to start it.\n"
        "Use\n"  # a word on a line of its own is no heading
    )
    pairs = [
        Pair("Pumps: Care", "Oil the pump every week."),
        Pair("Pumps: Use", "Turn the key to start it."),
        Pair("Valves: Care", "Never oil a valve."),
    ]
    (example,) = from_texts([text], pairs, length=1_000, source="toy")
    assert [query.text for query in example.queries] == ["Pumps: Care", "Pumps: Use"]
    assert example.text == (
        "# Pumps\n\nOil the pump every week.\n\n---\nTurn the key to start it.\nUse\n"
    )
    assert example.parts == ((0, len(example.text)),)


def test_the_negatives_of_a_pair_go_with_it_into_its_text():
    pairs = [
        Pair("oil", "Oil the pump.", ("Oil paint.",)),
        Pair("oil", "Oil the valve.", ("Olive oil.",)),
    ]
    (example,) = from_texts(["Oil the pump.\nOil the valve.\n"], pairs, length=99, source="toy")
    assert example.queries == (Query("oil", 0, ("Oil paint.", "Olive oil.")),)


def test_long_texts_are_cut_at_line_ends_and_nothing_is_lost():
    text = "".join(f"line {i} of a long text\n" for i in range(100))
    pieces = from_texts([text], [], length=500, source="toy")
    assert len(pieces) == 5
    assert "".join(piece.text for piece in pieces) == text
    assert all(piece.text.endswith("\n") and not piece.queries for piece in pieces)


def test_a_text_without_lines_is_cut_at_spaces():
    text = "words without an end " * 500
    pieces = [piece.text for piece in from_texts([text], [], length=100, source="toy")]
    assert len(pieces) > 90
    assert "".join(pieces) == text
    assert all(piece.endswith(" ") for piece in pieces)
    assert max(map(len, pieces[:-1])) < 120
    assert len(pieces[-1]) < 600


def test_what_answers_a_query_is_known_also_where_it_was_not_drawn():
    pages = from_texts(["Oil the pump.\nWeekly.\n"], [Pair("oil", "Oil the pump.")], length=99,
                       source="toy")  # fmt: skip
    assert known_positives(pages) == {"oil": {"Oil the pump.\nWeekly.\n"}}
    pairs = [Pair("oil", "Oil the pump."), Pair("oil", "Never drawn."), Pair("ink", "Black.")]
    assert known_positives(pages, pairs) == {
        "oil": {"Oil the pump.\nWeekly.\n", "Oil the pump.", "Never drawn."},
        "ink": {"Black."},
    }


def test_a_batch_never_holds_a_text_twice():
    examples = from_pairs([Pair(q, p) for q, p in FIELD_CASE], "toy")
    plan = BatchPlan(examples, budget=10_000, steps=20, seed=0)
    seen = set()
    for batch in plan.batches:
        texts = [t for i in batch for t in {examples[i].text, examples[i].queries[0].text}]
        assert len(texts) == len(set(texts))
        seen |= set(batch)
    assert seen == set(range(len(examples)))


def test_a_plan_holds_one_source_per_batch_and_keeps_its_budget():
    examples = [
        Example("x" * 40 * (1 + i % 7), (), ((0, 40),), source)
        for source in ("a", "b")
        for i in range(50)
    ]
    plan = BatchPlan(examples, budget=300, steps=30, seed=3)
    assert len(plan.batches) == 30
    for batch in plan.batches:
        assert len({examples[i].source for i in batch}) == 1
        longest = max(len(examples[i].text) // 4 + 2 for i in batch)
        assert longest * len(batch) <= 300 or len(batch) == 1
    assert BatchPlan(examples, budget=300, steps=30, seed=3).batches == plan.batches
    assert BatchPlan(examples, budget=300, steps=30, seed=4).batches != plan.batches
    assert list(plan()) == plan.batches


def test_listed_negatives_count_in_the_budget():
    negatives = tuple(f"{n} " + "x" * 38 for n in range(4))
    pairs = [Pair(f"query {i}", f"{i:>3}" + "y" * 37, negatives) for i in range(20)]
    plan = BatchPlan(from_pairs(pairs, "toy"), budget=120, steps=8, seed=0)
    # 12 tokens each: six positives and the four negatives that they share.
    assert max(map(len, plan.batches)) == 6


def test_pairs_that_share_a_text_are_no_negatives(transformer):
    examples = from_pairs([Pair(q, p) for q, p in FIELD_CASE], "toy")
    batch = collate(examples, transformer)
    blocked = batch["query_blocked_parts"]
    expected = torch.eye(9, dtype=torch.bool)
    expected[0, 1] = expected[1, 0] = True  # q1 and q2 have the same answer
    expected[2, 3] = expected[3, 2] = True  # q3 has two
    assert torch.equal(blocked, expected)
    assert torch.equal(batch["query_blocked_documents"], expected)
    assert batch["query_positive_part"].tolist() == list(range(9))


def test_a_positive_known_from_elsewhere_is_no_negative(transformer):
    examples = from_pairs([Pair("q1", "p1"), Pair("q2", "p2")], "toy")
    known = {"q1": {"p1", "p2"}, "q2": {"p2"}}
    collator = LandmarkCollator(
        examples, transformer, None, known, granularities=(4,), query_granularities=(4,)
    )
    blocked = collator([{"index": 0}, {"index": 1}])["query_blocked_parts"]
    assert blocked.tolist() == [[True, True], [False, True]]


def test_listed_negatives_are_candidates_without_queries(transformer):
    examples = from_pairs([Pair("q1", "p1", ("n1", "n2")), Pair("q2", "p2", ("n1",))], "toy")
    batch = collate(examples, transformer)
    assert batch["document_input_ids"].shape[0] == 4  # p1 p2 n1 n2
    assert batch["query_blocked_documents"].shape == (2, 4)
    assert batch["query_positive_document"].tolist() == [0, 1]


def test_landmarks_know_their_part(transformer):
    text = "one two three four five six\n\nalpha beta gamma delta"
    example = Example(text, (Query("q", 1),), ((0, 27), (29, len(text))), "toy")
    outside = Example("one two three four five six seven eight", (), ((0, 20),), "toy")
    batch = collate([example, outside], transformer)
    rows = batch["document_row_parts"]
    assert set(rows[0].tolist()) - {-2} == {0, 1}
    assert set(rows[1].tolist()) - {-2} == {2, -1}
    assert batch["query_positive_part"].tolist() == [1]
    assert batch["query_blocked_documents"].shape == (1, 2)
    assert (rows > -2).sum() == batch["document_pooled"].sum()


def test_draws_depend_on_seed_text_and_batch_alone(transformer):
    examples = from_pairs(
        [Pair(f"q{i}", f"one two three four five {i}" * 3) for i in range(6)], "a"
    )
    collator = LandmarkCollator(
        examples, transformer, None, {}, granularities=(2, 4, 8), query_granularities=(4,), seed=1
    )
    first = collator([{"index": 0}, {"index": 1}])["document_input_ids"]
    collator([{"index": 5}])
    again = collator([{"index": 0}, {"index": 1}])["document_input_ids"]
    assert torch.equal(first, again)
    drawn = {int((collator([{"index": i}])["document_row_parts"] > -2).sum()) for i in range(6)}
    assert len(drawn) > 1


def test_the_teacher_gives_the_mean_of_the_states_of_any_stretch(st_folder):
    text = "The pump of station V-7 stops when the valve closes. " * 4
    with pytest.warns(UserWarning, match="not trained with landmarks"):
        teacher = Teacher(st_folder("bert", pooling="mean"), device="cpu")
    tokens = teacher.encoder.encode_documents([text])[0]
    spans = tokens.spans[[0, 5]].copy()
    spans[0, 1], spans[1, 1] = tokens.spans[4, 1], len(text)
    (vector,), (rows,) = teacher.documents([text], [spans])
    states = tokens.landmarks * tokens.norms[:, None]
    assert torch.allclose(torch.tensor(rows[0]), torch.tensor(states[:5].mean(0)), atol=1e-5)
    assert torch.allclose(torch.tensor(rows[1]), torch.tensor(states[5:].mean(0)), atol=1e-5)
    assert torch.equal(torch.tensor(vector), torch.tensor(tokens.vector))


def test_a_teacher_that_pools_otherwise_is_refused(st_folder):
    with (
        pytest.warns(UserWarning, match="not trained with landmarks"),
        pytest.raises(ConfigError, match="pools by cls"),
    ):
        Teacher(st_folder("bert", pooling="cls"), device="cpu")


def test_a_stretch_without_tokens_has_a_zero_row(bert):
    tokens = bert.encode_documents(["pump"])[0]
    assert not rows_of(tokens, tokens.spans + 100).any()


def test_recipes_round_trip_and_name_what_they_do_not_know(tmp_path):
    recipe = Recipe(sources=(Source("a", pairs="a.jsonl", join=3),), steps=7, freeze=("pooler",))
    path = tmp_path / "recipe.json"
    path.write_text(recipe.to_json())
    assert Recipe.read(path) == recipe
    path.write_text(json.dumps({"sources": [{"name": "a", "pairs": "a"}], "stepz": 3}))
    with pytest.raises(ConfigError, match=r"unknown keys \['stepz'\] in Recipe"):
        Recipe.read(path)
    path.write_text(json.dumps({"sources": [{"name": "a"}]}))
    with pytest.raises(ConfigError, match="names neither pairs nor texts"):
        Recipe.read(path)
    path.write_text("[]")
    with pytest.raises(ConfigError, match="no JSON object"):
        Recipe.read(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "retromea"}, "objective is 'retromea'; expected one of retrieval"),
        ({"pooling": "max"}, "pooling is 'max'"),
        ({"granularities": []}, "granularities is empty"),
        ({"temperature": 0}, "temperature is 0"),
        ({"weights": {"vector": -1}}, "no weight below 0"),
        ({"steps": 0}, "steps is 0"),
        ({"granularities": [0, 32]}, "granularities is 0"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"beta2": 1}, "beta2 is 1; expected at least 0 and less than 1"),
        ({"rotary": "false"}, "rotary is 'false'; expected true or false"),
        ({"mini_batch": "8"}, "mini_batch is '8'; expected a whole number of at least 1"),
        ({"mini_batch": 8, "objective": "retromae"}, "RetroMAE has no gradient caching"),
        ({"seed": -1}, "seed is -1"),
        ({"teacher_length": 0}, "teacher_length is 0"),
        ({"sources": [{"name": "a", "pairs": "a", "join": 2.5}]}, "join of source 'a' is 2.5"),
        ({"sources": [{"name": "a", "pairs": "a", "limit": -1}]}, "limit of source 'a' is -1"),
        ({"sources": [{"name": "a", "pairs": "a", "weight": -1}]}, "has weight -1; expected more"),
        ({"config": {"max_length": 100}}, "a stretch may take 384 tokens"),
        ({"teacher": "", "weights": {"contrast": 0}}, "nothing would be learned"),
        ({"sources": [{"name": "a", "pairs": "a"}, {"name": "a", "pairs": "b"}]}, "the same name"),
    ],
)
def test_a_recipe_that_can_not_be_meant_is_refused(tmp_path, changes, message):
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"sources": [{"name": "a", "pairs": "a"}]} | changes))
    with pytest.raises(ConfigError, match=message):
        Recipe.read(path)
