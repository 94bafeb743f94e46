"""The model that a recipe starts from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from lmk_rag.checkpoint import load_checkpoint, minilm, position_limit, with_config
from lmk_rag.errors import CheckpointError, ConfigError
from lmk_rag.training.modules import LandmarkPooling, LandmarkTransformer
from lmk_rag.training.precision import cast_parameters
from lmk_rag.training.recipe import Recipe
from lmk_rag.training.rope import to_rotary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LATENTS = 64  # as in the paper's comparison
_USUALLY_FROZEN = ("pooler",)


def build_model(recipe: Recipe, *, device: str = "auto") -> SentenceTransformer:
    """Return the model that a recipe starts from, without dropout, frozen as it says.

    Raises:
        CheckpointError: it can't be read or converted, or has layers that are not trained.
        ConfigError: what may be drawn fits no window, or what is to be frozen is not there.
    """
    checkpoint = load_checkpoint(recipe.model or minilm("the recipe's model"), dtype=torch.float32)
    if checkpoint.dense is not None and recipe.whitening is None:
        raise CheckpointError(
            f"{checkpoint.name!r} has dense layers after its pooling, which are not trained; "
            "give the recipe a whitening, whose layer takes their place, or start from an encoder "
            "without"
        )
    network: PreTrainedModel = checkpoint.model
    if recipe.rotary:
        network = to_rotary(network, max_length=recipe.config.max_length or 8_192)
    length = recipe.config.max_length or checkpoint.max_length
    limit = position_limit(network)
    if limit is not None and length > limit:
        raise ConfigError(f"max_length is {length}, but the model takes at most {limit} tokens")
    recipe.check_window(length)
    checkpoint.tokenizer.model_max_length = length  # saved with the model, and believed
    _without_dropout(network)
    _check_frozen(recipe, network)
    for name, parameter in network.named_parameters():
        parameter.requires_grad = not name.startswith(recipe.freeze) if recipe.freeze else True
    if recipe.dtype == "bfloat16":
        cast_parameters(network, torch.bfloat16)
    transformer = LandmarkTransformer(
        with_config(replace(checkpoint, model=network, max_length=length), recipe.config),
        pooling=recipe.pooling,
    )
    _check_prompts(recipe, transformer)
    pooling = LandmarkPooling(
        transformer.get_embedding_dimension(),
        latents=_LATENTS if recipe.pooling == "latent" else 0,
    )
    prompts = {
        "query": transformer.config.query_prompt,
        "document": transformer.config.document_prompt,
    }
    return SentenceTransformer(
        modules=[transformer, pooling],
        device=None if device == "auto" else device,
        prompts={name: prompt for name, prompt in prompts.items() if prompt},
    )


def landmark_transformer(model: SentenceTransformer) -> LandmarkTransformer:
    """Return the first module of a model as `build_model` makes it."""
    first = model[0]
    assert isinstance(first, LandmarkTransformer)
    return first


def _check_prompts(recipe: Recipe, transformer: LandmarkTransformer) -> None:
    """Make sure that whatever may be drawn fits a window beside the model's prompts."""
    config = transformer.config
    for prompt, sizes in (
        (config.query_prompt, recipe.query_granularities),
        (config.document_prompt, recipe.granularities),
    ):
        for boundary in recipe.boundaries:
            widest = replace(config, granularity=max(sizes), boundary=boundary)
            transformer.lay_out("", prompt=prompt, config=widest)


def _check_frozen(recipe: Recipe, network: nn.Module) -> None:
    names = [name for name, _ in network.named_parameters()]
    for prefix in set(recipe.freeze) - set(_USUALLY_FROZEN):  # not every model has those
        if not any(name.startswith(prefix) for name in names):
            tops = sorted({name.partition(".")[0] for name in names})
            raise ConfigError(
                f"freeze has {prefix!r}, with which no parameter begins; they begin with "
                f"{', '.join(tops)}"
            )


def _without_dropout(network: nn.Module) -> None:
    # Distillation wants the student's own answer, and gradient caching the same one twice.
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010  # nn.Module types it a tensor
