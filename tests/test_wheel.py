"""The wheel holds the package, both integrations and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT],
        check=True,
        capture_output=True,
    )
    (found,) = out.glob("*.whl")
    return zipfile.ZipFile(found)


def sources(folder: str) -> set[str]:
    """Return the files of a folder as the wheel should name them."""
    base = ROOT / folder
    return {
        path.relative_to(base.parent).as_posix()
        for path in base.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_exactly_the_three_import_packages(wheel):
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == (
        sources("lmk_rag")
        | sources("integrations/langchain_lmk")
        | sources("integrations/llama_index")
    )


def test_the_wheel_is_typed_and_licensed(wheel):
    names = wheel.namelist()
    assert "lmk_rag/py.typed" in names
    assert "langchain_lmk/py.typed" in names
    assert [n.rpartition("/")[2] for n in names if "/licenses/" in n] == ["LICENSE", "NOTICE"]


def test_the_llama_index_namespace_stays_open(wheel):
    above = {
        "llama_index/__init__.py",
        "llama_index/py.typed",
        "llama_index/embeddings/__init__.py",
    }
    assert above.isdisjoint(wheel.namelist())


def test_the_wheel_offers_the_command_and_the_extras(wheel):
    (entry,) = [n for n in wheel.namelist() if n.endswith("entry_points.txt")]
    assert "lmk-rag = lmk_rag.cli:main" in wheel.read(entry).decode()
    (metadata,) = [n for n in wheel.namelist() if n.endswith("/METADATA")]
    lines = wheel.read(metadata).decode().splitlines()
    extras = {line.removeprefix("Provides-Extra: ") for line in lines if "Provides-Extra" in line}
    retrieval, integrations = {"edge", "eval", "files", "minilm"}, {"langchain", "llama-index"}
    assert extras == retrieval | integrations | {"all", "chat", "mteb", "train"}
    assert "License-Expression: Apache-2.0" in lines
