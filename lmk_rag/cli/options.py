"""The options that commands share, and the encoder they describe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmk_rag.config import Boundary, LandmarkConfig
from lmk_rag.errors import ConfigError

if TYPE_CHECKING:
    from lmk_rag import LandmarkEncoder
    from lmk_rag.cli.opening import Description

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="LMK_RAG_STORE",
        help="A folder, or the URL of a Qdrant server (its key: QDRANT_API_KEY).",
    ),
]
CollectionOption = Annotated[str, typer.Option("--collection", help="Its name in the store.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        envvar="LMK_RAG_MODEL",
        help="A folder or Hugging Face name. [default: that of the collection, or the built-in]",
    ),
]
GranularityOption = Annotated[
    int | None, typer.Option("--granularity", min=1, help="Tokens per landmark.")
]
BoundaryOption = Annotated[
    Boundary | None, typer.Option("--boundary", help="Where a landmark's stretch may end.")
]
MaxLengthOption = Annotated[
    int | None, typer.Option("--max-length", min=3, help="Tokens in one window of the model.")
]
OverlapOption = Annotated[
    int | None,
    typer.Option("--overlap", min=0, help="Tokens that a window repeats from the one before."),
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, mps ...")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")]
EncodingOption = Annotated[str, typer.Option("--encoding", help="How text files are encoded.")]
StdinIdOption = Annotated[
    str, typer.Option("--id", help="The document id of standard input ('-').")
]

DEFAULT_STORE = ".lmk-rag"
DEFAULT_COLLECTION = "documents"


@dataclass(frozen=True)
class ModelChoice:
    """The model options of a command, as given; None where the user left one open."""

    model: str | None
    device: str
    dtype: str
    granularity: int | None = None
    boundary: Boundary | None = None
    max_length: int | None = None
    overlap: int | None = None

    def load(self, stored: Description | None = None) -> LandmarkEncoder:
        """Load the encoder; what the user left open is as the collection or checkpoint has it."""
        from lmk_rag import LandmarkEncoder

        def encoder(config: LandmarkConfig | None) -> LandmarkEncoder:
            return LandmarkEncoder(model, config=config, device=self.device, dtype=self.dtype)

        model = self.model
        if stored is not None:
            model = stored.model if model is None else model
            return encoder(self._changed(stored.config))
        if self._changed(LandmarkConfig()) == LandmarkConfig():
            return encoder(None)
        try:
            with encoder(None) as as_saved:
                config = as_saved.config
        except ConfigError:  # the saved settings don't fit; those asked for may
            config = LandmarkConfig()
        return encoder(self._changed(config))

    def _changed(self, config: LandmarkConfig) -> LandmarkConfig:
        given: dict[str, Any] = {
            "granularity": self.granularity,
            "boundary": self.boundary,
            "max_length": self.max_length,
            "overlap": self.overlap,
        }
        return replace(config, **{name: v for name, v in given.items() if v is not None})
