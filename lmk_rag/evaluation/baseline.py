"""The base model as its authors use it: own pooling, one window, whatever length that may be."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lmk_rag.checkpoint import load_checkpoint, minilm, save_checkpoint
from lmk_rag.config import LandmarkConfig
from lmk_rag.devices import choose_device, choose_dtype
from lmk_rag.encoder import LandmarkEncoder
from lmk_rag.errors import ConfigError
from lmk_rag.landmarks import LandmarkTokenizer

if TYPE_CHECKING:
    from lmk_rag.types import Ints

_DEFAULT_NAME = "all-MiniLM-L6-v2"


class Baseline:
    """A base model whose window can be as long as its positions allow.

    all-MiniLM-L6-v2 is configured for 256 tokens though it has 512 positions; "cut at 512" is
    meant to read 512, so here the configured length gives way to the one asked for.

    Args:
        model: a folder or hub id; None: all-MiniLM-L6-v2.
        device, dtype: as in `LandmarkEncoder`.

    Raises:
        CheckpointError, MissingExtraError: as in `load_checkpoint`.
    """

    def __init__(
        self, model: str | Path | None = None, *, device: str = "auto", dtype: str = "auto"
    ) -> None:
        self.model = minilm("the base model of the evaluation") if model is None else model
        self._name = _DEFAULT_NAME if model is None else Path(model).name
        self._device, self._dtype = device, dtype
        self._checkpoint = load_checkpoint(
            self.model, dtype=choose_dtype(dtype, choose_device(device))
        )
        self._tokenizer = LandmarkTokenizer(
            self._checkpoint.tokenizer,
            insert_landmarks=False,
            lower_case=self._checkpoint.lower_case,
        )
        self._encoders: dict[int, LandmarkEncoder] = {}

    @property
    def name(self) -> str:
        """What tables call it: the folder's name or the hub id, no path of this machine."""
        return self._name

    def offsets(self, text: str) -> Ints:
        """Return the (T, 2) characters of each token of a text, without special tokens."""
        return self._tokenizer.tokenize(text)[1]

    def encoder(self, window: int) -> LandmarkEncoder:
        """Return an encoder that reads up to `window` tokens, special ones included, and cuts.

        Its document vector is the base model's own: of a sentence-transformers folder, what that
        library returns for the same text and `max_seq_length`.

        Raises:
            ConfigError: the model can't read that many.
        """
        if window not in self._encoders:
            self._encoders[window] = self._load(window)
        return self._encoders[window]

    def piece_encoder(self, size: int) -> LandmarkEncoder:
        """Return an encoder whose window holds pieces of `size` content tokens.

        Raises:
            ConfigError: the model can't read that many.
        """
        landmarks = size if self._checkpoint.pooling == "lmk" else 0  # room for one per token
        return self.encoder(size + landmarks + self._overhead)

    @property
    def query_encoder(self) -> LandmarkEncoder:
        """An encoder for the queries of any pieces: its window is the model's own."""
        return self.encoder(self._checkpoint.max_length)

    @property
    def _overhead(self) -> int:
        """Special tokens and prompt that stand in a window beside the content."""
        config = LandmarkConfig(granularity=1)
        prompt = self._checkpoint.config.document_prompt
        layout = self._tokenizer.lay_out("a", config, prompt=prompt, max_length=1_000_000)
        return len(layout.windows[0].ids) - int(layout.landmark_tokens.sum())

    def _load(self, window: int) -> LandmarkEncoder:
        config = replace(self._checkpoint.config, max_length=window, on_overflow="truncate")
        if self._checkpoint.pooling != "lmk":
            # A cut keeps whole stretches: one that fills the window loses no token.
            room = max(window - self._overhead, 1)
            config = replace(config, granularity=room, boundary="token")
        try:
            with self._folder(window) as folder, warnings.catch_warnings():
                # That landmarks were not trained is no news here: none are used.
                warnings.filterwarnings("ignore", message=".*was not trained with landmarks")
                return LandmarkEncoder(
                    folder, config=config, device=self._device, dtype=self._dtype
                )
        except ConfigError as error:
            raise ConfigError(f"{self.name} can't read {window} tokens: {error}") from error

    @contextmanager
    def _folder(self, window: int) -> Iterator[str | Path]:
        if window <= self._checkpoint.max_length:
            yield self.model
            return
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as copy:
            save_checkpoint(replace(self._checkpoint, max_length=window), copy)
            yield Path(copy)
