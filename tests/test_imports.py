"""What an import costs, which names are public, and which stage may import which."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import lmk_rag

PACKAGE = Path(lmk_rag.__file__).parent
# Lowest first: a module imports from layers below its own. The first layer may import itself,
# and so may the modules of one package. A new module has to be placed here.
LAYERS = [
    {"types", "errors", "config"},
    {"boundaries"},
    {"spans"},
    {"landmarks", "batching", "pooling", "progress", "devices", "scoring", "forking", "queries"},
    {"lexical", "fusion"},
    {"st_folder", "dense"},
    {"checkpoint"},
    {"forward"},
    {"encoder"},
    {"chunker", "passages", "plain_encoder"},
    {"store"},
    {"retriever"},
    {"html_text", "listing"},
    {"files", "json_lines", "writing"},
    {"training", "evaluation"},
    {"lmk_rag"},  # the public names
    {"cli"},
]
RANKS = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def layer_of(path: Path) -> str:
    """The module, or the package, that a file belongs to."""
    name = path.parts[0].removesuffix(".py")
    return "lmk_rag" if name == "__init__" else name


def imported(path: Path) -> set[str]:
    """The modules of lmk_rag that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / path).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            if node.module == "lmk_rag":
                submodules = {a.name for a in node.names if a.name in RANKS}
                names.update(f"lmk_rag.{name}" for name in submodules)
                names.update({"lmk_rag"} if len(submodules) < len(node.names) else set())
            else:
                names.add(node.module or "")
    split = [name.split(".") for name in names]
    return {parts[1] if len(parts) > 1 else "lmk_rag" for parts in split if parts[0] == "lmk_rag"}


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_module_imports_only_from_below(path):
    own = layer_of(path)
    assert own in RANKS, f"{path} has no place in LAYERS"
    for name in imported(path):
        assert name in RANKS, f"{path} imports {name}, which has no place in LAYERS"
        same = name == own or {name, own} <= LAYERS[0]
        assert RANKS[name] < RANKS[own] or same, f"{path} imports {name} from above"


def test_the_direction_is_checked_at_all():
    assert imported(Path("encoder.py")) >= {"checkpoint", "forward", "landmarks", "types"}
    assert imported(Path("__init__.py")) >= {"config", "encoder", "types"}


HEAVY = ["torch", "transformers", "qdrant_client", "tokenizers", "huggingface_hub", "rich", "typer"]


def modules_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after running the code."""
    code += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stderr == ""
    return set(found.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import lmk_rag",
        "from lmk_rag import LandmarkConfig, Document, LMKError; LandmarkConfig().fingerprint()",
        "import lmk_rag; dir(lmk_rag); lmk_rag.__all__; lmk_rag.__version__",
    ],
)
def test_importing_the_package_imports_nothing_heavy(code):
    assert modules_after(code).isdisjoint(HEAVY)


def test_landmarks_and_spans_do_not_need_torch():
    assert "torch" not in modules_after("import lmk_rag.landmarks, lmk_rag.spans, lmk_rag.types")


def test_all_is_sorted_and_is_the_public_namespace():
    def is_ours(name: str) -> bool:
        value = vars(lmk_rag).get(name)
        return value is None or getattr(value, "__module__", "").startswith("lmk_rag.")

    public = [name for name in dir(lmk_rag) if not name.startswith("_") and is_ours(name)]
    assert lmk_rag.__all__ == sorted(public)
    assert lmk_rag.__all__ == sorted(lmk_rag.__all__)


@pytest.mark.parametrize("name", lmk_rag.__all__)
def test_every_public_name_loads(name):
    value = getattr(lmk_rag, name)
    assert value.__name__ == name
    assert getattr(importlib.import_module(value.__module__), name) is value


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'lmk_rag' has no attribute 'Nonsense'"):
        _ = lmk_rag.Nonsense


def test_submodules_are_not_hidden_by_the_lazy_names():
    assert importlib.import_module("lmk_rag.encoder").LandmarkEncoder is lmk_rag.LandmarkEncoder
