"""Programs under `thunderfx`, compared with eager PyTorch: results, gradients, writes and random numbers."""

from __future__ import annotations

import copy

import pytest
import torch

import thunder_core as thunder
from tests.dynamo.outcome import assert_same, outcome
from tests.dynamo.programs import FUNCTIONS, Splitting

# Warnings of Dynamo itself about tensors and functions of the user, whether Thunder compiles the graphs or not.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]
NO_GRAPH = ("break_in_loop", "tries")


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_program_matches_eager(function, training):
    compiled = thunder.thunderfx(function)
    for rows in (3, 5, 6):
        x = torch.arange(rows * 3.0).view(rows, 3) / 7 - 0.5
        x = x[:3] if function.__name__ == "random_numbers" else x
        expected = outcome(function, x, training=training)
        assert_same(outcome(compiled, x, training=training), expected)
        assert_same(outcome(compiled, x, training=training), expected)
    left_alone = {split.function for split in thunder.splits(compiled)}
    assert (function.__name__ in left_alone) == (function.__name__ in NO_GRAPH) == (not thunder.graphs(compiled))


def test_module_in_training_and_evaluation_matches_eager(capsys):
    model, reference = Splitting(), Splitting()
    reference.load_state_dict(model.state_dict())
    compiled = thunder.thunderfx(model)
    for mode in (True, False, True):
        for module in (compiled, reference):
            module.train(mode)
        x = torch.randn(5, 4)
        assert_same(outcome(compiled, x, training=True), outcome(reference, x, training=True))
        assert_same([p.grad for p in model.parameters()], [p.grad for p in reference.parameters()])
        assert_same(dict(model.named_buffers()), dict(reference.named_buffers()))
    assert capsys.readouterr().out == "between\n" * 6
    assert all(thunder.last_backward_traces(graph) for graph in thunder.graphs(compiled)[:2])


def test_a_module_is_of_its_class_and_shares_its_state():
    model = torch.nn.Linear(2, 2)
    compiled = thunder.thunderfx(model)
    assert isinstance(compiled, torch.nn.Linear)
    assert compiled.weight is model.weight
    assert list(compiled.state_dict()) == ["weight", "bias"]
    copied = copy.deepcopy(compiled)
    assert copied.weight is not model.weight
    x = torch.randn(3, 2)
    assert torch.equal(copied(x), model(x))
    assert torch.equal(compiled.forward(x), model(x))
    assert len(thunder.graphs(copied)) == 1
