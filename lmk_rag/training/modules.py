"""sentence-transformers modules: `LandmarkTransformer` and `LandmarkPooling`.

    SentenceTransformer(modules=[LandmarkTransformer(checkpoint), LandmarkPooling(384)])

A model made of them trains with sentence-transformers' own trainer, losses and evaluators. Its
saved folder also holds our own settings, so that `LandmarkEncoder(folder)` and
`SentenceTransformer(folder, trust_remote_code=True)` give equal vectors, long texts included.

A text is one row however many windows it needs: its windows stand behind each other in the row,
which keeps the shapes that everything in sentence-transformers expects.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from sentence_transformers.base.modules import InputModule, Module
from torch import Tensor, nn

from lmk_rag.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from lmk_rag.config import LandmarkConfig
from lmk_rag.errors import CheckpointError, ConfigError
from lmk_rag.landmarks import LandmarkedText, LandmarkTokenizer, Window

if TYPE_CHECKING:
    from typing_extensions import Self

TrainedPooling = Literal["lmk", "cls", "mean", "every-k", "multicls", "latent"]
_FILE = "landmark_transformer.json"


class LandmarkTransformer(InputModule):
    """Tokenize with landmarks, run the encoder, and mark the states that are pooled.

    Args:
        checkpoint: model, tokenizer and settings.
        pooling: which states are pooled and what is inserted:
            `lmk`: a landmark after every stretch, and those are pooled;
            `cls`: the first state of each window; `mean`: all states;
            `every-k`: the last state of each stretch, nothing inserted;
            `multicls`: [CLS] before every stretch, and those are pooled;
            `latent`: all states, for latent attention in `LandmarkPooling`.

    Features out of `preprocess`: `input_ids` and `attention_mask` (B, T), `window` (B, T) the
    window that each position belongs to (-1 where padded), `pooled` and `content` (B, T) bool:
    what is pooled, and what is text rather than landmark, prompt, special token or padding.
    Where no landmark stands for a stretch (`mean`, `cls`, `latent`), also `stretch` (B, T): the
    number of the stretch that a token belongs to, -1 where it is context or no text; the landmark
    row of a stretch is then the mean of its states, as `LandmarkEncoder` has it.
    """

    save_in_root = True

    def __init__(self, checkpoint: Checkpoint, *, pooling: TrainedPooling = "lmk") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if pooling not in get_args(TrainedPooling):
            raise ConfigError(
                f"pooling is {pooling!r}; expected one of {', '.join(get_args(TrainedPooling))}"
            )
        # Dense layers are modules of their own, behind the pooling.
        self.checkpoint = replace(checkpoint, model=None, dense=None)  # type: ignore[arg-type]
        self.auto_model = checkpoint.model
        self.tokenizer = checkpoint.tokenizer
        self.pooling = pooling
        self.config = checkpoint.config
        self.max_seq_length = self.config.max_length or checkpoint.max_length
        self.landmark_tokenizer = LandmarkTokenizer(
            checkpoint.tokenizer,
            insert_landmarks=pooling in ("lmk", "multicls"),
            lower_case=checkpoint.lower_case,
        )

    def get_embedding_dimension(self) -> int:
        """Return D."""
        return int(self.auto_model.config.hidden_size)

    def lay_out(
        self, text: str, *, prompt: str | None = None, config: LandmarkConfig | None = None
    ) -> LandmarkedText:
        """Cut one text into landmarks and windows, as `LandmarkEncoder` does."""
        return self.landmark_tokenizer.lay_out(
            text, config or self.config, prompt=prompt, max_length=self.max_seq_length
        )

    def collate(self, layouts: Sequence[LandmarkedText]) -> dict[str, Tensor]:
        """Turn laid out texts into features, one row per text."""
        rows = [[self._positions(window) for window in layout.windows] for layout in layouts]
        longest = max((sum(len(ids) for ids, _ in row) for row in rows), default=0)
        shape = (len(rows), longest)
        ids = torch.full(shape, self.landmark_tokenizer.pad_id)
        window = torch.full(shape, -1)
        pooled = torch.zeros(shape, dtype=torch.bool)
        content = torch.zeros(shape, dtype=torch.bool)
        stretch = torch.full(shape, -1)
        for row, (windows, layout) in enumerate(zip(rows, layouts, strict=True)):
            at = own = 0
            for number, (window_ids, positions) in enumerate(windows):
                ids[row, at : at + len(window_ids)] = torch.from_numpy(window_ids)
                window[row, at : at + len(window_ids)] = number
                pooled[row, at + torch.from_numpy(positions)] = True
                context = layout.windows[number].n_context
                for index, (start, end) in enumerate(layout.windows[number].stretches):
                    content[row, at + start : at + end] = True
                    if index >= context:
                        stretch[row, at + start : at + end] = own
                        own += 1
                at += len(window_ids)
        features = {
            "input_ids": ids,
            "attention_mask": (window >= 0).long(),
            "window": window,
            "pooled": pooled,
            "content": content,
        }
        if self.pooling in ("mean", "cls", "latent"):
            features["stretch"] = stretch
        return features

    def preprocess(  # type: ignore[override]  # texts only
        self,
        inputs: Sequence[str],
        prompt: str | None = None,
        *,
        task: str | None = None,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        """Tokenize texts; see the class for the features. `task="query"` takes that prompt."""
        del kwargs  # what sentence-transformers offers to every module
        saved = self.config.query_prompt if task == "query" else self.config.document_prompt
        return self.collate([self.lay_out(text, prompt=prompt or saved) for text in inputs])

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add `token_embeddings` (B, T, D): every window is read on its own."""
        del kwargs
        ids, window = features["input_ids"], features["window"]
        if ids.numel() == 0 or int(window.max()) <= 0:
            states = self._states(ids, features["attention_mask"])
        else:
            states = self._unfold(ids, window)
        features["token_embeddings"] = states
        return features

    def _unfold(self, ids: Tensor, window: Tensor) -> Tensor:
        """Give each window a row of its own, and put the states back where they belong."""
        row, at = torch.nonzero(window >= 0, as_tuple=True)
        stride = int(window.max()) + 1
        _, of, lengths = torch.unique_consecutive(
            row * stride + window[row, at], return_inverse=True, return_counts=True
        )
        first = torch.cumsum(lengths, 0) - lengths
        inside = torch.arange(len(of), device=ids.device) - first[of]
        shape = (len(lengths), int(lengths.max()))
        unfolded = torch.full(shape, self.landmark_tokenizer.pad_id, device=ids.device)
        unfolded[of, inside] = ids[row, at]
        mask = torch.arange(shape[1], device=ids.device) < lengths[:, None]
        states = self._states(unfolded, mask.long())
        folded = states.new_zeros(*ids.shape, states.shape[-1])
        return folded.index_put((row, at), states[of, inside])

    def _states(self, ids: Tensor, mask: Tensor) -> Tensor:
        padded = bool((mask == 0).any())
        output = self.auto_model(input_ids=ids, attention_mask=mask if padded else None)
        states: Tensor = output.last_hidden_state
        return states

    def _positions(self, window: Window) -> tuple[Any, Any]:
        """Return the ids of a window and the positions that are pooled."""
        ids, own = window.ids, window.stretches[window.n_context :]
        if self.pooling == "lmk":
            return ids, own[:, 1]
        if self.pooling == "cls":
            return ids, np.array([0])
        if self.pooling == "every-k":
            return ids, np.maximum(own[:, 1] - 1, 0)
        if self.pooling == "multicls":
            starts = window.stretches[:, 0] - 1  # what stands before each stretch
            ids = ids.copy()
            ids[starts[starts > 0]] = self.landmark_tokenizer.first_id
            return ids, np.maximum(starts[window.n_context :], 0)
        context = window.stretches[: window.n_context]
        outside = [np.arange(start, end) for start, end in context]
        return ids, np.setdiff1d(np.arange(len(ids)), np.concatenate([*outside, []]))

    def save(
        self, output_path: str, *args: Any, safe_serialization: bool = True, **kw: Any
    ) -> None:
        """Write model, tokenizer and settings; safetensors only."""
        del args, kw
        if not safe_serialization:
            raise CheckpointError("weights are saved as safetensors only")
        folder = Path(output_path)
        checkpoint = replace(
            self.checkpoint,
            model=self.auto_model,
            pooling=self.pooling,  # type: ignore[arg-type]  # `LandmarkEncoder` refuses the others
            config=self.config,
            trained_with_landmarks=self.pooling in ("lmk", "mean"),
        )
        save_checkpoint(checkpoint, folder)
        (folder / _FILE).write_text(json.dumps({"pooling": self.pooling}) + "\n", "utf-8")

    @classmethod
    def load(  # type: ignore[override]  # what is local needs no token or revision
        cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any
    ) -> Self:
        """Read what `save` wrote."""
        del kwargs
        folder = Path(model_name_or_path) / subfolder
        pooling = json.loads((folder / _FILE).read_text("utf-8"))["pooling"]
        loaded = load_checkpoint(folder, dtype=torch.float32, poolings=get_args(TrainedPooling))
        return cls(loaded, pooling=pooling)


