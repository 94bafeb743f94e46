"""Training objectives on numbers worked out by hand."""

import math

import pytest
import torch

pytest.importorskip("datasets", reason="the extra `train` is not installed")

from lmk_rag.training.objectives import (
    best_of_parts,
    cosines,
    group_distillation,
    info_nce,
    masked_token_loss,
    relation_divergence,
    score_divergence,
    vector_distillation,
)

NOTHING_BLOCKED = torch.zeros(2, 3, dtype=torch.bool)


def test_cosines_do_not_depend_on_length():
    rows = torch.tensor([[3.0, 0.0], [0.0, 0.5]])
    assert torch.allclose(cosines(rows, torch.tensor([[1.0, 1.0]])), torch.tensor(2**-0.5))


def test_info_nce_is_the_cross_entropy_of_the_positive():
    similarities = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.0]])
    loss = info_nce(similarities, torch.tensor([0, 1]), NOTHING_BLOCKED, 0.5)
    first = -2 + math.log(math.exp(2) + 2)
    second = -1 + math.log(math.exp(1) + 2)
    assert loss.item() == pytest.approx((first + second) / 2)


def test_a_blocked_candidate_is_no_negative_and_gets_no_gradient():
    similarities = torch.tensor([[0.2, 0.9, 0.1]], requires_grad=True)
    blocked = torch.tensor([[False, True, False]])
    loss = info_nce(similarities, torch.tensor([0]), blocked, 1.0)
    assert loss.item() == pytest.approx(-0.2 + math.log(math.exp(0.2) + math.exp(0.1)))
    loss.backward()
    assert similarities.grad[0, 1] == 0
    assert similarities.grad[0, 2] > 0


def test_the_positive_itself_is_never_blocked():
    loss = info_nce(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([[True, False]]), 1.0)
    assert loss.item() == pytest.approx(math.log(2))


def test_with_everything_blocked_the_loss_is_zero_and_the_gradient_finite():
    similarities = torch.ones(2, 2, requires_grad=True)
    loss = info_nce(similarities, torch.tensor([0, 1]), torch.ones(2, 2, dtype=torch.bool), 0.02)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(similarities.grad, torch.zeros(2, 2))


def test_group_distillation_masks_the_members_before():
    similarities = torch.tensor([[0.0, 1.0, 2.0]])
    loss = group_distillation(
        similarities,
        torch.tensor([[1, 0]]),
        torch.tensor([[math.log(3.0), 0.0]]),
        torch.zeros(1, 3, dtype=torch.bool),
        temperature=1.0,
    )
    whole = math.log(1 + math.e + math.e**2)
    without_first = math.log(1 + math.e**2)
    assert loss.item() == pytest.approx(0.75 * (whole - 1) + 0.25 * without_first)


def test_group_distillation_of_one_member_is_info_nce():
    similarities = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    group = torch.tensor([[2], [0]])
    loss = group_distillation(
        similarities, group, torch.zeros(2, 1), NOTHING_BLOCKED, temperature=0.05
    )
    assert torch.allclose(loss, info_nce(similarities, group[:, 0], NOTHING_BLOCKED, 0.05))


def test_scores_that_agree_with_the_teacher_cost_nothing():
    teacher = torch.tensor([[0.3, 0.1], [0.2, 0.9]])
    assert score_divergence(teacher + 5, teacher, 0.05).item() == pytest.approx(0, abs=1e-5)
    # KL(0.5, 0.5 || 0.75, 0.25)
    student = torch.tensor([[math.log(3.0), 0.0]])
    expected = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert score_divergence(student, torch.zeros(1, 2), 1.0).item() == pytest.approx(expected)


def test_relation_divergence_compares_which_rows_are_alike():
    rows = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    turned = torch.linalg.qr(torch.randn(12, 8, generator=torch.Generator().manual_seed(1)))[0]
    wider = 3 * rows @ turned.T  # another width and length, the same angles
    assert relation_divergence(rows, wider, 0.05).item() == pytest.approx(0, abs=1e-5)
    # Rows 0 and 1 are alike to the teacher; to the student all are equally far from each other.
    student = torch.eye(3)
    teacher = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    alike, other = math.e / (math.e + 1), 1 / (math.e + 1)
    expected = alike * math.log(alike / 0.5) + other * math.log(other / 0.5)  # of rows 0 and 1
    assert relation_divergence(student, teacher, 1.0).item() == pytest.approx(expected * 2 / 3)
    assert relation_divergence(student[:2], teacher[:2], 1.0).item() == 0


def test_vector_distillation_is_the_mean_of_one_minus_cosine():
    student = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    teacher = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert vector_distillation(student, teacher).item() == pytest.approx(0.5)


def test_best_of_parts_is_the_best_landmark_of_each():
    similarities = torch.tensor([[0.1, 0.7, 0.3], [0.2, -0.5, 0.4]])
    best = best_of_parts(similarities, torch.tensor([0, 0, 2]), 3)
    assert torch.equal(best, torch.tensor([[0.7, -1.0, 0.3], [0.2, -1.0, 0.4]]))


def test_masked_token_loss_counts_the_masked_tokens_only():
    logits = torch.zeros(1, 3, 4)
    logits[0, 1, 2] = 9.0
    assert masked_token_loss(logits, torch.tensor([[1, -100, -100]])).item() == pytest.approx(
        math.log(4)
    )
    assert masked_token_loss(logits, torch.full((1, 3), -100)).item() == 0
