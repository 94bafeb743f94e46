"""BERT with absolute positions, converted to rotary ones."""

import pytest
import torch
from transformers import AutoModel

pytest.importorskip("datasets", reason="the extra `train` is not installed")

from lmk_rag.errors import CheckpointError
from lmk_rag.training.rope import to_rotary


@pytest.fixture
def bert_model(model_folder):
    return AutoModel.from_pretrained(model_folder("bert")).eval()


def test_without_positions_both_read_alike(bert_model):
    """With the rotation switched off, the mapping of the weights is exact."""
    with torch.no_grad():
        table = bert_model.embeddings.position_embeddings.weight
        table[:] = table[:1]  # one position everywhere, so that its mean is itself
    new = to_rotary(bert_model, max_length=300, theta=1e30)
    new.rotary_emb.inv_freq.zero_()
    ids = torch.tensor([[2, 7, 8, 9, 3], [2, 30, 31, 32, 3]])
    with torch.no_grad():
        old_states = bert_model(input_ids=ids).last_hidden_state
        new_states = new(input_ids=ids).last_hidden_state
    assert torch.allclose(old_states, new_states, atol=1e-5)


def test_rotation_tells_positions_apart_far_beyond_the_old_table(bert_model):
    new = to_rotary(bert_model, max_length=300)
    ids = torch.randint(5, 60, (1, 200), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        states = new(input_ids=ids).last_hidden_state
        swapped = new(input_ids=ids.flip(1)).last_hidden_state.flip(1)
    assert torch.isfinite(states).all()
    assert not torch.allclose(states, swapped, atol=1e-3)
    assert new.config.max_position_embeddings == 300
    assert new.config.model_type == "jina_embeddings_v3"


def test_the_old_model_is_not_changed(bert_model):
    before = {name: value.clone() for name, value in bert_model.state_dict().items()}
    new = to_rotary(bert_model)
    with torch.no_grad():
        new.embeddings.word_embeddings.weight.zero_()
    assert all(torch.equal(before[name], value) for name, value in bert_model.state_dict().items())


def test_other_architectures_are_refused(model_folder):
    model = AutoModel.from_pretrained(model_folder("roberta"))
    with pytest.raises(CheckpointError, match="'roberta'; only BERT"):
        to_rotary(model)
