"""`LMKEmbedding`: a `LandmarkEncoder` where LlamaIndex expects a `BaseEmbedding`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from llama_index.core.base.embeddings.base import BaseEmbedding, Embedding
from llama_index.core.bridge.pydantic import BeforeValidator, ConfigDict, Field, PrivateAttr
from llama_index.core.schema import BaseNode
from typing_extensions import Self

from llama_index.embeddings.lmk.cache import PrefixedKVStore
from llama_index.embeddings.lmk.encoders import Settings, shared_encoder
from llama_index.embeddings.lmk.landmarks import is_encoded
from lmk_rag import LandmarkConfig, LandmarkEncoder
from lmk_rag.config import as_config


def _name(value: object) -> object:
    # A folder by its whole path: a pickle may wake up elsewhere.
    if isinstance(value, str | Path) and value != "default" and Path(value).expanduser().is_dir():
        return str(Path(value).expanduser().resolve())
    return str(value) if isinstance(value, Path) else value


class LMKEmbedding(BaseEmbedding):
    """Embed texts of any length: the mean of their landmark states.

    Args:
        model_name: a folder or hub id, as in `LandmarkEncoder`; "default": the default model.
        config: how texts are cut, as a `LandmarkConfig` or a dict of its fields; None: as the
            checkpoint says. Query and document prompts are part of it.
        device, dtype, trust_remote_code, batch_tokens: as in `LandmarkEncoder`.
        embed_batch_size: texts handed to the encoder at once, which makes its own batches of
            windows of like length from them.
        embeddings_cache: any LlamaIndex key-value store. Keys carry role and encoder, so that
            queries and documents, and models, never mix.

    Examples:
        `pip install 'lmk-rag[llama-index]'`

        ```python
        from llama_index.embeddings.lmk import LMKEmbedding

        embed_model = LMKEmbedding(config={"granularity": 32})
        vector = embed_model.get_text_embedding("a text of any length")
        ```

    The model loads on first use, once in a process for all instances of equal settings; pickles
    and dicts hold settings only.
    """

    model_config = ConfigDict(extra="forbid")

    model_name: Annotated[str, BeforeValidator(_name)] = Field(
        default="default", description="Folder or hub id of the model."
    )
    config: Annotated[LandmarkConfig | None, BeforeValidator(as_config)] = Field(
        default=None, description="How texts are cut; None: as the checkpoint says."
    )
    device: str = Field(default="auto", description="auto, or a torch device name.")
    dtype: str = Field(default="auto", description="auto, float32, bfloat16 or float16.")
    trust_remote_code: bool = Field(default=False, description="Run code the model brings.")
    batch_tokens: int | None = Field(default=None, description="Padded tokens per batch.")
    embed_batch_size: int = Field(
        default=128, gt=0, le=2048, description="Texts handed to the encoder at once."
    )

    _loaded: tuple[Settings, LandmarkEncoder] | None = PrivateAttr(default=None)

    @classmethod
    def class_name(cls) -> str:
        """Return the name used in serialized form."""
        return "LMKEmbedding"

    @property
    def encoder(self) -> LandmarkEncoder:
        """The encoder, shared by all components of equal settings: don't close it."""
        settings: Settings = (
            None if self.model_name == "default" else self.model_name,
            self.config,
            self.device,
            self.dtype,
            self.trust_remote_code,
            self.batch_tokens,
        )
        if self._loaded is None or self._loaded[0] != settings:
            self._loaded = settings, shared_encoder(settings)
        return self._loaded[1]

    def get_query_embedding(self, query: str) -> Embedding:
        """Embed a query."""
        return super(LMKEmbedding, self._as("query")).get_query_embedding(query)

    async def aget_query_embedding(self, query: str) -> Embedding:
        """As `get_query_embedding`, off the event loop."""
        own = await asyncio.to_thread(self._as, "query")
        return await super(LMKEmbedding, own).aget_query_embedding(query)

    def get_text_embedding(self, text: str) -> Embedding:
        """Embed a text."""
        return super(LMKEmbedding, self._as("text")).get_text_embedding(text)

    async def aget_text_embedding(self, text: str) -> Embedding:
        """As `get_text_embedding`, off the event loop."""
        own = await asyncio.to_thread(self._as, "text")
        return await super(LMKEmbedding, own).aget_text_embedding(text)

    def get_text_embedding_batch(
        self, texts: list[str], show_progress: bool = False, **kwargs: Any
    ) -> list[Embedding]:
        """Embed texts, in order."""
        own = self._as("text")
        return super(LMKEmbedding, own).get_text_embedding_batch(texts, show_progress, **kwargs)

    async def aget_text_embedding_batch(
        self, texts: list[str], show_progress: bool = False, **kwargs: Any
    ) -> list[Embedding]:
        """As `get_text_embedding_batch`, off the event loop."""
        own = await asyncio.to_thread(self._as, "text")
        return await super(LMKEmbedding, own).aget_text_embedding_batch(
            texts, show_progress, **kwargs
        )

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Embed nodes, but for those that `LMKNodeParser` made: they have better vectors."""
        super().__call__([node for node in nodes if not is_encoded(node)], **kwargs)
        return nodes

    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """As `__call__`, off the event loop."""
        await super().acall([node for node in nodes if not is_encoded(node)], **kwargs)
        return nodes

    def _get_query_embedding(self, query: str) -> Embedding:
        vector: Embedding = self.encoder.encode_queries([query])[0].tolist()
        return vector

    async def _aget_query_embedding(self, query: str) -> Embedding:
        return await asyncio.to_thread(self._get_query_embedding, query)

    def _get_text_embedding(self, text: str) -> Embedding:
        return self._get_text_embeddings([text])[0]

    async def _aget_text_embedding(self, text: str) -> Embedding:
        return await asyncio.to_thread(self._get_text_embedding, text)

    def _get_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        return [embedding.vector.tolist() for embedding in self.encoder.encode_documents(texts)]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)

    def _as(self, role: str) -> Self:
        """Return a copy whose cache holds the vectors of one role and encoder only."""
        if self.embeddings_cache is None:
            return self
        prefix = f"{role}:{self.encoder.fingerprint}:"
        cache = PrefixedKVStore(self.embeddings_cache, prefix)
        return self.model_copy(update={"embeddings_cache": cache})

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state["__pydantic_private__"] = None  # unpickling an encoder would load it
        return state
