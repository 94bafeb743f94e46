"""`LandmarkEncoder`: texts in, `DocumentEmbedding`s out."""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from lmk_rag import checkpoint as checkpoints
from lmk_rag.config import LandmarkConfig, check_int
from lmk_rag.devices import choose_device, choose_dtype, default_batch_tokens
from lmk_rag.errors import ClosedError, InputError, NonFiniteError, TextTooLongError
from lmk_rag.forking import ForkSafeLock
from lmk_rag.forward import PooledWindow, assemble, is_finite, run_batches, run_windows
from lmk_rag.landmarks import LandmarkedText, LandmarkTokenizer, Window
from lmk_rag.progress import progress_bar
from lmk_rag.queries import in_parts, part_config
from lmk_rag.types import DocumentEmbedding, Floats, QueryEmbedding

if TYPE_CHECKING:
    from typing_extensions import Self

# The iterator form reads texts ahead until it has this many batches' worth of tokens, so that
# texts of like length meet in a batch while memory stays bounded.
_BATCHES_AHEAD = 16


class LandmarkEncoder:
    """Encode texts of any length into a document vector and landmark vectors.

    Args:
        model: a folder or hub id: any Hugging Face encoder with a fast tokenizer, a
            sentence-transformers folder, or one written by `save`. None: the default model.
        config: how texts are cut; None: as saved with the checkpoint, else the defaults.
        device: "auto" (CUDA, then MPS, then CPU) or a torch device name.
        dtype: "auto" (bfloat16 where the hardware has it natively, else float32), "float32",
            "bfloat16" or "float16". Vectors come out as float32 whatever it is.
        trust_remote_code: allow a model that brings its own code. Nothing else allows it.
        batch_tokens: padded tokens per batch; None: a default for the device.

    Thread-safe. Pickling keeps the settings and loads the model again. Use `close()` or `with`
    to free the memory.

    Raises:
        CheckpointError, ConfigError: see `load_checkpoint`.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        config: LandmarkConfig | None = None,
        device: str = "auto",
        dtype: str = "auto",
        trust_remote_code: bool = False,
        batch_tokens: int | None = None,
    ) -> None:
        if model is not None and Path(model).expanduser().is_dir():
            model = Path(model).expanduser().resolve()  # a pickle may wake up elsewhere
        if batch_tokens is not None:
            check_int("batch_tokens", batch_tokens, minimum=1)
        self._settings = (model, config, device, dtype, trust_remote_code, batch_tokens)
        self.device = choose_device(device)
        self.dtype = choose_dtype(dtype, self.device)
        loaded = checkpoints.load_checkpoint(
            model, dtype=self.dtype, trust_remote_code=trust_remote_code
        )
        self._checkpoint = checkpoints.with_config(loaded, config)
        if not loaded.trained_with_landmarks and model is not None:
            warnings.warn(_untrained_message(loaded.name, loaded.pooling), stacklevel=2)
        loaded.model.to(self.device)  # type: ignore[arg-type]  # its stub lost the overload
        if loaded.dense is not None:
            loaded.dense.to(self.device)
        self._tokenizer = LandmarkTokenizer(
            loaded.tokenizer,
            insert_landmarks=loaded.pooling == "lmk",
            lower_case=loaded.lower_case,
        )
        self.batch_tokens: int = batch_tokens or default_batch_tokens(self.device)
        self._lock = ForkSafeLock()
        self._closed = False
        self.lay_out("")  # a prompt or granularity that does not fit the window shows here
        self.dim: int = self.encode_queries([""]).shape[1]

    @property
    def config(self) -> LandmarkConfig:
        """The settled config: `max_length` is a number, prompts are those in use."""
        return self._checkpoint.config

    @property
    def max_length(self) -> int:
        """Tokens in one window, special tokens, landmarks and prompt included."""
        return self.config.max_length or self._checkpoint.max_length

    @property
    def name(self) -> str:
        """The folder or hub id the model came from."""
        return self._checkpoint.name

    @property
    def pooling(self) -> str:
        """`lmk` where landmarks are inserted, else `mean` or `cls`."""
        return self._checkpoint.pooling

    @property
    def trained_with_landmarks(self) -> bool:
        """Whether the checkpoint says that it was trained with landmark pooling."""
        return self._checkpoint.trained_with_landmarks

    @property
    def fingerprint(self) -> str:
        """16 hex digits over weights, tokenizer and config: equal means comparable vectors.

        Device, dtype and batch size are left out: they change vectors by rounding only.
        """
        text = f"{self._checkpoint.digest}:{self.config.fingerprint()}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def lay_out(self, text: str) -> LandmarkedText:
        """Return landmarks, spans and windows of a document text without running the model.

        Raises:
            InputError: not a string.
            TextTooLongError: over one window with `on_overflow="error"`.
        """
        return self._lay_out([text], self.config.document_prompt)[0]

    def encode_documents(
        self, texts: Sequence[str], *, show_progress: bool = False
    ) -> list[DocumentEmbedding]:
        """Encode texts, one embedding per text, in order.

        Batches are made over the windows of all texts together and never change a vector
        (float32: 1e-5). A blank text has one landmark, no tokens, and the vector of
        `[CLS] [LMK]`.

        Raises:
            InputError: `texts` is a string, or an entry is none; names its index.
            TextTooLongError: over one window with `on_overflow="error"`; names its index.
            NonFiniteError: the model gave NaN or infinity; names the index.
        """
        _check_texts(texts)
        return self._encode(list(texts), self.config.document_prompt, 0, show_progress)

    def iter_documents(
        self, texts: Iterable[str], *, show_progress: bool = False
    ) -> Iterator[DocumentEmbedding]:
        """Encode any iterable of texts lazily, in order, holding only a few batches in memory.

        Raises:
            as `encode_documents`, when the text in question is reached.
        """
        _check_texts(texts)
        ahead: list[str] = []
        done, size = 0, 0
        budget = 4 * _BATCHES_AHEAD * self.batch_tokens  # about four characters to a token
        with progress_bar("encoding", None, show=show_progress) as advance:
            for text in texts:
                ahead.append(text)
                size += 8 + len(text) if isinstance(text, str) else budget
                if size >= budget:
                    yield from self._encode(ahead, self.config.document_prompt, done, False)
                    advance(len(ahead))
                    done, size, ahead = done + len(ahead), 0, []
            yield from self._encode(ahead, self.config.document_prompt, done, False)
            advance(len(ahead))

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        """Encode queries.

        Returns:
            (B, D) float32, unit-length rows, in order. A blank query has a defined vector too.

        Raises:
            as `encode_documents`.
        """
        _check_texts(texts)
        found = self._encode(list(texts), self.config.query_prompt, 0, False)
        if not found:
            return np.zeros((0, self.dim), dtype=np.float32)
        return np.stack([embedding.vector for embedding in found])

    def encode_query_parts(self, texts: Sequence[str]) -> list[QueryEmbedding]:
        """Encode queries as multi-vectors: what finds most, see `QueryEmbedding`.

        One forward pass gives both; `vector` is that of `encode_queries` (float32: 1e-5), but for
        queries of several windows, which end elsewhere. A part is two tokens; where landmarks are
        inserted, a landmark's stretch.

        Raises:
            as `encode_documents`.
        """
        _check_texts(texts)
        inserted = self.pooling == "lmk"
        config = part_config(self.config, inserts_landmarks=inserted)
        found = self._encode(list(texts), config.query_prompt, 0, False, config)
        return [in_parts(embedding, by_tokens=not inserted) for embedding in found]

    def save(self, folder: str | Path) -> None:
        """Write model, tokenizer and config; `LandmarkEncoder(folder)` gives equal vectors."""
        self._check_open()
        checkpoints.save_checkpoint(self._checkpoint, folder)

    def close(self) -> None:
        """Free the model; later use raises ClosedError, closing twice is fine."""
        with self._lock.held():
            if not self._closed:
                self._closed = True
                self._checkpoint = replace(self._checkpoint, model=None, dense=None)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        config = self.config
        return (
            f"LandmarkEncoder({self.name!r}, pooling={self.pooling!r}, k={config.granularity}, "
            f"boundary={config.boundary!r}, window={self.max_length}, overlap={config.overlap}, "
            f"query_prompt={config.query_prompt!r}, document_prompt={config.document_prompt!r}, "
            f"device={str(self.device)!r}, dtype={str(self.dtype).removeprefix('torch.')!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, self._settings

    def _lay_out(
        self,
        texts: Sequence[str],
        prompt: str | None,
        first_index: int = 0,
        config: LandmarkConfig | None = None,
    ) -> list[LandmarkedText]:
        layouts = []
        for index, text in enumerate(texts, first_index):
            if not isinstance(text, str):
                raise InputError(f"text {index} is {text!r:.80}; expected a string")
            try:
                layouts.append(
                    self._tokenizer.lay_out(
                        text, config or self.config, prompt=prompt, max_length=self.max_length
                    )
                )
            except TextTooLongError as error:
                raise TextTooLongError(f"text {index}: {error}") from None
        return layouts

    def _encode(
        self,
        texts: Sequence[str],
        prompt: str | None,
        first_index: int,
        show_progress: bool,
        config: LandmarkConfig | None = None,
    ) -> list[DocumentEmbedding]:
        self._check_open()
        layouts = self._lay_out(texts, prompt, first_index, config)
        cut = [index for index, layout in enumerate(layouts, first_index) if layout.truncated]
        if cut:
            warnings.warn(_cut_message(cut, self.max_length), stacklevel=3)
        windows = [(i, window) for i, layout in enumerate(layouts) for window in layout.windows]
        pooled: list[PooledWindow | None] = [None] * len(windows)
        with progress_bar("encoding windows", len(windows), show=show_progress) as advance:
            for i, result in run_batches(
                [window for _, window in windows], self.batch_tokens, self._run
            ):
                if not result.is_finite:
                    raise self._non_finite(first_index + windows[i][0])
                pooled[i] = result
                advance(1)
        embeddings = []
        remaining = iter(pooled)
        with self._lock.held():
            self._check_open()
            for index, layout in enumerate(layouts, first_index):
                own = itertools.islice(remaining, len(layout.windows))
                embedding = assemble(
                    layout,
                    [window for window in own if window is not None],
                    pooling=self._checkpoint.pooling,
                    dense=self._checkpoint.dense,
                )
                if not is_finite(embedding):
                    raise self._non_finite(index)
                embeddings.append(embedding)
        return embeddings

    def _run(self, windows: list[Window]) -> list[PooledWindow]:
        with self._lock.held():
            self._check_open()
            return run_windows(
                self._checkpoint.model,
                windows,
                pooling=self._checkpoint.pooling,
                pad_id=self._tokenizer.pad_id,
            )

    def _non_finite(self, index: int) -> NonFiniteError:
        return NonFiniteError(
            f"the model gave NaN, infinity or a zero vector for text {index} "
            f"({self.dtype} on {self.device}); try dtype='float32'"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this LandmarkEncoder was closed; make a new one")


def _check_texts(texts: object) -> None:
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InputError(f"texts is {texts!r:.80}; expected a list of strings")


def _cut_message(indices: Sequence[int], window: int) -> str:
    more = f" and {len(indices) - 1} more" if len(indices) > 1 else ""
    return (
        f"text {indices[0]}{more} did not fit the window of {window} tokens: the rest was not read "
        "(on_overflow='truncate')"
    )


def _untrained_message(name: str, pooling: str) -> str:
    if pooling == "lmk":
        how = "landmark states of an untrained model mean little, so expect poor retrieval"
    else:
        how = f"its own {pooling} pooling is used, and each landmark is the mean of its tokens"
    return f"{name!r} was not trained with landmarks: {how}"


def _restore(
    model: str | Path | None,
    config: LandmarkConfig | None,
    device: str,
    dtype: str,
    trust_remote_code: bool,
    batch_tokens: int | None,
) -> LandmarkEncoder:
    return LandmarkEncoder(
        model,
        config=config,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        batch_tokens=batch_tokens,
    )
