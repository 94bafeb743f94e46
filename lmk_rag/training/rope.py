"""Convert a BERT encoder with learned absolute positions into one with rotary positions.

The weights of a post-norm BERT map one to one onto transformers' native `JinaEmbeddingsV3Model`
(post-norm, GELU, rotary positions). The table of positions has no counterpart and is dropped; its
mean over the first rows is added to the token types, so that the first LayerNorm sees the
statistics it was trained with. Right afterwards the vectors mean little: training has to follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lmk_rag.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NAMES = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.o_proj",
    "attention.output.LayerNorm": "post_attention_layernorm",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "output.LayerNorm": "post_mlp_layernorm",
}
_TYPICAL = 256  # rows of the position table that most texts use


def to_rotary(
    model: PreTrainedModel, *, max_length: int = 8_192, theta: float = 10_000.0
) -> PreTrainedModel:
    """Return a new model with rotary positions and the weights of a BERT.

    Args:
        model: a `BertModel` with absolute positions; it is not changed.
        max_length: the longest window the new model takes.
        theta: base of the rotary frequencies.

    Raises:
        CheckpointError: another architecture.
    """
    from transformers import JinaEmbeddingsV3Config, JinaEmbeddingsV3Model

    old = model.config
    positions = getattr(old, "position_embedding_type", "absolute")
    if old.model_type != "bert" or positions != "absolute":
        raise CheckpointError(
            f"the model is of type {old.model_type!r}; only BERT with absolute positions can be "
            "converted to rotary ones"
        )
    new = JinaEmbeddingsV3Model(
        JinaEmbeddingsV3Config(
            vocab_size=old.vocab_size,
            hidden_size=old.hidden_size,
            num_hidden_layers=old.num_hidden_layers,
            num_attention_heads=old.num_attention_heads,
            intermediate_size=old.intermediate_size,
            hidden_act=old.hidden_act,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=max_length,
            type_vocab_size=old.type_vocab_size,
            layer_norm_eps=old.layer_norm_eps,
            pad_token_id=old.pad_token_id,
            bos_token_id=None,
            eos_token_id=None,
            rope_parameters={"rope_type": "default", "rope_theta": theta},
        )
    )
    weights = {key: value.detach().clone() for key, value in model.state_dict().items()}
    table = weights.pop("embeddings.position_embeddings.weight")
    weights["embeddings.token_type_embeddings.weight"] += table[:_TYPICAL].mean(0)
    renamed: dict[str, torch.Tensor] = {}
    for key, value in weights.items():
        name = key.replace("encoder.layer.", "layers.")
        # `attention.output.dense` ends like `output.dense`: the longest name that fits wins.
        for part in sorted(_NAMES, key=len, reverse=True):
            if f".{part}." in name:
                name = name.replace(f".{part}.", f".{_NAMES[part]}.")
                break
        renamed[name] = value
    known = set(new.state_dict())
    missing = known - set(renamed) - {n for n in known if n.endswith(("inv_freq", "position_ids"))}
    if missing:
        raise CheckpointError(f"the model holds no weights for {', '.join(sorted(missing))}")
    new.load_state_dict({n: v for n, v in renamed.items() if n in known}, strict=False)
    new.train(False)
    return new
