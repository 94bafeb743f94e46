"""RetroMAE pretraining (Xiao et al. 2022, arXiv 2205.12035) with the landmark mean.

The encoder reads a text with some tokens masked; a one-layer decoder sees the text's pooled
vector and the same text with more tokens masked, and has to restore it. What the decoder can't
see has to be in the vector.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lmk_rag.training.loss import finite
from lmk_rag.training.objectives import masked_token_loss


class RetroMAELoss(nn.Module):
    """Masked token losses of encoder and decoder, for sentence-transformers' trainer.

    Args:
        model: a SentenceTransformer of `LandmarkTransformer` and `LandmarkPooling`.
        mask_id: the id that masked tokens get.
        encoder_rate, decoder_rate: shares of content tokens that are masked.
        heads: attention heads of the decoder.

    Landmarks, special tokens and padding are never masked. A loss that is no number is a
    `NonFiniteError`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        mask_id: int,
        encoder_rate: float = 0.3,
        decoder_rate: float = 0.5,
        heads: int = 12,
    ) -> None:
        super().__init__()
        self.model = model
        self.mask_id = mask_id
        self.encoder_rate = encoder_rate
        self.decoder_rate = decoder_rate
        width = self._embeddings().weight.shape[1]
        self.decoder = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True
        )
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(len(self._embeddings().weight)))

    def _embeddings(self) -> nn.Embedding:
        transformer: Any = self.model[0]  # type: ignore[index]
        found: nn.Embedding = transformer.auto_model.get_input_embeddings()
        return found

    def forward(
        self, features: list[dict[str, Any]], labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the losses of encoder and decoder over the documents of a batch."""
        del labels
        document = next(f for f in features if "content" in f)
        ids, content = document["input_ids"], document["content"]
        masked, wanted = mask_tokens(ids, content, self.encoder_rate, self.mask_id)
        output = self.model({**document, "input_ids": masked})
        states = output["token_embeddings"]
        hidden, hidden_wanted = mask_tokens(ids, content, self.decoder_rate, self.mask_id)
        inputs = self._embeddings()(hidden).float()
        # The pooled vector takes the place of the first token, [CLS].
        inputs = torch.cat((output["sentence_embedding"][:, None], inputs[:, 1:]), dim=1)
        decoded = self.decoder(
            inputs + _positions(inputs), src_key_padding_mask=document["attention_mask"] == 0
        )
        return finite(
            {
                "encoder": masked_token_loss(self._logits(states), wanted),
                "decoder": masked_token_loss(self._logits(decoded), hidden_wanted),
            }
        )

    def _logits(self, states: Tensor) -> Tensor:
        weight = self._embeddings().weight.float()
        logits: Tensor = self.head(states.float()) @ weight.T + self.bias
        return logits


def mask_tokens(ids: Tensor, content: Tensor, rate: float, mask_id: int) -> tuple[Tensor, Tensor]:
    """Mask a share of the content tokens, drawn from torch's generator.

    Args:
        ids: (B, T).
        content: (B, T) bool: what may be masked.
        rate: the share.
        mask_id: what masked tokens become.

    Returns:
        (B, T) masked ids, and (B, T) labels: the masked tokens, -100 elsewhere.
    """
    chosen = (torch.rand(ids.shape, device=ids.device) < rate) & content
    return ids.masked_fill(chosen, mask_id), ids.masked_fill(~chosen, -100)


def _positions(inputs: Tensor) -> Tensor:
    """Sinusoidal positions (T, D), for the decoder alone."""
    _, length, width = inputs.shape
    at = torch.arange(length, device=inputs.device)[:, None]
    rate = 10_000 ** (-torch.arange(0, width, 2, device=inputs.device) / width)
    table = torch.stack(((at * rate).sin(), (at * rate).cos()), dim=2).flatten(1)
    return table[:, :width]
