"""Every code block of the README runs, as a newcomer would run it, in one empty folder."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
RUNNABLE = {"python", "console"}


def test_every_block_is_of_a_kind_that_is_run_or_shown():
    assert {language for language, _ in BLOCKS} <= RUNNABLE | {"text", "json"}
    assert [language for language, _ in BLOCKS].count("python") == 4


def test_what_a_block_prints_is_told_in_every_python_block():
    assert all("# prints: " in code for language, code in BLOCKS if language == "python")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An empty folder with a `manuals/` of long files in it, which the README's commands index."""
    base = tmp_path_factory.mktemp("newcomer")
    (base / "manuals").mkdir()
    filler = "The housing is cleaned with a dry cloth once a month. " * 60
    (base / "manuals" / "pump.md").write_text(
        f"# Pump P-7\n\n{filler}\n\n## Restart\n\nAfter an emergency stop, hold the red button for "
        f"five seconds to restart the pump.\n\n{filler}\n",
        "utf-8",
    )
    (base / "manuals" / "valve.md").write_text(
        f"# Valve V-2\n\n{filler}\n\nThe valve closes at 80 degrees Celsius.\n", "utf-8"
    )
    _add_a_set(base / "my-set")
    (base / "data").mkdir()
    (recipe,) = [code for language, code in BLOCKS if language == "json"]
    settings = json.loads(recipe) | {"steps": 2}  # a newcomer has more time
    (base / "recipe.json").write_text(json.dumps(settings), "utf-8")
    pairs = [
        {
            "query": f"What is part {i}?",
            "positive": f"Part {i} is made of {'brass' if i % 2 else 'tin'}.",
        }
        for i in range(24)
    ]
    text = "\n".join(f"## What is part {i}?\n{pair['positive']}" for i, pair in enumerate(pairs))
    for name, rows in (("faq", pairs), ("headings", pairs), ("manuals", [{"text": text}])):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (base / "data" / f"{name}.jsonl").write_text(lines, "utf-8")
    return base


def _add_a_set(folder: Path) -> None:
    """Write two documents, two queries and what answers them."""
    folder.mkdir()
    rows = {
        "corpus": [
            {"_id": "pump", "title": "Pump", "text": "Hold the red button to restart it."},
            {"_id": "valve", "title": "", "text": "The valve closes at 80 degrees."},
        ],
        "queries": [
            {"_id": "q1", "text": "how to restart the pump"},
            {"_id": "q2", "text": "when does the valve close"},
        ],
    }
    for name, records in rows.items():
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    qrels = "query-id\tcorpus-id\tscore\nq1\tpump\t1\nq2\tvalve\t1\n"
    (folder / "qrels.tsv").write_text(qrels, "utf-8")


@pytest.fixture(scope="module")
def environment():
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return os.environ | {"PATH": path, "COLUMNS": "120"}


@pytest.mark.parametrize(
    ("language", "code"),
    [block for block in BLOCKS if block[0] in RUNNABLE],
    ids=[f"{i}-{language}" for i, (language, _) in enumerate(BLOCKS) if language in RUNNABLE],
)
def test_block_runs(language, code, folder, environment):
    if language == "python":
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        for expected in re.findall(r"# prints: (.*)", code):
            assert expected in done.stdout
        return
    for line in code.splitlines():
        if not line.startswith("$ "):
            continue
        command = line.removeprefix("$ ")
        if command.startswith("make "):  # running it would run this test again
            command = f"{shutil.which('make')} -n -C {ROOT} {command.removeprefix('make ')}"
        done = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
