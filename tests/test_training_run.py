"""Whole training runs on toy data: they learn, stop, go on exactly, and finish."""

import gzip
import json
import subprocess
import sys

import pytest
import torch

pytest.importorskip("datasets", reason="the extra `train` is not installed")

from dataclasses import replace

from typer.testing import CliRunner

from lmk_rag import LandmarkEncoder
from lmk_rag.cli import app
from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import ConfigError, NonFiniteError, TrainingDataError
from lmk_rag.training import Pair, Recipe, Source, mine_negatives, train
from lmk_rag.training.collate import LandmarkCollator, known_positives
from lmk_rag.training.examples import Example, Query, from_pairs, read_pairs
from lmk_rag.training.loss import LandmarkLoss, Weights
from lmk_rag.training.precision import MasterWeights, summed_in_float32
from lmk_rag.training.retromae import mask_tokens
from lmk_rag.training.sources import read_source
from lmk_rag.training.start import build_model
from lmk_rag.training.watch import read_log
from lmk_rag.training.whitening import Whitening

WORDS = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "alpha",
    "beta",
    "gamma",
    "delta",
    "plain",
]


@pytest.fixture
def data(tmp_path):
    lines = [
        {
            "query": WORDS[i % 15],
            "positive": " ".join(WORDS[(i + j) % 15] for j in range(6 + i % 5)),
        }
        for i in range(30)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    texts = [{"text": "\n".join(" ".join(WORDS[i:]) for i in range(9)) + "\n"} for _ in range(3)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    return tmp_path


@pytest.fixture
def recipe(st_folder):
    folder = str(st_folder("bert", pooling="mean"))
    return Recipe(
        sources=(
            Source("pairs", pairs="pairs.jsonl"),
            Source("joined", pairs="pairs.jsonl", join=3),
            Source("long", texts="texts.jsonl", pairs="pairs.jsonl"),
        ),
        model=folder,
        teacher=folder,
        config=LandmarkConfig(granularity=4, max_length=48, overlap=4),
        granularities=(2, 4, 8),
        query_granularities=(4,),
        weights=Weights(part_contrast=0.1, part_scores=0.1, group=0.1, relations=0.1),
        steps=20,
        batch_tokens=120,
        learning_rate=1e-3,
        warmup_steps=2,
        piece=200,
        log_steps=1,
        seed=3,
    )


def sides(batch):
    """Queries and documents of a batch, as the trainer hands them to the loss."""
    return [
        {key.removeprefix(side): value for key, value in batch.items() if key.startswith(side)}
        for side in ("query_", "document_")
    ]


def curve(folder):
    return [(row["step"], row["loss"]) for row in read_log(folder / "log.jsonl")]


def test_twenty_steps_learn_and_leave_a_model(recipe, data, load, tmp_path):
    result = train(recipe, data, tmp_path / "run", device="cpu")
    assert result.steps == 20
    assert result.finished
    assert result.tokens > 0
    losses = [loss for _, loss in curve(tmp_path / "run")]
    assert len(losses) == 20
    assert all(loss == loss and abs(loss) != float("inf") for loss in losses)
    assert sum(losses[-6:]) < 0.8 * sum(losses[:6])
    assert (tmp_path / "run" / "loss.png").stat().st_size > 1_000
    with load(result.folder) as encoder:
        assert encoder.pooling == "lmk"
        assert encoder.max_length == 48
        assert encoder.encode_documents(["one two three"])[0].vector.shape == (32,)
    names = {path.name for path in result.folder.rglob("*")}
    assert "model.safetensors" in names
    assert not {"pytorch_model.bin", "training_args.bin"} & names


def test_the_same_seed_gives_the_same_curve_and_another_one_another(recipe, data, tmp_path):
    short = replace(recipe, steps=4)
    train(short, data, tmp_path / "a", device="cpu")
    train(short, data, tmp_path / "b", device="cpu")
    train(replace(short, seed=4), data, tmp_path / "c", device="cpu")
    assert curve(tmp_path / "a") == curve(tmp_path / "b")
    assert curve(tmp_path / "a") != curve(tmp_path / "c")


@pytest.mark.parametrize(
    ("dtype", "objective"),
    [("float32", "retrieval"), ("bfloat16", "retrieval"), ("float32", "retromae")],
)
def test_a_stopped_run_goes_on_exactly(recipe, data, tmp_path, monkeypatch, dtype, objective):
    recipe = replace(recipe, steps=8, dtype=dtype, objective=objective)
    train(recipe, data, tmp_path / "whole", device="cpu")
    # A clock that jumps a minute per step: the first call stops after three steps.
    clock = iter(range(0, 100_000, 60))
    with monkeypatch.context() as patched:
        patched.setattr("lmk_rag.training.watch.time.monotonic", lambda: next(clock))
        first = train(recipe, data, tmp_path / "parts", stop_minutes=5, device="cpu")
    assert 0 < first.steps < 8
    assert not first.finished
    second = train(recipe, data, tmp_path / "parts", device="cpu")
    assert second.finished
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")
    whole, parts = (read_log(tmp_path / name / "log.jsonl") for name in ("whole", "parts"))
    assert [row["tokens"] for row in parts] == [row["tokens"] for row in whole]
    assert first.tokens + second.tokens == whole[-1]["tokens"]
    parts = (tmp_path / "parts" / "model" / "model.safetensors").read_bytes()
    assert parts == (tmp_path / "whole" / "model" / "model.safetensors").read_bytes()


def test_a_finished_run_stays_as_it_is(recipe, data, tmp_path):
    recipe = replace(recipe, steps=3)
    train(recipe, data, tmp_path / "run", device="cpu")
    weights = tmp_path / "run" / "model" / "model.safetensors"
    before = weights.read_bytes(), (tmp_path / "run" / "log.jsonl").read_text("utf-8")
    again = train(recipe, data, tmp_path / "run", device="cpu")
    assert (again.steps, again.finished, again.tokens) == (3, True, 0)
    assert (weights.read_bytes(), (tmp_path / "run" / "log.jsonl").read_text("utf-8")) == before


def test_a_recipe_can_be_mended_until_something_was_trained(recipe, data, tmp_path):
    wrong = replace(recipe, sources=(Source("pairs", pairs="paris.jsonl"),))
    with pytest.raises(TrainingDataError, match="paris"):
        train(wrong, data, tmp_path / "run", device="cpu")
    recipe = replace(recipe, steps=2)
    assert train(recipe, data, tmp_path / "run", device="cpu").finished
    with pytest.raises(ConfigError, match="a run of another recipe"):
        train(replace(recipe, seed=9), data, tmp_path / "run", device="cpu")


def test_a_stretch_that_the_models_window_can_not_hold_is_told_at_once(recipe, data, tmp_path):
    config = replace(recipe.config, max_length=None)
    with pytest.raises(ConfigError, match=r"a stretch may take 96 tokens.* a window of 64"):
        train(
            replace(recipe, config=config, granularities=(64,)),
            data,
            tmp_path / "run",
            device="cpu",
        )


def test_what_can_teach_nothing_is_refused(recipe, data, tmp_path, st_folder):
    def start(**changes):
        train(replace(recipe, **changes), data, tmp_path / "run", device="cpu")

    with pytest.raises(ConfigError, match="no teacher and no query"):
        start(teacher="", sources=(Source("texts", texts="texts.jsonl"),))
    with pytest.raises(ConfigError, match="takes 'auto' or 'cpu'"):
        train(recipe, data, tmp_path / "run", device="cuda:1")
    (data / "other.jsonl").write_text('{"query": "alpha", "positive": "stands nowhere"}\n')
    with pytest.raises(TrainingDataError, match=r"none of the 1 positives of other\.jsonl"):
        start(sources=(Source("long", texts="texts.jsonl", pairs="other.jsonl"),))


def test_a_teacher_of_another_width_teaches_scores_only(recipe, data, tmp_path, st_folder):
    wide = replace(
        recipe, steps=2, teacher=str(st_folder("bert", dense=[(48, torch.nn.Identity())]))
    )
    with pytest.raises(ConfigError, match="vectors have 48 dimensions, the model's 32"):
        train(wide, data, tmp_path / "run", device="cpu")
    by_scores = replace(wide, weights=replace(recipe.weights, vector=0, landmark=0))
    assert train(by_scores, data, tmp_path / "run", device="cpu").finished
    first, second = read_log(tmp_path / "run" / "log.jsonl")
    assert first["relations"] > 0
    assert second["part_scores"] > 0
    assert "landmark" not in first


def test_a_checkpoint_that_a_kill_cut_short_is_passed_over(recipe, data, tmp_path):
    recipe = replace(recipe, steps=3)
    whole = train(recipe, data, tmp_path / "whole", device="cpu")
    torn = tmp_path / "torn" / "checkpoints" / "checkpoint-2"
    torn.mkdir(parents=True)
    (torn / "config.json").write_text("{}")
    assert train(recipe, data, tmp_path / "torn", device="cpu").steps == whole.steps
    assert curve(tmp_path / "torn") == curve(tmp_path / "whole")


def test_a_source_that_gives_nothing_is_named(recipe, data, tmp_path):
    recipe = replace(recipe, sources=(Source("few", pairs="pairs.jsonl", join=31),))
    with pytest.raises(TrainingDataError, match="'few' gives no example: 30 pairs, join 31"):
        train(recipe, data, tmp_path / "run", device="cpu")


def test_a_folder_with_a_run_on_other_data_is_refused(recipe, data, tmp_path):
    recipe, pairs = replace(recipe, steps=1), data / "pairs.jsonl"
    train(recipe, data, tmp_path / "run", device="cpu")
    lines = pairs.read_text("utf-8")
    pairs.write_text(lines + '{"query": "one", "positive": "two three"}\n', "utf-8")
    with pytest.raises(ConfigError, match="holds a run on other data"):
        train(recipe, data, tmp_path / "run", device="cpu")
    pairs.write_text(lines, "utf-8")
    assert train(recipe, data, tmp_path / "run", device="cpu").finished


def test_a_limit_is_drawn_with_the_seed(recipe, data):
    def drawn(seed):
        source = Source("pairs", pairs="pairs.jsonl", limit=5)
        examples, pairs = read_source(source, data, replace(recipe, seed=seed))
        assert len(pairs) == 30  # what is known to answer is all of them
        return [e.text for e in examples]

    assert len(drawn(1)) == 5
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_a_folder_with_another_recipe_is_refused(recipe, data, tmp_path):
    train(replace(recipe, steps=1), data, tmp_path / "run", device="cpu")
    with pytest.raises(ConfigError, match="holds a run of another recipe"):
        train(recipe, data, tmp_path / "run", device="cpu")


def test_gradient_caching_gives_the_same_gradients(recipe, data):
    gradients = []
    for mini_batch in (None, 2):
        torch.manual_seed(0)
        model = build_model(recipe)
        examples = from_pairs([Pair(f"{w} plain", f"{w} one two three {w}") for w in WORDS], "toy")
        collator = LandmarkCollator(
            examples,
            model[0],
            None,
            known_positives(examples),
            granularities=(2, 4),
            query_granularities=(4,),
        )
        batch = collator([{"index": i} for i in range(7)])
        features = sides(batch)
        loss = LandmarkLoss(model, Weights(contrast=1.0, part_contrast=1.0), mini_batch=mini_batch)
        torch.stack(list(loss(features).values())).sum().backward()
        gradients.append(
            {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        )
    plain, cached = gradients
    assert plain.keys() == cached.keys()
    assert any(grad.abs().max() > 1e-4 for grad in plain.values())
    for name, gradient in plain.items():
        assert torch.allclose(gradient, cached[name], atol=1e-5), name


def test_gradients_of_mini_batches_add_up_in_bfloat16():
    layer = torch.nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    for _ in range(300):
        layer.weight.sum().backward()
    assert layer.weight.grad.item() == 256  # 256 + 1 is 256 there
    layer.weight.grad = torch.ones_like(layer.weight)
    with summed_in_float32(layer):
        for _ in range(299):
            layer.weight.sum().backward()
    assert layer.weight.grad.item() == 300
    assert layer.weight.grad.dtype == torch.bfloat16


def test_low_precision_leaves_rotary_frequencies_exact(recipe):
    def frequencies(dtype):
        config = LandmarkConfig(granularity=4, max_length=200, overlap=4)
        network = build_model(replace(recipe, rotary=True, config=config, dtype=dtype))[0]
        found = {k: v for k, v in network.auto_model.named_buffers() if "inv_freq" in k}
        assert found
        assert next(network.parameters()).dtype == getattr(torch, dtype)
        return found

    exact = frequencies("float32")
    for name, values in frequencies("bfloat16").items():
        assert torch.equal(values, exact[name])


@pytest.mark.parametrize("mini_batch", [None, 2])
def test_objectives_have_the_same_names_in_batches_with_and_without_queries(recipe, mini_batch):
    model = build_model(recipe)
    examples = [
        Example("one two three", (Query("one", 0),), ((0, 13),), "toy"),
        Example("four five six", (), (), "toy"),
    ]
    weights = Weights(contrast=1.0, part_contrast=1.0)
    loss = LandmarkLoss(model, weights, mini_batch=mini_batch)
    told = []
    for index in (0, 1):
        collator = LandmarkCollator(
            examples, model[0], None, {}, granularities=(4,), query_granularities=(4,)
        )
        batch = collator([{"index": index}])
        losses = loss([side for side in sides(batch) if side])
        assert torch.isfinite(torch.stack(list(losses.values())).sum())
        told.append(list(losses))
    assert told == [["contrast", "part_contrast"]] * 2


def test_a_run_that_diverges_stops_and_says_so(recipe, data, tmp_path):
    wild = replace(recipe, learning_rate=1e30, warmup_steps=0, clip=1e30)
    with pytest.raises(NonFiniteError, match=r"diverged \(losses: vector nan.*learning_rate"):
        train(wild, data, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "model").exists()


def test_a_whitening_that_could_not_be_made_is_told_before_the_run(recipe, data, tmp_path):
    few = replace(
        recipe,
        sources=(Source("pairs", pairs="pairs.jsonl", limit=3),),
        config=replace(recipe.config, granularity=8),
        whitening=Whitening(),
    )
    with pytest.raises(TrainingDataError, match=r"32 directions .* the 3 documents .* have [3-6];"):
        train(few, data, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_a_prompt_that_leaves_too_little_of_a_window_is_told_at_once(recipe, data, tmp_path):
    config = LandmarkConfig(granularity=4, max_length=16, document_prompt="one two three four ")
    recipe = replace(recipe, config=config, granularities=(8,))
    with pytest.raises(ConfigError, match=r"a window of 16 tokens .* prompt of 4, .* may need 13"):
        train(recipe, data, tmp_path / "run", device="cpu")


def test_training_reads_on_where_the_model_will_not(recipe, data, tmp_path):
    config = replace(recipe.config, max_length=20, on_overflow="error")
    recipe = replace(recipe, steps=2, config=config)
    folder = train(recipe, data, tmp_path / "run", device="cpu").folder
    assert json.loads((folder / "lmk_rag.json").read_text("utf-8"))  # saved as it was given
    with LandmarkEncoder(folder, device="cpu") as encoder:
        assert encoder.config.on_overflow == "error"


def test_a_name_to_freeze_that_is_not_there_is_refused(recipe):
    with pytest.raises(ConfigError, match=r"freeze has 'embedings', .* embeddings, encoder"):
        build_model(replace(recipe, freeze=("embedings",)))


def test_queries_alone_teach_nothing_without_queries(recipe, data, tmp_path):
    weights = Weights(vector=0, landmark=0, scores=1.0)
    texts = (Source("texts", texts="texts.jsonl"),)
    with pytest.raises(ConfigError, match="no source has a query"):
        train(replace(recipe, weights=weights, sources=texts), data, tmp_path, device="cpu")


def test_another_number_of_processes_does_not_go_on(recipe, data, tmp_path):
    recipe = replace(recipe, steps=3)
    train(recipe, data, tmp_path / "run", device="cpu")
    (mark,) = (tmp_path / "run" / "checkpoints").glob("checkpoint-*/complete")
    mark.write_text(json.dumps(json.loads(mark.read_text("utf-8")) | {"processes": 2}))
    with pytest.raises(ConfigError, match="begun by 2 processes and there are 1 now"):
        train(recipe, data, tmp_path / "run", device="cpu")


def test_two_processes_train_together(recipe, data, tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(replace(recipe, steps=4).to_json())
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone",
           "--no-python", sys.executable, "-c", "from lmk_rag.cli import main; main()",
           "train", str(path), "--data", str(data), "--output", str(tmp_path / "run"),
           "--device", "cpu", "--json"]  # fmt: skip
    done = subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    assert json.loads(done.stdout)["steps"] == 4  # said once
    assert [row["step"] for row in read_log(tmp_path / "run" / "log.jsonl")] == [1, 2, 3, 4]
    with LandmarkEncoder(tmp_path / "run" / "model", device="cpu") as encoder:
        assert encoder.encode_documents(["one two"])[0].vector.shape == (32,)


def test_mined_pairs_keep_what_is_no_valid_text(recipe, tmp_path, st_folder):
    pairs, mined = tmp_path / "odd.jsonl", tmp_path / "mined.jsonl"
    rows = [{"query": "one \ud83d", "positive": "one two"}, {"query": "zwölf", "positive": "six"}]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = ["mine", str(pairs), "-o", str(mined), "--model", recipe.model, "--device", "cpu"]
    result = CliRunner().invoke(app, run)
    assert result.exit_code == 0, result.output
    assert [pair.query for pair in read_pairs(mined)] == ["one \ud83d", "zwölf"]
    assert "zwölf" in mined.read_text("utf-8")


@pytest.mark.parametrize(
    "pairs",
    [
        [Pair("q1", "one two")],  # a last batch of one pair
        [Pair("same", "same")] * 4,  # every text identical
        [Pair(q, p) for q, p in [("q1", "p1"), ("q2", "p1"), ("q3", "p3"), ("q3", "p4")]],
    ],
    ids=["one-pair", "identical", "shared"],
)
def test_odd_batches_have_finite_losses_and_gradients(recipe, pairs):
    model = build_model(recipe)
    examples = from_pairs(pairs, "toy")
    collator = LandmarkCollator(
        examples,
        model[0],
        None,
        known_positives(examples),
        granularities=(4,),
        query_granularities=(4,),
    )
    batch = collator([{"index": i} for i in range(len(examples))])
    features = sides(batch)
    losses = LandmarkLoss(model, Weights(contrast=1.0, part_contrast=1.0))(features)
    total = torch.stack(list(losses.values())).sum()
    total.backward()
    assert torch.isfinite(total)
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


def test_a_part_without_a_landmark_neither_pulls_nor_pushes(recipe):
    model = build_model(recipe)
    parts = ("one", "two three four five six seven eight nine ten alpha beta gamma delta")
    text = " ".join(parts)
    examples = [
        Example(text, (Query("q0", 0), Query("q1", 1)), ((0, 3), (4, len(text))), "toy"),
        Example("plain text", (Query("q2", 0),), ((0, 10),), "toy"),
    ]
    losses = {}
    for queries in (examples[0].queries, examples[0].queries[1:]):
        chosen = [replace(examples[0], queries=queries), examples[1]]
        collator = LandmarkCollator(
            chosen, model[0], None, {}, granularities=(8,), query_granularities=(4,),
            boundaries=("token",),
        )  # fmt: skip
        batch = collator([{"index": 0}, {"index": 1}])
        assert 0 not in batch["document_row_parts"]  # the first landmark reaches far beyond "one"
        loss = LandmarkLoss(model, Weights(contrast=0.0, part_contrast=1.0))
        losses[len(queries)] = loss(sides(batch))["part_contrast"]
    assert torch.allclose(losses[2], losses[1])


def test_a_blocked_text_is_in_no_group(recipe):
    model = build_model(recipe)
    pairs = [Pair("q1", "p1"), Pair("q2", "p1 too"), Pair("q3", "p3")]
    examples = from_pairs(pairs, "toy")
    known = {"q1": {"p1", "p1 too"}, "q2": {"p1", "p1 too"}, "q3": {"p3"}}
    collator = LandmarkCollator(
        examples, model[0], None, known, granularities=(4,), query_granularities=(4,)
    )
    query, document = sides(collator([{"index": i} for i in range(3)]))
    width = 32
    query["teacher_vectors"] = torch.randn(3, width)
    document["teacher_vectors"] = torch.randn(3, width)
    document["teacher_rows"] = torch.randn(*document["row_parts"].shape, width)
    loss = LandmarkLoss(model, Weights(vector=0, landmark=0, scores=0, contrast=0, group=1.0))
    vectors = model(dict(document))["sentence_embedding"].detach().requires_grad_()
    queries = model(dict(query))["sentence_embedding"].detach()
    rows = torch.zeros(0, width)
    row_parts = torch.zeros(0, dtype=torch.long)
    loss._query_objectives(query, document, queries[:], vectors, rows, row_parts)[
        "group"
    ].backward()
    only_first = loss._query_objectives(
        {k: v[:1] for k, v in query.items()}, document, queries[:1], vectors, rows, row_parts
    )["group"]
    (gradient,) = torch.autograd.grad(only_first, vectors)
    assert not gradient[1].any()  # what also answers q1 is neither pulled nor pushed
    assert gradient[2].any()


def test_what_is_frozen_stays(recipe, data, tmp_path):
    recipe = replace(recipe, steps=2, freeze=("embeddings", "pooler"), saved_dtype="float32")
    before = build_model(recipe)[0].auto_model.state_dict()
    before = {name: value.clone() for name, value in before.items()}
    train(recipe, data, tmp_path / "run", device="cpu")
    from safetensors.torch import load_file

    after = load_file(tmp_path / "run" / "model" / "model.safetensors")
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed
    assert not [name for name in changed if name.startswith(("embeddings", "pooler"))]


def test_a_rotary_model_trains_and_reads_far(recipe, data, load, tmp_path):
    config = LandmarkConfig(granularity=4, max_length=200, overlap=4)
    recipe = replace(recipe, steps=2, rotary=True, config=config)
    folder = train(recipe, data, tmp_path / "run", device="cpu").folder
    with load(folder) as encoder:
        assert encoder.max_length == 200
        assert encoder.encode_documents(["one two three four " * 30])[0].n_windows == 1


def test_retromae_pretrains(recipe, data, load, tmp_path):
    recipe = replace(
        recipe,
        objective="retromae",
        sources=(Source("long", texts="texts.jsonl"),),
        steps=10,
        learning_rate=3e-3,
    )
    folder = train(recipe, data, tmp_path / "run", device="cpu").folder
    losses = [loss for _, loss in curve(tmp_path / "run")]
    assert losses[-1] < losses[0]
    with load(folder) as encoder:
        assert encoder.pooling == "lmk"


def test_masking_spares_everything_but_content():
    torch.manual_seed(0)
    ids = torch.arange(20).reshape(2, 10) + 100
    content = torch.zeros(2, 10, dtype=torch.bool)
    content[:, 2:6] = True
    masked, labels = mask_tokens(ids, content, 1.0, 4)
    assert (masked[content] == 4).all()
    assert torch.equal(masked[~content], ids[~content])
    assert torch.equal(labels[content], ids[content])
    assert (labels[~content] == -100).all()


def test_small_updates_are_not_lost_in_bfloat16():
    plain = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    kept = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    options = {"lr": 1e-4, "betas": (0.9, 0.999), "weight_decay": 0.0}
    naive, master = torch.optim.AdamW([plain], **options), MasterWeights([kept], **options)
    for _ in range(100):
        for parameter, optimizer in ((plain, naive), (kept, master)):
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
    assert plain.item() == 1.0  # each step rounds back
    assert kept.item() == pytest.approx(0.99, abs=0.004)


def test_negatives_are_what_the_retriever_finds_and_no_known_answer(bert):
    pairs = [
        Pair("pump", "the pump stops"),
        Pair("pump", "the pump closes"),
        Pair("valve", "the valve closes"),
        Pair("text", "a text of medium length"),
    ]
    mined = mine_negatives(pairs, bert, n=2, depth=4, ceiling=1.0)
    assert [(pair.query, pair.positive) for pair in mined] == [
        (pair.query, pair.positive) for pair in pairs
    ]
    for pair in mined[:2]:
        assert set(pair.negatives) <= {"the valve closes", "a text of medium length"}
    assert any(pair.negatives for pair in mined)
    assert all(pair.positive not in pair.negatives for pair in mined)
    with pytest.raises(ConfigError, match="ceiling is 0"):
        mine_negatives(pairs, bert, ceiling=0)


def test_the_commands_train_and_mine(recipe, data, tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(replace(recipe, steps=1).to_json())
    run = ["train", str(path), "--data", str(data), "--output", str(tmp_path / "run"),
           "--device", "cpu", "--json"]  # fmt: skip
    result = CliRunner().invoke(app, run)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["finished"] is True
    assert told["steps"] == 1
    mined = tmp_path / "mined.jsonl.gz"
    run = ["mine", str(data / "pairs.jsonl"), "-o", str(mined), "--model", told["folder"],
           "--device", "cpu", "-n", "2"]  # fmt: skip
    result = CliRunner().invoke(app, run)
    assert result.exit_code == 0, result.output
    assert "30 pairs" in result.stdout
    with gzip.open(mined, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert [row["query"] for row in rows] == [
        pair.query for pair in read_pairs(data / "pairs.jsonl")
    ]
    assert any(row["negatives"] for row in rows)
    blocked = tmp_path / "pairs.jsonl" / "mined.jsonl"  # a file is no folder
    result = CliRunner().invoke(app, [*run[:2], "-o", str(blocked), "--model", "nowhere"])
    assert result.exit_code == 1
    assert "can't be written" in result.stderr  # told before a model is even looked for


def test_a_missing_recipe_is_one_line(tmp_path):
    run = ["train", str(tmp_path / "no.json"), "--data", ".", "--output", str(tmp_path / "run")]
    result = CliRunner().invoke(app, run)
    assert result.exit_code == 1
    assert "no.json could not be read" in result.stderr