class LandmarkPooling(Module):
    """Average the marked states: `sentence_embedding` (B, D), not normalized.

    Args:
        embedding_dimension: D.
        latents: 0, or the number of latent vectors that tokens attend to before the average
            (latent attention: cross-attention with queries from the tokens, then a GEGLU layer;
            Lee et al. 2024, arXiv 2405.17428, as in the paper's comparison with 64 latents).
    """

    config_keys = ["embedding_dimension", "latents"]  # noqa: RUF012  # as its parent declares it

    def __init__(self, embedding_dimension: int, latents: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.embedding_dimension = embedding_dimension
        self.latents = latents
        if latents:
            self.attention = LatentAttention(embedding_dimension, latents)

    def get_embedding_dimension(self) -> int:
        """Return D."""
        return self.embedding_dimension

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add `sentence_embedding`: the mean of the states at `pooled`."""
        del kwargs
        states, pooled = features["token_embeddings"].float(), features["pooled"]
        if self.latents:
            states = self.attention(states)
        sums = torch.where(pooled.unsqueeze(2), states, 0).sum(1)
        features["sentence_embedding"] = sums / pooled.sum(1, keepdim=True).clamp(min=1)
        return features

    def save(
        self, output_path: str, *args: Any, safe_serialization: bool = True, **kw: Any
    ) -> None:
        """Write the settings, and the weights if there are any."""
        del args, kw
        self.save_config(output_path)
        if self.latents:
            self.save_torch_weights(output_path, safe_serialization=safe_serialization)

    @classmethod
    def load(  # type: ignore[override]  # what is local needs no token or revision
        cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any
    ) -> Self:
        """Read what `save` wrote."""
        del kwargs
        config = cls.load_config(model_name_or_path, subfolder=subfolder)
        module = cls(**config)
        if module.latents:
            from safetensors.torch import load_model

            load_model(module, Path(model_name_or_path) / subfolder / "model.safetensors")
        return module


class LatentAttention(nn.Module):
    """Tokens attend to a trained array of latents, one head, then a GEGLU layer."""

    def __init__(self, width: int, latents: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, width) / width**0.5)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, states: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        attended = nn.functional.scaled_dot_product_attention(
            self.query(states), self.key(self.latents), self.value(self.latents)
        )
        states = states + attended
        value, gate = self.gate(states).chunk(2, dim=-1)
        mixed: Tensor = states + self.out(value * nn.functional.gelu(gate))
        return mixed
