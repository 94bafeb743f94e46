import importlib
import json
import sysconfig
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lmk_rag.cli import app

demo = importlib.import_module("lmk_rag.cli.demo")  # the package holds the command by this name

STDLIB = Path(sysconfig.get_paths()["stdlib"])
ANSWERS = {
    "threading.py": "the same thread may acquire it\n    again without blocking",
    "statistics.py": "average speed",
    "heapq.py": "Merge multiple sorted inputs into a single sorted output",
    "shutil.py": "symbolic links in the",
}


def run(*args):
    result = CliRunner().invoke(app, ["demo", *args])
    assert result.exit_code == 0, result.stderr
    return result


def test_the_modules_are_those_of_this_python():
    files = demo.stdlib_files()
    assert len(files) >= 20
    assert len(set(files)) == len(files)
    assert [Path(path).name for path in files[:4]] == list(ANSWERS)
    assert sum(Path(path).stat().st_size for path in files) < 1_300_000  # two minutes


def test_the_answers_are_right_and_cited_with_the_default_model(monkeypatch, tmp_path):
    monkeypatch.delenv("LMK_RAG_MODEL", raising=False)
    monkeypatch.setattr(demo, "_MODULES", " ".join(ANSWERS))
    result = run("--json")
    answers = json.loads(result.stdout)
    for answer, (name, phrase) in zip(answers, ANSWERS.items(), strict=True):
        (passage,) = answer["passages"]
        content = (STDLIB / name).read_bytes().decode()
        assert Path(passage["document_id"]) == (STDLIB / name).resolve()
        assert content[passage["start"] : passage["end"]] == passage["text"]
        assert passage["line"] == content.count("\n", 0, passage["start"]) + 1
        assert phrase in passage["text"]
    assert "4 modules, " in result.stderr


@pytest.fixture
def quick(monkeypatch, model_folder):
    monkeypatch.setenv("LMK_RAG_MODEL", str(model_folder("bert")))
    monkeypatch.setattr(demo, "_MODULES", "sched.py no_such_module.py heapq.py")


def test_it_shows_each_question_with_a_place_and_what_to_do_next(quick, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run()
    for question in demo._QUESTIONS:
        _, _, rest = result.stdout.partition(question + "\n")
        place = rest.split("\n")[0].split()[1]
        path, _, line = place.rpartition(":")
        assert Path(path).parent == STDLIB.resolve()
        assert int(line) >= 1
    assert "2 modules, " in result.stderr
    assert result.stderr.endswith("  lmk-rag index PATH\n  lmk-rag search 'YOUR QUESTION'\n")
    assert list(tmp_path.iterdir()) == []


def test_the_index_can_be_kept_and_asked(quick, tmp_path):
    store = str(tmp_path / "my store")
    assert f"--store '{store}' --collection demo" in run("--store", store).stderr
    options = ["--store", store, "--collection", "demo", "--json"]
    found = CliRunner().invoke(app, ["search", "scheduler", "-k", "9", *options])
    assert len({passage["document_id"] for passage in json.loads(found.stdout)}) == 2
    again = run("--store", store)
    assert "2 modules, " in again.stderr


def test_a_slow_machine_reads_fewer_modules(quick, monkeypatch):
    monkeypatch.setattr(demo, "_INDEXING_SECONDS", 0)
    monkeypatch.setattr(demo, "_STEP", 1)
    result = run()
    assert "1 module, " in result.stderr
    assert "(left out to save time: the other 1)" in result.stderr


def test_a_python_without_sources_is_told_so(quick, monkeypatch):
    monkeypatch.setattr(demo, "_MODULES", "no_such_module.py")
    result = CliRunner().invoke(app, ["demo"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("this Python has no standard library sources")
