"""`LMKEmbeddings`: a `LandmarkEncoder` where LangChain expects `Embeddings`."""

from __future__ import annotations

import asyncio
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from langchain_core.embeddings import Embeddings
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from lmk_rag import LandmarkConfig, LandmarkEncoder
from lmk_rag.config import as_config


class LMKEmbeddings(BaseModel, Embeddings):
    """Embed texts of any length: the mean of their landmark states.

    Setup:
        pip install 'lmk-rag[langchain]'

    Key init args:
        model: a folder or hub id, as in `LandmarkEncoder`; None: the default model.
        config: how texts are cut, as a `LandmarkConfig` or a dict of its fields; None: as the
            checkpoint says.
        device, dtype, trust_remote_code, batch_tokens: as in `LandmarkEncoder`.

    Instantiate:
        ```python
        from langchain_lmk import LMKEmbeddings

        embeddings = LMKEmbeddings(config={"granularity": 32})
        ```

    Use:
        ```python
        vectors = embeddings.embed_documents(["a text of any length", "another"])
        vector = await embeddings.aembed_query("which text?")
        ```

    The model is loaded at once, and again when unpickled. Settings can't be changed afterwards:
    make another instance.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), populate_by_name=True
    )

    model_name: str | Path | None = Field(default=None, alias="model")
    config: Annotated[LandmarkConfig | None, BeforeValidator(as_config)] = None
    device: str = "auto"
    dtype: str = "auto"
    trust_remote_code: bool = False
    batch_tokens: int | None = None

    def model_post_init(self, _context: Any) -> None:
        """Load the model, so that a wrong name shows at once."""
        _ = self.encoder

    @cached_property
    def encoder(self) -> LandmarkEncoder:
        """The encoder, to share it with the rest of lmk-rag."""
        return LandmarkEncoder(
            self.model_name,
            config=self.config,
            device=self.device,
            dtype=self.dtype,
            trust_remote_code=self.trust_remote_code,
            batch_tokens=self.batch_tokens,
        )

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the document vector of every text, in order."""
        # Lazily, because an embedding also holds its landmarks, many times the vector's size.
        return [embedding.vector.tolist() for embedding in self.encoder.iter_documents(texts)]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        vector: list[float] = self.encoder.encode_queries([text])[0].tolist()
        return vector

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """As `embed_documents`, off the event loop."""
        return await asyncio.to_thread(self.embed_documents, texts)

    async def aembed_query(self, text: str) -> list[float]:
        """As `embed_query`, off the event loop."""
        return await asyncio.to_thread(self.embed_query, text)
