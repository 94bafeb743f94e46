import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import lmk_rag
from lmk_rag.cli import app

PUMPS = "# Pumps\n\nThe pump of station V-7 stops.\nWhen the valve closes, nobody restarts it.\n"
CODE = "def encode(text):\n    return [token for token in text.split() if token]\n"
PAGE = "<html><head><script>x = 1</script></head>\n<body><p>Salt &amp; pepper</p></body></html>\n"
FILES = {"pumps.md": PUMPS, "src/code.py": CODE, "page.html": PAGE}


def lines(text):
    return text.strip().split("\n")


@pytest.fixture
def project(tmp_path, monkeypatch, model_folder):
    """A folder with `docs/` in it as the current one; a random model; the default store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMK_RAG_MODEL", str(model_folder("bert")))
    monkeypatch.delenv("LMK_RAG_STORE", raising=False)
    for name, text in FILES.items():
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def run(*args, **options):
    """Run a command in this process."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def run_json(*args, code=0, **options):
    result = run(*args, "--json", **options)
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


COMMAND = [sys.executable, "-c", "from lmk_rag.cli import main; main()"]


def start(*args, **options):
    """Start a command in a process of its own."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen([*COMMAND, *map(str, args)], **options)


def counts(report):
    return {k: len(v) for k, v in report.items() if isinstance(v, list) and v}


# --- index -------------------------------------------------------------------------------------


def test_a_second_run_touches_only_what_changed(project):
    report = run_json("index", "docs")
    root = (project / "docs").as_posix()
    expected = [f"{root}/page.html", f"{root}/pumps.md", f"{root}/src/code.py"]
    assert (report["added"], report["errors"]) == (expected, [])
    assert counts(run_json("index", "docs")) == {"unchanged": 3}
    os.utime(project / "docs/pumps.md", (1, 1))
    (project / "docs/page.html").write_text(PAGE + "<p>Thyme</p>")
    (project / "docs/new.txt").write_text("new")
    again = run_json("index", "docs")
    assert counts(again) == {"added": 1, "updated": 1, "unchanged": 2}
    assert again["updated"] == [f"{root}/page.html"]


def test_the_summary_is_one_line(project):
    (project / "docs/blob.dat").write_bytes(b"\0")
    (project / "docs/empty.txt").write_text(" \n")
    result = run("index", "docs")
    assert result.exit_code == 0
    (line,) = lines(result.stdout)
    assert line.startswith(".lmk-rag: 3 added, 1 blank, 1 binary file left out (")


def test_a_store_made_elsewhere_knows_the_same_files(project, monkeypatch):
    run_json("index", "docs")
    monkeypatch.chdir(project / "docs/src")
    report = run_json("index", "..", "--store", project / ".lmk-rag")
    assert counts(report) == {"unchanged": 3}


def test_prune_removes_what_is_gone_below_the_path_and_nothing_else(project):
    (project / "other").mkdir()
    (project / "other/a.txt").write_text("elsewhere")
    (project / "docs-2").mkdir()
    (project / "docs-2/b.txt").write_text("a name that begins like docs")
    run_json("index", "docs", "other", "docs-2")
    run_json("index", "-", "--id", "note", input="from a pipe")
    for path in ("docs/pumps.md", "other/a.txt", "docs-2/b.txt"):
        (project / path).unlink()
    assert counts(run_json("index", "docs")) == {"unchanged": 2}
    report = run_json("index", "docs", "--prune")
    assert report["removed"] == [(project / "docs/pumps.md").as_posix()]
    kept = [d["document_id"] for d in run_json("documents")]
    assert kept == [
        (project / name).as_posix()
        for name in ("docs-2/b.txt", "docs/page.html", "docs/src/code.py", "other/a.txt")
    ] + ["note"]


def test_a_file_that_is_blank_now_is_told_and_pruned(project):
    run_json("index", "docs")
    (project / "docs/pumps.md").write_text("\n")
    pumps = (project / "docs/pumps.md").as_posix()
    report = run_json("index", "docs")
    assert (report["blank"], report["stale"], report["removed"]) == ([pumps], [pumps], [])
    told = run("index", "docs")
    assert "pumps.md: blank now; its earlier text stays" in told.stderr
    assert pumps in [d["document_id"] for d in run_json("documents")]
    report = run_json("index", "docs", "--prune")
    assert (report["blank"], report["stale"], report["removed"]) == ([pumps], [], [pumps])
    assert pumps not in [d["document_id"] for d in run_json("documents")]
    again = run_json("index", "docs", "--prune")
    assert (again["stale"], again["removed"]) == ([], [])


def test_a_store_of_another_default_model_is_told_what_to_do(project, monkeypatch):
    monkeypatch.setattr("lmk_rag.checkpoint.DEFAULT_NAME", "default (lmk-minilm-l6-v1)")
    monkeypatch.delenv("LMK_RAG_MODEL")
    run_json("index", "docs/pumps.md")
    monkeypatch.undo()
    monkeypatch.chdir(project)
    for command in (["index", "docs"], ["search", "pump"]):
        result = run(*command)
        assert result.exit_code == 1
        assert "'default (lmk-minilm-l6-v1)', which this version does not have" in result.stderr


def test_prune_of_a_path_that_is_gone_itself(project):
    run_json("index", "docs")
    (project / "docs/pumps.md").unlink()
    report = run_json("index", "docs/pumps.md", "--prune")
    assert report["removed"] == [(project / "docs/pumps.md").as_posix()]
    typo = run_json("index", "docs/pumps.md", "--prune", code=1)
    assert typo["removed"] == []
    assert [e["path"] for e in typo["errors"]] == ["docs/pumps.md"]


def test_prune_keeps_what_could_not_be_read(project):
    run_json("index", "docs")
    (project / "docs/pumps.md").write_bytes(b"caf\xe9")
    report = run_json("index", "docs", "--prune", code=1)
    assert report["removed"] == []
    assert len(run_json("documents")) == 3


def test_what_can_not_be_read_is_reported_and_the_rest_indexed(project):
    (project / "docs/latin.txt").write_bytes(b"one\ncaf\xe9")
    (project / "docs/out").symlink_to("/etc")
    result = run("index", "docs", "nowhere", "*.nothing")
    assert result.exit_code == 1
    assert "3 added" in result.stdout
    undecodable = "not valid utf-8 (byte 0xe9 on line 2); pass its --encoding, "
    undecodable += "for instance latin-1"
    missing = "no such file or folder, and no file matches it as a pattern"
    assert sorted(lines(result.stderr)[-4:]) == [
        f"error: *.nothing: {missing}",
        f"error: docs/latin.txt: {undecodable}",
        f"error: docs/out: a link out of {project}/docs, to /etc: not followed",
        f"error: nowhere: {missing}",
    ]


def test_many_files_with_one_problem_take_a_few_lines(project):
    for i in range(50):
        (project / f"docs/{i}.txt").write_bytes(b"caf\xe9")
    result = run("index", "docs")
    assert len([line for line in lines(result.stderr) if line.startswith("error:")]) == 4
    assert lines(result.stderr)[-1].startswith("error: and 47 more files: not valid utf-8")


def test_standard_input_under_a_name(project):
    report = run_json("index", "-", "--id", "mail/1", input="The pump stops.")
    assert report["added"] == ["mail/1"]
    (hit,) = run_json("search", "pump")
    assert (hit["document_id"], hit["path"], hit["text"]) == ("mail/1", None, "The pump stops.")


def test_a_pattern_in_quotes(project):
    report = run_json("index", "docs/**/*.py")
    assert report["added"] == [(project / "docs/src/code.py").as_posix()]


def test_pdf_without_the_extra_says_what_to_install(project, monkeypatch):
    monkeypatch.setitem(sys.modules, "markitdown", None)  # as where it is not installed
    (project / "docs/a.pdf").write_bytes(b"%PDF-1.4")
    report = run_json("index", "docs", code=1)
    assert len(report["added"]) == 3
    reason = (
        "reading PDF and Office files needs `markitdown`; install it with: "
        "pip install 'lmk-rag[files]'"
    )
    assert report["errors"] == [{"path": f"{project}/docs/a.pdf", "reason": reason}]


def test_nothing_to_index_makes_no_store(project):
    (project / "empty").mkdir()
    result = run("index", "empty")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "nothing to index" in result.stdout
    assert not (project / ".lmk-rag").exists()


@pytest.mark.parametrize(
    "args",
    [
        ["index"],
        ["index", "docs", "--id", "x"],
        ["index", "-", "--id", ""],
        ["index", "docs", "--encoding", "utf-9"],
        ["index", "docs", "--store", "docs"],
        ["index", "docs", "--store", ":memory:"],
        ["index", "docs", "--granularity", "0"],
        ["index", "docs", "--boundary", "page"],
        ["index", "docs", "--no-such-option"],
        ["search"],
        ["search", "x", "-k", "0"],
        ["search", "x", "--where", "type"],
        ["search", "x", "--mode", "best"],
        ["delete"],
        ["encode", "docs"],
        ["encode", "docs", "--json", "-o", "x.npz"],
        ["encode", "docs", "-o", "no-folder/x.npz"],
        ["no-such-command"],
    ],
)
def test_wrong_usage_is_2_and_makes_no_store(project, args):
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Error: " in result.stderr or "Usage: " in result.stderr
    assert not (project / ".lmk-rag").exists()
    assert not (project / "docs/meta.json").exists()


# --- settings ----------------------------------------------------------------------------------


def test_later_commands_use_the_settings_of_the_collection(project, monkeypatch, model_folder):
    options = ["--granularity", "8", "--boundary", "sentence", "--max-length", "40"]
    run_json("index", "docs", *options)
    monkeypatch.delenv("LMK_RAG_MODEL")  # the collection knows the model, too
    assert len(run_json("search", "pump")) == 3
    assert counts(run_json("index", "docs")) == {"unchanged": 3}
    stored = {d["document_id"]: d["n_landmarks"] for d in run_json("documents")}
    inspected = run_json("inspect", "docs/pumps.md", "--model", model_folder("bert"), *options)
    assert stored[inspected["document_id"]] == inspected["n_landmarks"] > 1


def test_other_settings_than_the_collection_has_are_refused_in_a_line(project):
    run_json("index", "docs", "--granularity", "8")
    result = run("index", "docs", "--granularity", "16")
    assert result.exit_code == 1
    assert "granularity is 8 there and 16 here" in lines(result.stderr)[-1]
    assert lines(result.stderr)[-1].startswith("error: collection 'documents' ")
    assert len(run_json("documents")) == 3


def test_a_setting_changes_only_itself_of_what_the_checkpoint_saved(project, model_folder, load):
    config = lmk_rag.LandmarkConfig(granularity=4, boundary="sentence", overlap=0)
    load(model_folder("bert"), config).save(project / "saved")
    found = run_json("inspect", "docs/pumps.md", "--model", "saved", "--max-length", "20")
    assert (found["granularity"], found["boundary"], found["max_length"]) == (4, "sentence", 20)


def test_a_warning_is_a_line_and_comes_once(project):
    result = run("inspect", "docs/pumps.md", "--granularity", "8")
    warnings = [line for line in lines(result.stderr) if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "was not trained with landmarks" in warnings[0]


def test_a_model_that_is_not_there_is_an_error_in_a_line(project):
    result = run("index", "docs", "--model", "./no-model")
    assert (result.exit_code, result.stdout) == (1, "")
    assert lines(result.stderr) == ["error: there is no model folder at './no-model'"]


# --- search ------------------------------------------------------------------------------------


def test_json_passages_are_cut_from_the_file_to_the_character(project):
    text = "".join(f"Line {i} about pumps and valves.\r\n" for i in range(40))
    (project / "docs/long.txt").write_text(text, newline="")
    run_json("index", "docs", "--granularity", "8")
    found = run_json("search", "pumps", "--passage-tokens", "20", "--per-document", "3", "-k", "4")
    assert len(found) == 4
    for hit in found:
        content = Path(hit["path"]).read_bytes().decode()
        if hit["metadata"]["type"] == "text":
            assert content[hit["start"] : hit["end"]] == hit["text"]
        assert hit["line"] == content.count("\n", 0, hit["start"]) + 1
        assert hit["start"] <= hit["best_start"] < hit["best_end"] <= hit["end"]
        assert hit["document_id"] == f"{project}/{hit['path']}"
    assert [h["score"] for h in found] == sorted((h["score"] for h in found), reverse=True)


def test_the_table_shows_place_score_and_passage(project):
    run("index", "docs/pumps.md", "--granularity", "32")  # one landmark, so the best one
    result = run("search", "the", "pump", "stops")
    first, *rest = lines(result.stdout)
    rank, place, score = first.split()
    assert (rank, place) == ("1", "docs/pumps.md:1")
    assert -1 <= float(score) <= 1
    assert "The pump of station V-7 stops." in result.stdout
    assert all(line == line.rstrip() for line in rest)


def test_the_best_stretch_is_highlighted_on_a_terminal(project, monkeypatch):
    (project / "one.txt").write_text("valve " * 8 + "pump " * 8)
    run("index", "one.txt", "--granularity", "8", "--boundary", "token")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    result = run("search", "pump pump pump pump")
    (hit,) = run_json("search", "pump pump pump pump")
    best = (project / "one.txt").read_text()[hit["best_start"] : hit["best_end"]]
    assert f"\x1b[1;33m{best.strip()}" in result.stdout


def test_markup_and_escape_sequences_in_a_document_are_only_text(project):
    (project / "odd.txt").write_text("A [bold]pump[/bold] [link=x] \x1b[31mred\x07 \\[x] :smile:")
    run("index", "odd.txt")
    result = run("search", "pump")
    assert "A [bold]pump[/bold] [link=x] \ufffd[31mred\ufffd \\[x] :smile:" in result.stdout


def test_html_is_shown_as_it_reads_and_cited_by_its_own_line(project):
    run("index", "docs/page.html")
    result = run("search", "salt")
    assert "docs/page.html:2 " in result.stdout
    assert "Salt & pepper" in result.stdout
    assert "script" not in result.stdout


def test_a_condition_on_metadata(project):
    run("index", "docs")
    assert [h["path"] for h in run_json("search", "x", "--where", "type=html")] == [
        "docs/page.html"
    ]
    assert run_json("search", "x", "--where", "type=html", "--where", "path=pumps.md") == []
    assert run_json("search", "x", "--where", "type=7") == []


def test_nothing_found_is_no_error(project):
    run("index", "docs")
    result = run("search", "x", "--where", "path=none")
    assert (result.exit_code, result.stdout) == (0, "")
    assert lines(result.stderr)[-1] == "nothing found"


@pytest.mark.parametrize("command", [["search", "x"], ["documents"], ["delete", "x"]])
def test_a_collection_that_is_not_there_is_an_error_and_is_not_made(project, command):
    result = run(*command, "--store", "docs")
    assert (result.exit_code, result.stdout) == (1, "")
    assert lines(result.stderr) == [
        "error: there is no collection 'documents' in docs; make it with: lmk-rag index PATH"
    ]
    assert sorted(p.name for p in (project / "docs").iterdir()) == ["page.html", "pumps.md", "src"]
    run("index", "docs")
    assert run(*command, "--collection", "other").exit_code == 1


# --- documents and delete ----------------------------------------------------------------------


def test_documents_lists_what_is_stored(project):
    run("index", "docs", "--granularity", "8")
    result = run("documents")
    assert result.stdout.split()[:3] == ["tokens", "landmarks", "document"]
    places = [line.split()[-1] for line in lines(result.stdout)[1:]]
    assert places == ["docs/page.html", "docs/pumps.md", "docs/src/code.py"]
    assert result.stderr.startswith("3 documents, ")
    listed = run_json("documents")
    assert [sorted(d) for d in listed] == [
        ["document_id", "metadata", "n_landmarks", "n_tokens", "revision"]
    ] * 3


def test_delete_by_path_and_by_id(project):
    run("index", "docs")
    run("index", "-", "--id", "docs/note", input="note")
    result = run("delete", "docs/pumps.md", "docs/note", "docs/none.md")
    assert (result.exit_code, result.stdout) == (0, "deleted 2 documents\n")
    assert result.stderr == "not in the store: docs/none.md\n"
    assert (project / "docs/pumps.md").exists()
    assert {h["path"] for h in run_json("search", "pump")} == {"docs/page.html", "docs/src/code.py"}
    again = run_json("delete", "docs/pumps.md")
    assert again == {"deleted": [], "unknown": ["docs/pumps.md"]}


def test_delete_a_folder_only_when_asked_to(project):
    run("index", "docs")
    assert run_json("delete", "docs") == {"deleted": [], "unknown": ["docs"]}
    report = run_json("delete", "-r", "docs/src")
    assert report == {"deleted": [f"{project}/docs/src/code.py"], "unknown": []}
    assert len(run_json("delete", "--recursive", "docs")["deleted"]) == 2
    assert run_json("documents") == []


# --- inspect and encode ------------------------------------------------------------------------


def test_inspect_shows_every_landmark(project):
    found = run_json("inspect", "docs/pumps.md", "--granularity", "8", "--max-length", "20")
    rows = found["landmarks"]
    assert [row["landmark"] for row in rows] == list(range(found["n_landmarks"]))
    assert [row["start"] for row in rows][1:] == [row["end"] for row in rows][:-1]
    assert (rows[0]["start"], rows[-1]["end"]) == (0, len(PUMPS))
    assert sum(row["tokens"] for row in rows) == found["n_tokens"]
    assert all(row["line"] == PUMPS.count("\n", 0, row["start"]) + 1 for row in rows)
    windows = [row["window"] for row in rows]
    assert windows == sorted(windows)
    assert windows[-1] == found["n_windows"] - 1 > 0
    table = run("inspect", "docs/pumps.md", "--granularity", "8", "--max-length", "20")
    assert len(lines(table.stdout)) == len(rows) + 1
    assert f"{found['n_tokens']} tokens, {len(rows)} landmarks" in table.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["docs"], "error: docs: 3 files; inspect takes one"),
        (["none.txt"], "error: none.txt: no such file"),
        (["blob"], "error: blob: not a text file (it holds NUL bytes)"),
    ],
)
def test_inspect_of_no_single_text_file(project, args, message):
    (project / "blob").write_bytes(b"\0")
    result = run("inspect", *args)
    assert (result.exit_code, result.stdout, lines(result.stderr)) == (1, "", [message])


def test_encode_writes_arrays_that_need_no_pickle(project, model_folder, load):
    # The oracle reads in float32; where there are bfloat16 units, auto would not.
    options = ("--granularity", "8", "--dtype", "float32")
    result = run("encode", "docs", "none.txt", "-o", "x.npz", *options)
    assert result.exit_code == 1
    assert lines(result.stderr)[-1] == "error: none.txt: no such file or folder"
    config = lmk_rag.LandmarkConfig(granularity=8)
    with np.load("x.npz", allow_pickle=False) as archive:
        ids = [f"{project}/docs/{name}" for name in ("page.html", "pumps.md", "src/code.py")]
        assert archive["ids"].tolist() == ids
        expected = load(model_folder("bert"), config).encode_documents([PUMPS])[0]
        first, last = archive["first"][1:3]
        np.testing.assert_allclose(archive["vectors"][1], expected.vector, atol=1e-5)
        np.testing.assert_allclose(archive["landmarks"][first:last], expected.landmarks, atol=1e-5)
        np.testing.assert_array_equal(archive["spans"][first:last], expected.spans)
        assert archive["first"][-1] == len(archive["landmarks"]) == len(archive["landmark_tokens"])
    (document,) = run_json("encode", "docs/pumps.md", *options)
    assert document["spans"] == expected.spans.tolist()
    np.testing.assert_allclose(document["vector"], expected.vector, atol=1e-5)
    assert not list(project.glob(".x.npz*"))


# --- processes ---------------------------------------------------------------------------------


def test_help_and_version_load_nothing_heavy():
    check = (
        "import sys; from lmk_rag.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'qdrant_client', 'markitdown'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)
    assert run("--version").stdout == f"lmk-rag {lmk_rag.__version__}\n"


@pytest.mark.parametrize("args", [["documents"], ["delete", "docs/pumps.md"]])
def test_documents_and_delete_load_no_model(project, args):
    run("index", "docs")
    check = f"import sys; from lmk_rag.cli import app; app({args!r}, standalone_mode=False)"
    check += "\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)


def write_notes(project, n):
    for i in range(n):
        name = f"docs/{i:04}{'-long' * 30}.txt"
        (project / name).write_text(f"Note {i} about the pump of station {i}. " * 4)


# Runs a command and gets a signal while document 400 is being read: a group is at most 256.
SIGNALLED = """
import os, signal, sys
number = int(sys.argv.pop())
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
from lmk_rag.cli import main
from lmk_rag.files import FileSource

