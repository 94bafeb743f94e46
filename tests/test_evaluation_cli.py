"""`lmk-rag eval`, end to end on a set of four texts and a random model."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from lmk_rag.cli import app
from lmk_rag.evaluation import read_trec
from lmk_rag.evaluation.plot import curves
from lmk_rag.evaluation.results import Results
from lmk_rag.evaluation.tables import group_rows, markdown

for name in ("ir_measures", "bm25s", "matplotlib"):
    pytest.importorskip(name, reason="the extra eval is not installed")

TEXTS = [
    "The pump of station V-7 stops when the valve closes. " * 6,
    "Write between the parts; then leave the rest alone. " * 5,
    "Long text with many words, padding test words. " * 12,
    "Real text about pumps! Is it?",
]
QUERIES = ["the pump of station V-7", "leave the rest alone", "text about pumps"]


@pytest.fixture
def folder(tmp_path, monkeypatch, model_folder):
    """The set `toy` in the current folder; the random model is ours and the base."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMK_RAG_MODEL", str(model_folder("bert")))
    make_set(tmp_path / "toy")
    return tmp_path


def make_set(folder):
    folder.mkdir()
    for name, texts, letter in (("corpus", TEXTS, "d"), ("queries", QUERIES, "q")):
        lines = [json.dumps({"_id": f"{letter}{i}", "text": t}) for i, t in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    rows = ["query-id\tcorpus-id\tscore", "q0\td0\t1", "q1\td1\t1", "q2\td3\t1"]
    (folder / "qrels.tsv").write_text("\n".join(rows))


def run(*args, code=0):
    result = CliRunner().invoke(app, ["eval", *map(str, args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.stderr
    return result


METHODS = "bm25,cut@32,landmarks,retriever,chunk-max@16,chunk-max@16+bm25"


def test_a_run_leaves_tables_json_runs_and_a_plot(folder, st_folder, model_folder):
    base = st_folder("bert")
    result = run(
        "toy", "--methods", METHODS, "--base", base, "--output", "out", "--cache", "cache",
        "--granularity", 8, "--overlap", 16, "--json",
    )  # fmt: skip
    tree = json.loads(result.stdout)
    assert tree == json.loads((folder / "out/results.json").read_text("utf-8"))
    of = tree["sets"]["toy"]
    assert (of["documents"], of["queries"], of["unjudged"]) == (4, 3, 0)
    assert list(of["methods"]) == METHODS.split(",")
    assert of["methods"]["bm25"]["scores"] == {"nDCG@10": 1.0, "R@100": 1.0, "RR": 1.0}
    settings = of["methods"]["landmarks"]["settings"]
    assert (settings["granularity"], settings["overlap"], settings["window"]) == (8, 16, 64)
    assert settings["model"] == model_folder("bert").name
    assert of["methods"]["cut@32"]["settings"] == {"base": base.name}
    assert set(of["encodings"]) == {"cut@32", "ours", "pieces@16"}
    assert of["encodings"]["ours"]["tokens"] > 0
    pairs = [(row["first"], row["second"]) for row in of["significance"]]
    assert len(pairs) == 6
    assert ("landmarks", "bm25") in pairs
    assert ("retriever", "chunk-max@16+bm25") in pairs
    text = (folder / "out/results.md").read_text("utf-8")
    assert "| bm25 | 1.000 | 1.000 |\n" in text
    assert str(folder) not in text + result.stdout
    stored = read_trec(folder / "out/runs/toy/chunk-max@16+bm25.trec")
    assert set(stored.scores) == {"q0", "q1", "q2"}
    assert not (folder / "out/quality_by_length.png").exists()  # too few queries for a point


def test_runs_are_merged_and_a_limit_is_another_set(folder):
    run("toy", "--methods", "bm25,landmarks", "--output", "out", "--granularity", 8)
    run("toy", "--methods", "landmarks", "--output", "out", "--granularity", 8, "--label", "new")
    run("toy", "--methods", "bm25", "--output", "out", "--limit-docs", 2)
    tree = json.loads((folder / "out/results.json").read_text("utf-8"))
    assert list(tree["sets"]) == ["toy", "toy (2 of 4 documents, 2 of 3 queries)"]
    assert list(tree["sets"]["toy"]["methods"]) == ["bm25", "landmarks", "landmarks:new"]
    assert set(tree["sets"]["toy"]["encodings"]) == {"ours", "ours:new"}
    lines = (folder / "out/results.md").read_text("utf-8").splitlines()
    assert any(
        line.startswith("| landmarks:new | ") and line.endswith(" |  |  |") for line in lines
    )


def test_methods_of_earlier_runs_are_compared_with(folder):
    run("toy", "--methods", "bm25,landmarks", "--output", "out", "--granularity", 8)
    run("toy", "--methods", "document", "--output", "out", "--granularity", 8, "--label", "new")
    tree = json.loads((folder / "out/results.json").read_text("utf-8"))
    rows = tree["sets"]["toy"]["significance"]
    assert {(r["first"], r["second"]) for r in rows} == {
        ("landmarks", "bm25"),
        ("document:new", "bm25"),
    }
    result = CliRunner().invoke(app, ["eval", "toy", "--label", "a:b"])
    assert result.exit_code == 2
    assert "--label is a word" in result.stderr


def test_a_call_without_runs_keeps_what_it_can_not_compare(folder):
    def compared():
        tree = json.loads((folder / "out/results.json").read_text("utf-8"))
        return sorted((r["first"], r["second"]) for r in tree["sets"]["toy"]["significance"])

    both = [("document", "bm25"), ("landmarks", "bm25")]
    common = ("--output", "out", "--granularity", 8)
    run("toy", "--methods", "bm25,landmarks,document", *common)
    assert compared() == both
    run("toy", "--methods", "document", *common, "--no-runs")
    assert compared() == both
    # The run of the result that was replaced is gone: nothing old is compared under its name.
    assert not (folder / "out/runs/toy/document.trec").exists()
    run("toy", "--methods", "landmarks", *common)
    assert compared() == both
    (folder / "out/runs/toy/bm25.trec").unlink()
    run("toy", "--methods", "landmarks", *common)
    assert compared() == [("document", "bm25")]  # of before; landmarks has nobody to compare with


def test_groups_of_methods_that_counted_other_tokens_keep_their_columns():
    def group(name, score):
        return {"name": name, "queries": 1, "scores": {"nDCG@10": score}}

    tree = {
        "methods": {
            "bm25": {"by_length": [group("512-1024", 0.5), group("16384+", 0.25)]},
            "document": {"by_length": [group("256-512", 0.125), group("512-1024", 1.0)]},
        }
    }
    assert group_rows(tree, "by_length") == [
        (
            ["nDCG@10", "256-512 (1)", "512-1024 (1)", "16384+ (1)"],
            [("bm25", ["", "0.500", "0.250"]), ("document", ["0.125", "1.000", ""])],
        )
    ]


def test_answers_and_pass_keys_are_shown(folder, st_folder):
    for name in ("corpus.jsonl", "queries.jsonl", "qrels.tsv"):
        path = folder / "toy" / name
        text = path.read_text()
        for i in range(4):
            text = text.replace(f"d{i}", f"L{2 ** (8 + i // 2)}-{i}")
        path.write_text(text)
    answers = "query-id\tcorpus-id\tstart\tend\nq0\tL256-0\t4\t8\n"
    (folder / "toy/answers.tsv").write_text(answers)
    methods = "retriever,chunk-max@16"
    base = st_folder("bert")
    result = run("toy", "--methods", methods, "--base", base, "--granularity", 8, "-o", "out")
    assert "toy: answers within a budget" in result.stdout
    assert "256 tokens" in result.stdout
    assert "256 (2)" in result.stdout
    assert "512 (1)" in result.stdout
    text = (folder / "out/results.md").read_text("utf-8")
    assert "| chunk-max@16 | pieces | " in text
    assert "| Success@1 | 256 (2) | 512 (1) |" in text


def test_tables_are_printed_with_the_mean_of_the_sets(folder):
    make_set(folder / "second")
    result = run("toy", "second", "--methods", "bm25")
    assert "toy: 4 documents, 3 queries" in result.stdout
    assert "mean of 2 sets" in result.stdout
    assert result.stdout.count("bm25") == 3
    assert "toy: bm25 1.000 nDCG@10" in result.stderr


def test_many_queries_make_a_plot(folder):
    queries = [json.dumps({"_id": f"q{i}", "text": "pump"}) for i in range(12)]
    (folder / "toy/queries.jsonl").write_text("\n".join(queries))
    rows = ["query-id\tcorpus-id\tscore", *(f"q{i}\td0\t1" for i in range(12))]
    (folder / "toy/qrels.tsv").write_text("\n".join(rows))
    run("toy", "--methods", "landmarks", "--output", "out", "--granularity", 8)
    assert (folder / "out/quality_by_length.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["toy", "--methods", "nonsense"], 2, "there is no method 'nonsense'"),
        (["nowhere"], 1, "error: there is no folder nowhere"),
        (["toy", "toy"], 1, "error: two folders are called toy"),
        (["toy", "--base", "./nowhere"], 1, "error: there is no model folder at './nowhere'"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_encoded(folder, args, code, message):
    assert message in " ".join(run(*args, code=code).stderr.replace("│", " ").split())


def test_figures_of_a_set_that_changed_are_not_mixed(folder):
    run("toy", "--methods", "bm25", "--output", "out")
    before = (folder / "out/results.json").read_text("utf-8")
    with (folder / "toy/qrels.tsv").open("a") as rows:
        rows.write("\nq0\td3\t1")
    result = run("toy", "--methods", "landmarks", "--granularity", 8, "--output", "out", code=1)
    told = " ".join(result.stderr.split())
    assert "figures of another set called 'toy', or of this one before it was changed" in told
    assert (folder / "out/results.json").read_text("utf-8") == before


def test_an_id_that_runs_can_not_carry_is_told_before_anything_is_encoded(folder):
    path = folder / "toy/corpus.jsonl"
    path.write_text(path.read_text().replace('"d2"', '"user guide.md"'))
    result = run("toy", "--methods", "landmarks", "--output", "out", code=1)
    assert "the id 'user guide.md' holds white space" in " ".join(result.stderr.split())
    assert not (folder / "out/results.json").exists()
    assert "landmarks" in run("toy", "--methods", "landmarks", "--granularity", 8).stdout
    arguments = ("toy", "--methods", "landmarks", "--granularity", 8, "--output", "out")
    for _ in range(2):  # the second time from what is there
        assert "landmarks" in run(*arguments, "--no-runs").stdout
    assert "landmarks" in (folder / "out/results.md").read_text()
    assert not (folder / "out/runs").exists()


def test_curves_are_of_one_set_and_leave_out_small_groups():
    def group(name, queries, value):
        return {"name": name, "queries": queries, "scores": {"nDCG@10": value}}

    entry = {"by_length": [group("512-1024", 10, 0.5), group("0-256", 12, 0.7)]}
    few = {"by_length": [group("16384+", 9, 0.1)]}
    tree = {"methods": {"document": entry, "bm25": few, "cut@512": {"by_length": []}}}
    assert curves(tree) == {"document": [(0, 0.7), (512, 0.5)]}


def test_results_of_another_form_are_not_overwritten(folder):
    (folder / "out").mkdir()
    (folder / "out/results.json").write_text('{"mine": 1}')
    result = run("toy", "--methods", "bm25", "--output", "out", code=1)
    assert "does not hold results of this version" in result.stderr
    assert (folder / "out/results.json").read_text() == '{"mine": 1}'


def test_a_missing_extra_is_named_at_once(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    result = run("toy", "--methods", "bm25", code=1)
    assert "BM25 needs `bm25s`; install it with: pip install 'lmk-rag[eval]'" in result.stderr


def test_importing_the_evaluation_imports_nothing_heavy():
    code = "import sys, lmk_rag.evaluation, lmk_rag.cli; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "bm25s", "ir_measures", "matplotlib", "mteb"}.isdisjoint(found.stdout.split())


def test_no_results_are_a_table_without_rows():
    assert "| method | mean |" in markdown(Results().tree)
