"""Read what a sentence-transformers folder says about pooling, prompts and dense layers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import CheckpointError
from lmk_rag.pooling import Pooling

# The order in which modules can follow each other here; Normalize only ends the row, because
# every vector is normalized anyway.
_RANKS = {
    "Transformer": 0,
    "LandmarkTransformer": 0,
    "Pooling": 1,
    "LandmarkPooling": 1,
    "Dense": 2,
    "Normalize": 3,
}
_TRANSFORMER_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)


@dataclass(frozen=True)
class ModuleSettings:
    """What decides how a model folder is used.

    Attributes:
        transformer: the folder with config.json, weights and tokenizer.
        pooling: `lmk`, `mean` or `cls`.
        config: saved granularity and prompts.
        max_length: the saved limit in tokens, or None.
        lower_case: lower-case texts first.
        trained_with_landmarks: whether the folder says so.
        dense_files, activations: dense layers in order.
    """

    transformer: Path
    pooling: Pooling
    config: LandmarkConfig
    max_length: int | None = None
    lower_case: bool = False
    trained_with_landmarks: bool = False
    dense_files: tuple[Path, ...] = ()
    activations: tuple[str, ...] = ()


def read_modules(folder: Path) -> ModuleSettings:
    """Read `modules.json` and what it points to; a folder without one is a plain encoder.

    A plain encoder is pooled at landmarks. A `LandmarkTransformer` (sentence-transformers
    #3642) is read with its `eval_splitter_granularity`.

    Raises:
        CheckpointError: a module or pooling we can't reproduce exactly.
    """
    modules = _modules(folder)
    if not modules:
        return ModuleSettings(transformer=folder, pooling="lmk", config=LandmarkConfig())
    settings: dict[str, Any] = {}
    granularity = None
    for kind, path in modules:
        if kind in ("Transformer", "LandmarkTransformer"):
            saved: dict[str, Any] = next(
                (read_json(path / f) for f in _TRANSFORMER_FILES if (path / f).is_file()), {}
            )
            settings["transformer"] = path
            settings["max_length"] = saved.get("max_seq_length")
            settings["lower_case"] = bool(saved.get("do_lower_case", False))
            if kind == "LandmarkTransformer":
                granularity = saved.get("eval_splitter_granularity", 32)
        elif kind in ("Pooling", "LandmarkPooling"):
            settings["pooling"] = _pooling(read_json(path / "config.json"), kind, path)
    dense_files, activations = _dense(modules)
    if granularity is not None:
        settings["pooling"] = "lmk"
    return ModuleSettings(
        config=_config(folder, granularity),
        trained_with_landmarks=granularity is not None,
        dense_files=dense_files,
        activations=activations,
        **settings,
    )


def read_dense_modules(folder: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Return the files and activations of the dense layers that `modules.json` names, in order.

    Raises:
        CheckpointError: a layer we can't reproduce exactly.
    """
    return _dense(_modules(folder))


def _dense(modules: Sequence[tuple[str, Path]]) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    files, activations = [], []
    for kind, path in modules:
        if kind == "Dense":
            saved = read_json(path / "config.json")
            if saved.get("module_input_name", "sentence_embedding") != "sentence_embedding":
                raise CheckpointError(f"{path} works on tokens, which is not supported")
            files.append(path / "model.safetensors")
            activations.append(str(saved.get("activation_function", "Tanh")).rpartition(".")[2])
    return tuple(files), tuple(activations)


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Return kind and folder of each module in `modules.json`, in order; none without the file."""
    if not (folder / "modules.json").is_file():
        return []
    modules = sorted(read_json(folder / "modules.json"), key=lambda module: module["idx"])
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    _check_order(folder, kinds)
    paths = [_inside(folder, module["path"]) for module in modules]
    return list(zip(kinds, paths, strict=True))


def _check_order(folder: Path, kinds: list[str]) -> None:
    unknown = [kind for kind in kinds if kind not in _RANKS]
    if unknown:
        raise CheckpointError(
            f"{folder} has a {unknown[0]} module, which is not supported; known are "
            f"{', '.join(_RANKS)}"
        )
    ranks = [_RANKS[kind] for kind in kinds]
    pooled = 1 in ranks or "LandmarkTransformer" in kinds
    if ranks.count(0) != 1 or ranks.count(1) > 1 or not pooled or ranks != sorted(ranks):
        raise CheckpointError(
            f"{folder} has the modules {', '.join(kinds) or 'none'}; supported is a Transformer, "
            "a Pooling, any number of Dense and a Normalize, in this order"
        )


def _config(folder: Path, granularity: int | None) -> LandmarkConfig:
    path = folder / "config_sentence_transformers.json"
    saved = read_json(path) if path.is_file() else {}
    prompts = saved.get("prompts") or {}
    default = prompts.get(saved.get("default_prompt_name") or "", "")
    return LandmarkConfig(
        granularity=LandmarkConfig.granularity if granularity is None else granularity,
        # The reference cuts after exactly k tokens; a landmark model is used as it was trained.
        boundary="word" if granularity is None else "token",
        query_prompt=prompts.get("query") or default,
        document_prompt=next(
            (prompts[name] for name in ("document", "passage", "corpus") if prompts.get(name)),
            default,
        ),
    )


def _pooling(saved: dict[str, Any], kind: str, path: Path) -> Pooling:
    if kind == "LandmarkPooling":
        return "lmk"
    prefix = "pooling_mode_"
    modes = saved.get("pooling_mode") or [
        key.removeprefix(prefix) for key, on in saved.items() if key.startswith(prefix) and on
    ]
    modes = [modes] if isinstance(modes, str) else list(modes)
    names = {mode.replace("_tokens", "").replace("_token", "") for mode in modes}
    if saved.get("include_prompt", True) is False:
        raise CheckpointError(f"{path} excludes the prompt from pooling, which is not supported")
    if names == {"mean"}:
        return "mean"
    if names == {"cls"}:
        return "cls"
    if names in ({"lmk"}, {"landmark"}):
        return "lmk"
    raise CheckpointError(
        f"{path} pools by {', '.join(sorted(modes)) or 'nothing'}; supported are mean, cls and lmk"
    )


def _inside(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise CheckpointError(f"{folder}/modules.json points outside the folder: {name!r}")
    return path


def read_json(path: Path) -> Any:
    """Read a JSON file or raise CheckpointError."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} could not be read: {error}") from error
