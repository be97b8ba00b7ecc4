"""Cross-entropy of logits, and without logits, against PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.executors.triton.closeness import DTYPES, assert_backward, assert_close, assert_forward, draw, draw_integers
from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton import cross_entropy as module
from thunder_executors.triton import linear_cross_entropy as linear
from thunder_executors.triton.cross_entropy import REDUCTIONS, cross_entropy, cross_entropy_gradient
from thunder_executors.triton.linear_cross_entropy import linear_cross_entropy, linear_cross_entropy_gradient


def labels_of(rows: int, words: int, ignored: int = -100) -> torch.Tensor:
    labels = draw_integers(rows, words)
    labels[1::3] = ignored
    return labels


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(5, 7), (3, 4099), (1, 1)], ids=str)
def test_cross_entropy_of_logits_equals_the_reference(
    shape: tuple[int, int], reduction: str, dtype: torch.dtype
) -> None:
    logits, labels = 3 * draw(*shape, dtype=dtype), labels_of(*shape)
    assert_forward(cross_entropy, logits, labels, -100, reduction, dtype=dtype)
    assert_backward(cross_entropy, logits, labels, -100, reduction)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cross_entropy_without_logits_equals_the_reference(
    reduction: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "CHUNK_CLASSES", 8)
    monkeypatch.setattr(linear, "CHUNK_ELEMENTS", 40)
    hidden, weight, labels = draw(5, 6, dtype=dtype), draw(19, 6, dtype=dtype, seed=1), labels_of(5, 19)
    assert len(linear_cross_entropy.launches(hidden, weight, labels)) == 3
    assert_forward(linear_cross_entropy, hidden, weight, labels, -100, reduction, dtype=dtype)
    assert_backward(linear_cross_entropy, hidden, weight, labels, -100, reduction)


@pytest.mark.parametrize("columns", [1, 2, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 47, 70])
def test_columns_of_several_threads_and_steps(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step has 16 columns, eight for each of two threads; great and small logits are at the ends of each."""
    monkeypatch.setattr(module, "LONGEST_FORWARD", 16)
    logits, labels = draw(3, columns), draw_integers(3, columns)
    logits[1, ::8] += 40
    logits[2, 7::8] = float("-inf")
    logits[2, :1] = 1
    assert_forward(cross_entropy, logits, labels, -100, "none")
    assert_close(cross_entropy(logits, labels)[1], logits.double().logsumexp(-1))


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 9, 19])
def test_nan_and_infinity_give_nan_as_in_pytorch(value: float, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_FORWARD", 16)
    logits, labels = draw(2, 20), torch.tensor([3, 3])
    logits[0, place] = value
    logits[1, 8 * (place // 8) : 8 * (place // 8) + 8] = value
    expected = functional.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(cross_entropy(logits, labels, reduction="none")[0], expected, equal_nan=True)


def test_the_gradients_are_operations_with_references() -> None:
    logits, labels, dloss = draw(5, 7), labels_of(5, 7), torch.tensor(0.5)
    assert_forward(cross_entropy_gradient, dloss, logits, labels, logits.logsumexp(-1))
    hidden, weight = draw(5, 3), draw(7, 3, seed=1)
    lse = functional.linear(hidden, weight).logsumexp(-1)
    assert_forward(linear_cross_entropy_gradient, dloss, hidden, weight, labels, lse)


def test_another_index_may_be_ignored() -> None:
    logits, labels = draw(6, 5), labels_of(6, 5, ignored=2)
    assert_forward(cross_entropy, logits, labels, 2)
    assert_backward(cross_entropy, logits, labels, 2)


def test_words_that_are_masked_out() -> None:
    logits = draw(3, 4100)
    logits[:, :4097] = float("-inf")
    logits[1, 2] = 100.0
    labels = torch.tensor([4098, 2, 4097])
    assert_forward(cross_entropy, logits, labels)
    assert_backward(cross_entropy, logits, labels)


def test_nothing_but_ignored_labels() -> None:
    logits, labels = draw(2, 3), torch.full((2,), -100)
    assert cross_entropy(logits, labels)[0].isnan()
    assert cross_entropy(logits, labels, reduction="sum")[0] == 0


def test_great_logits() -> None:
    logits = torch.tensor([[3e4, -3e4, 2.9e4], [1e4, 1e4, 1e4]])
    assert_forward(cross_entropy, logits, torch.tensor([2, 0]))
    assert_forward(cross_entropy, logits.half(), torch.tensor([2, 0]))


@pytest.mark.parametrize("label", [-1, 3, 2**40])
def test_loss_and_gradient_of_an_out_of_range_label_are_nan(label: int) -> None:
    logits = draw(2, 3).requires_grad_()
    loss, _ = cross_entropy(logits, torch.tensor([label, 0]), reduction="none")
    assert loss.isnan().tolist() == [True, False]
    loss.sum().backward()
    assert logits.grad.isnan().tolist() == [[True] * 3, [False] * 3]


def test_linear_gradient_of_an_out_of_range_label_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "CHUNK_CLASSES", 8)
    monkeypatch.setattr(linear, "CHUNK_ELEMENTS", 24)
    hidden, weight = draw(4, 6).requires_grad_(), draw(19, 6, seed=1)
    loss, _ = linear_cross_entropy(hidden, weight, torch.tensor([18, 19, -100, 0]), reduction="none")
    assert loss.isnan().tolist() == [False, True, False, False]
    loss.sum().backward()
    assert hidden.grad.isnan().any(1).tolist() == [False, True, False, False]
    assert hidden.grad[2].eq(0).all()


def test_rows_with_gaps_in_memory() -> None:
    storage, labels = draw(5, 20), labels_of(5, 7)
    for logits in (storage[:, 3:10], storage[:, ::3], storage.T[:5, :5]):
        assert_forward(cross_entropy, logits, labels % logits.shape[1])
        assert_backward(cross_entropy, logits, labels % logits.shape[1])
    assert_forward(cross_entropy, storage, torch.arange(10)[::2])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_no_rows(reduction: str) -> None:
    hidden, weight, labels = draw(0, 4).requires_grad_(), draw(9, 4), torch.zeros(0, dtype=torch.int64)
    ours, _ = linear_cross_entropy(hidden, weight, labels, -100, reduction)
    theirs = functional.cross_entropy(functional.linear(hidden, weight), labels, reduction=reduction)
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    ours.sum().backward()
    assert hidden.grad.shape == (0, 4)
    assert cross_entropy(draw(0, 4), labels, -100, "sum")[0] == 0


def test_the_loss_of_a_language_model() -> None:
    hidden, weight, labels = draw(4, 6, dtype=torch.bfloat16), draw(11, 6, dtype=torch.bfloat16), labels_of(4, 11)
    ours, _ = linear_cross_entropy(hidden, weight, labels)
    assert ours.dtype == torch.float32
    assert_close(ours, functional.cross_entropy(functional.linear(hidden, weight).float(), labels))


def test_unsupported_inputs_are_refused() -> None:
    with pytest.raises(KernelRefuses, match="one int64 label for each row"):
        cross_entropy(draw(2, 3), draw(2, 3))
    with pytest.raises(KernelRefuses, match="'middle'"):
        cross_entropy(draw(2, 3), torch.tensor([0, 1]), -100, "middle")
    with pytest.raises(KernelRefuses, match="of the same dtype"):
        linear_cross_entropy(draw(2, 3), draw(4, 3).half(), torch.tensor([0, 1]))


@pytest.mark.parametrize("shape", [(), (2,), (2, 3, 4)], ids=str)
def test_logits_of_other_dimensions_are_refused(shape: tuple[int, ...]) -> None:
    labels = torch.zeros(shape[:1], dtype=torch.int64)
    with pytest.raises(KernelRefuses, match=r"pass logits of shape \(rows, classes\)"):
        cross_entropy(torch.zeros(shape), labels)
    with pytest.raises(KernelRefuses, match="hidden states"):
        linear_cross_entropy(torch.zeros(shape), draw(4, 3), labels)