read = FileSource.documents

def documents(source):
    for i, document in enumerate(read(source)):
        if i == 400:
            os.kill(os.getpid(), number)
        yield document

FileSource.documents = documents
main()
"""


def index_until(signal_number):
    command = [sys.executable, "-c", SIGNALLED, "index", "docs", str(signal_number)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(sys.platform == "win32", reason="signals work otherwise")
def test_a_killed_run_goes_on_where_it_stopped(project):
    write_notes(project, 600)
    killed = index_until(signal.SIGKILL)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    assert counts(run_json("index", "docs")) == {"unchanged": 256, "added": 347}
    assert counts(run_json("index", "docs")) == {"unchanged": 603}
    assert len(run_json("documents")) == 603


@pytest.mark.skipif(sys.platform == "win32", reason="signals work otherwise")
def test_an_interrupt_is_a_line_and_130_and_loses_nothing_written(project):
    write_notes(project, 600)
    stopped = index_until(signal.SIGINT)
    assert (stopped.returncode, stopped.stdout) == (130, "")
    assert lines(stopped.stderr)[-1] == "interrupted; what was written stays"
    assert "Traceback" not in stopped.stderr
    assert len(run_json("documents")) == 256


def test_a_folder_that_another_process_holds(project, model_folder):
    run("index", "docs")
    hold = (
        "import sys, time; from lmk_rag import LandmarkEncoder, QdrantStore\n"
        "encoder = LandmarkEncoder(sys.argv[1])\n"
        "store = QdrantStore('documents', encoder=encoder, location='.lmk-rag')\n"
        "print('held', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-W", "ignore", "-c", hold, str(model_folder("bert"))]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        missing = ["--model", "./no-model"]  # the folder is tried before any model is loaded
        for args in (["search", "pump", *missing], ["index", "docs", *missing], ["documents"]):
            process = start(*args)
            stdout, stderr = process.communicate(timeout=60)
            assert (process.returncode, stdout) == (1, "")
            (line,) = lines(stderr)
            assert line.startswith("error: the store at .lmk-rag")
            assert "open in another process" in line
    finally:
        holder.kill()
        holder.communicate()
    assert {h["path"] for h in run_json("search", "pump")} >= {"docs/pumps.md"}


def test_a_reader_that_goes_away_is_no_traceback(project):
    write_notes(project, 400)
    run("index", "docs")
    for args in (["documents"], ["documents", "--json"]):
        process = start(*args)
        process.stdout.readline()
        process.stdout.close()
        stderr = process.stderr.read()
        process.stderr.close()
        process.wait(timeout=60)
        assert "Traceback" not in stderr
        assert "Error" not in stderr


def test_a_terminal_that_lacks_characters_gets_question_marks(project):
    (project / "one.txt").write_text("Größe 日本 pump")
    run("index", "one.txt")
    options = {"env": os.environ | {"PYTHONIOENCODING": "latin-1"}, "encoding": "latin-1"}
    stdout, stderr = start("search", "pump", **options).communicate(timeout=120)
    assert "Größe ?? pump" in stdout
    assert "Traceback" not in stderr
    stdout, _ = start("search", "pump", "--json", **options).communicate(timeout=120)
    assert json.loads(stdout)[0]["text"] == "Größe 日本 pump"


def test_progress_moves_within_a_group_and_ends_at_the_number_decided(bert):
    moves = []
    watched = importlib.import_module("lmk_rag.cli.index")._WatchedEncoder(bert, moves.append)
    texts = [f"Text {i} about pumps. " * 2000 for i in range(5)] + ["short", "shorter"]
    found = watched.encode_documents(texts)
    assert len(moves) > 2
    assert sum(moves) == 7
    watched.settle(9)  # two more were unchanged
    assert sum(moves) == 9
    for one, other in zip(found, bert.encode_documents(texts), strict=True):
        np.testing.assert_allclose(one.landmarks, other.landmarks, atol=1e-5)
