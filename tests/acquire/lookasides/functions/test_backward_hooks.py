"""Hooks that a program registers are called by later backward passes, with the arguments and effects of eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

import thunder_core as thunder
from thunder_core.foundation.errors import CannotReplay

Compile = Callable[[Any], Any]
Log = list[Any]
CALLS = 3


def copies(values: Any) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), values)


def eager(subject: Any) -> Any:
    return subject


def assert_same(run: Callable[[Compile], Any]) -> None:
    """Compare the results of a run with `thunder.jit` and in eager PyTorch."""
    wanted, found = tree_leaves(run(eager)), tree_leaves(run(thunder.jit))
    assert wanted
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert isinstance(theirs, Tensor) or ours == theirs
        assert not isinstance(theirs, Tensor) or torch.equal(ours, theirs)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def leaf(first: float = 0.0) -> Tensor:
    return (torch.arange(3.0) + first).requires_grad_()


# ---- hooks of modules ---------------------------------------------------------------------------------------------


def full(model: nn.Sequential, log: Log) -> None:
    model[0].register_full_backward_hook(lambda _, *gradients: log.append(copies(gradients)))


def full_that_changes(model: nn.Sequential, log: Log) -> None:
    model[2].register_full_backward_hook(lambda _, inputs, outputs: (inputs[0] * 3,))


def full_of_root(model: nn.Sequential, log: Log) -> None:
    model.register_full_backward_hook(lambda _, inputs, outputs: (inputs[0] * 0,))


def before(model: nn.Sequential, log: Log) -> None:
    def hook(module: nn.Module, outputs: Any) -> Any:
        log.append(copies(outputs))
        return (outputs[0] * 2,)

    model[1].register_full_backward_pre_hook(hook)


def before_root(model: nn.Sequential, log: Log) -> None:
    model.register_full_backward_pre_hook(lambda _, outputs: (outputs[0] * 2,))


def old(model: nn.Sequential, log: Log) -> None:
    def hook(module: nn.Module, *gradients: Any) -> Any:
        log.append(copies(gradients))
        return (gradients[0][0] * 5,)

    model[1].register_backward_hook(hook)


def of_output(model: nn.Sequential, log: Log) -> None:
    model[0].register_forward_hook(lambda module, args, output: output.register_hook(log.append) and None)


def of_node(model: nn.Sequential, log: Log) -> None:
    def hook(inputs: Any, outputs: Any) -> Any:
        log.append(copies((inputs, outputs)))
        return (inputs[0] * 2,)

    model[1].register_forward_hook(lambda module, args, output: output.grad_fn.register_hook(hook) and None)


def before_node(model: nn.Sequential, log: Log) -> None:
    def hook(outputs: Any) -> Any:
        log.append(copies(outputs))
        return (outputs[0] * 2,)

    model[1].register_forward_hook(lambda module, args, output: output.grad_fn.register_prehook(hook) and None)


def per_sample(model: nn.Sequential, log: Log) -> None:
    """Return per-sample gradients as Opacus does: a forward hook stores the values that a backward hook reads."""

    def keep(module: Any, args: Any, output: Any) -> None:
        module.activations.append(args[0].detach())

    def compute(module: Any, inputs: Any, outputs: Any) -> None:
        module.weight.grad_sample = torch.einsum("ni,nj->nij", outputs[0], module.activations.pop())
        log.append(copies(module.weight.grad_sample))

    for module in (model[0], model[2]):
        module.activations = []
        module.register_forward_hook(keep)
        module.register_full_backward_hook(compute)


def removed(model: nn.Sequential, log: Log) -> None:
    model[0].register_full_backward_hook(lambda *_: log.append("called")).remove()


def of_all_modules(model: nn.Sequential, log: Log) -> Any:
    return nn_module.register_module_full_backward_hook(lambda module, *args: log.append((str(module), copies(args))))


def before_all_modules(model: nn.Sequential, log: Log) -> Any:
    return nn_module.register_module_full_backward_pre_hook(lambda module, args: log.append(copies(args)))


@pytest.fixture(autouse=True)
def no_hooks_of_all_modules() -> Iterator[None]:
    yield
    nn_module._global_backward_hooks.clear()
    nn_module._global_backward_pre_hooks.clear()
    nn_module._global_is_full_backward_hook = None


@pytest.mark.parametrize("is_compiled_before", [False, True])
@pytest.mark.parametrize(
    "register",
    [
        full, full_that_changes, full_of_root, before, before_root, old, of_output, of_node, before_node, per_sample,
        removed, of_all_modules, before_all_modules,
    ],
)  # fmt: skip
def test_a_hook_of_a_module_is_called_by_a_backward_pass_outside(
    register: Callable[[Any, Log], Any], is_compiled_before: bool
) -> None:
    def run(compile_: Compile) -> Any:
        model, log = network(), Log()
        called, gradients = compile_(model), []
        if is_compiled_before:
            called(torch.ones(2, 3))
            called(torch.ones(2, 3, requires_grad=True))
        handle = register(model, log)
        for call in range(CALLS):
            x = torch.linspace(-1, call, 6).reshape(2, 3).requires_grad_()
            called(x).square().sum().backward()
            gradients.append(x.grad)
        if handle is not None:
            handle.remove()
        return gradients, [parameter.grad for parameter in model.parameters()], log

    assert_same(run)


class Pair(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * y, x + y


def test_hooks_of_a_module_with_several_inputs_and_results_get_all_gradients() -> None:
    def run(compile_: Compile) -> Any:
        model, log = Pair(), Log()
        model.register_full_backward_hook(lambda _, inputs, outputs: log.append(copies((inputs, outputs))))
        model.register_full_backward_pre_hook(lambda _, outputs: (outputs[0] * 2, outputs[1]))
        called, x, y = compile_(model), leaf(), leaf(1.0)
        for factor in (y, y.detach()):
            product, total = called(x, factor)
            (product.sin() + total.cos()).sum().backward()
        called(x, y)[0].sin().sum().backward()
        return x.grad, y.grad, log

    assert_same(run)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_a_hook_of_a_module_whose_inputs_need_no_gradient_is_called() -> None:
    def run(compile_: Compile) -> Any:
        torch.manual_seed(0)
        model, log = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2)), Log()
        for module in (model, model[0]):
            module.register_full_backward_hook(lambda _, *gradients: log.append(copies(gradients)))
        called = compile_(model)
        for call in range(CALLS):
            called(torch.tensor([1, 2 + call])).sum().backward()
        return [parameter.grad for parameter in model.parameters()], log

    assert_same(run)


def test_hooks_of_a_module_that_is_called_twice_are_called_for_each_call() -> None:
    def run(compile_: Compile) -> Any:
        torch.manual_seed(0)
        model, log, x = nn.Linear(3, 3), Log(), leaf()
        model.register_full_backward_hook(lambda _, inputs, outputs: log.append(copies(outputs)) or (inputs[0] * 2,))
        called = compile_(lambda x: model(model(x).relu()) + model(x))
        for _ in range(CALLS):
            called(x).sum().backward()
        return x.grad, model.weight.grad, log

    assert_same(run)


def test_a_hook_of_the_compiled_module_is_called_until_it_is_removed() -> None:
    def run(compile_: Compile) -> Any:
        torch.manual_seed(0)
        x, log, called = leaf(), Log(), compile_(nn.Linear(3, 3))
        handle = called.register_full_backward_hook(lambda _, inputs, outputs: log.append(copies(inputs)))
        called(x).sum().backward()
        called.register_full_backward_pre_hook(lambda _, outputs: (outputs[0] * 3,))
        called(x).sum().backward()
        handle.remove()
        called(x).sum().backward()
        return x.grad, log

    assert_same(run)


def test_a_hook_of_a_module_sees_the_gradient_of_a_gradient() -> None:
    def run(compile_: Compile) -> Any:
        model, log, x = network(), Log(), torch.ones(2, 3, requires_grad=True)
        model[1].register_full_backward_hook(lambda _, inputs, outputs: log.append(copies((inputs, outputs))))
        (gradient,) = torch.autograd.grad(compile_(model)(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        return gradient, x.grad, log

    assert_same(run)


def test_a_hook_that_a_program_registers_at_a_module_for_one_call_is_called() -> None:
    def run(compile_: Compile) -> Any:
        torch.manual_seed(0)
        model, log, x = nn.Linear(3, 3), Log(), leaf()

        def program(x: Tensor) -> Tensor:
            handle = model.register_full_backward_hook(lambda _, *gradients: log.append(copies(gradients)))
            result = model(x)
            handle.remove()
            return result.sin()

        called = compile_(program)
        for _ in range(CALLS):
            called(x).sum().backward()
        return x.grad, log

    assert_same(run)


# ---- hooks of tensors and nodes -----------------------------------------------------------------------------------


def reads_what_is_computed(x: Tensor, log: Log) -> Tensor:
    doubled, total = x * 2, x.sum()
    doubled.register_hook(lambda gradient: log.append(copies((gradient, total))) or gradient * total)
    return doubled.sin()


def changed_in_place_behind(x: Tensor, log: Log) -> Tensor:
    y = x * 3
    y.register_hook(lambda gradient: log.append(("before", copies(gradient))))
    y.mul_(2)
    y.register_hook(lambda gradient: log.append(("behind", copies(gradient))))
    return y.sin()


def changes_its_gradient_in_place(x: Tensor, log: Log) -> Tensor:
    y = x * 2

    def hook(gradient: Tensor) -> None:
        gradient.mul_(3)

    (z := y.sin()).register_hook(hook)
    return z * y


def removes_itself(x: Tensor, log: Log) -> Tensor:
    y = x * 3

    def hook(gradient: Tensor) -> None:
        log.append(copies(gradient))
        handle.remove()

    handle = y.register_hook(hook)
    return y.sin()


def removed_by_the_program(x: Tensor, log: Log) -> Tensor:
    y = x * 3
    with y.register_hook(lambda gradient: log.append("called")):
        z = y.sin()
    z.register_hook(lambda gradient: log.append("called")).remove()
    return z


def bound_arguments(x: Tensor, log: Log) -> Tensor:
    def hook(number: int, gradient: Tensor) -> None:
        log.append((number, copies(gradient)))

    for number in range(3):
        x = x.sin()
        x.register_hook(partial(hook, number))
    return x


def of_leaf(x: Tensor, log: Log) -> Tensor:
    x.register_hook(lambda gradient: log.append(copies(gradient)))
    return x.cos()


def behind_accumulation(x: Tensor, log: Log) -> Tensor:
    x.register_post_accumulate_grad_hook(lambda leaf: log.append(copies(leaf.grad)))
    return x.cos()


def of_next_node(x: Tensor, log: Log) -> Tensor:
    y = (x * 2).sin()
    y.grad_fn.next_functions[0][0].register_hook(lambda *gradients: log.append(copies(gradients)))
    return y.cos()


def of_one_of_two_equal_nodes(x: Tensor, log: Log) -> Tensor:
    y, z = (x * 2).sin(), (x * 2).cos()
    y.grad_fn.next_functions[0][0].register_hook(lambda *gradients: log.append(copies(gradients)))
    return y + z


def of_a_node_within_a_function(x: Tensor, log: Log) -> Tensor:
    weight = x.reshape(1, 3) * 1
    y, z = (torch.nn.functional.linear(x, weight) for _ in range(2))
    y.grad_fn.next_functions[0][0].register_hook(lambda *gradients: log.append(copies(gradients)))
    return y.sin() + z.cos()


def of_several(x: Tensor, log: Log) -> Tensor:
    y = x * 2
    z = y.cos()
    torch.autograd.graph.register_multi_grad_hook((y, z, x), lambda gradients: log.append(copies(gradients)))
    torch.autograd.graph.register_multi_grad_hook((y, z), lambda gradient: log.append(copies(gradient)), mode="any")
    torch.autograd.graph.register_multi_grad_hook((y, z), lambda gradients: log.append("called")).remove()
    return y.sin() + z


def of_view(x: Tensor, log: Log) -> Tensor:
    y = x * 2
    view = y[0:2]
    for tensor in (view, y):
        tensor.register_hook(lambda gradient: log.append(copies(gradient)))
    return view.sin().sum() + y


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


def of_node_of_own_function(x: Tensor, log: Log) -> Tensor:
    y = Tripled.apply(x)
    y.grad_fn.register_hook(lambda *gradients: log.append(copies(gradients)))
    return y.sin()


def for_the_value_of_a_branch(x: Tensor, log: Log) -> Tensor:
    y = x * 2
    y.register_hook(lambda gradient: log.append(copies(gradient)))
    return y.sin() if y.sum() > 10 else y.cos()


def in_a_checkpoint(x: Tensor, log: Log) -> Tensor:
    def part(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda gradient: gradient * 3)
        return y.sin()

    return checkpoint(part, x, use_reentrant=False)


def of_its_own_pass_too(x: Tensor, log: Log) -> Tensor:
    y = x * 2
    y.register_hook(lambda gradient: log.append(copies(gradient)) or gradient * 2)
    z = y.sin()
    (gradient,) = torch.autograd.grad(z.sum(), x, retain_graph=True)
    return z + gradient.detach()


PROGRAMS: tuple[Callable[[Tensor, Log], Tensor], ...] = (
    reads_what_is_computed, changed_in_place_behind, changes_its_gradient_in_place, removes_itself,
    removed_by_the_program, bound_arguments, of_leaf, behind_accumulation, of_next_node, of_one_of_two_equal_nodes,
    of_a_node_within_a_function, of_several, of_view, of_node_of_own_function, for_the_value_of_a_branch,
    in_a_checkpoint, of_its_own_pass_too,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_hook_that_a_program_registers_is_called_by_each_backward_pass_outside(program: Any) -> None:
    def run(compile_: Compile) -> Any:
        log, gradients = Log(), []
        called = compile_(lambda x: program(x, log))
        for call in range(CALLS):
            x = leaf(float(call))
            result = called(x).sum()
            result.backward(retain_graph=True)
            result.backward()
            gradients.append(x.grad)
        return gradients, log

    assert_same(run)


@pytest.mark.parametrize("program", [reads_what_is_computed, bound_arguments, of_view])
def test_a_hook_of_a_tensor_is_called_in_the_gradient_of_a_gradient(program: Any) -> None:
    def run(compile_: Compile) -> Any:
        log, x = Log(), leaf()
        (gradient,) = torch.autograd.grad(compile_(lambda x: program(x, log))(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        return gradient, x.grad, log

    assert_same(run)


def test_hooks_of_an_input_that_was_computed_outside_are_called() -> None:
    def run(compile_: Compile) -> Any:
        log, x = Log(), leaf()

        def program(y: Tensor) -> Tensor:
            y.grad_fn.register_hook(lambda *gradients: log.append(copies(gradients)))
            y.register_hook(lambda gradient: log.append(copies(gradient)))
            return y.cos()

        called = compile_(program)
        for _ in range(CALLS):
            called(x.exp()).sum().backward()
        return x.grad, log

    assert_same(run)


def test_a_handle_that_a_program_returns_removes_the_hook() -> None:
    def run(compile_: Compile) -> Any:
        log = Log()

        def program(x: Tensor) -> tuple[Tensor, Any]:
            y = x * 3
            return y.sin(), y.register_hook(lambda gradient: log.append(copies(gradient)))

        called = compile_(program)
        for call in range(4):
            result, handle = called(leaf(float(call)))
            if call % 2:
                handle.remove()
            result.sum().backward()
            log.append(call)
        return log

    assert_same(run)


class KeepsGradients(nn.Module):
    """A network that keeps an activation and its gradient, as Grad-CAM does."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.handles, self.gradients = network(), Log(), Log()

    def forward(self, x: Tensor) -> Tensor:
        self.activation = self.network[:2](x)
        self.handles.append(self.activation.register_hook(self.keep))
        return self.network[2](self.activation)

    def keep(self, gradient: Tensor) -> None:
        self.gradients.append(copies(gradient))


def test_handles_and_gradients_that_a_module_keeps_match_eager() -> None:
    def run(compile_: Compile) -> Any:
        model = KeepsGradients()
        called, met = compile_(model), []
        for call in range(4):
            result = called(torch.linspace(-1, call, 6).reshape(2, 3))
            if call == 2:
                model.handles[-1].remove()
            result[:, 0].sum().backward()
            met.append((copies(model.activation), len(model.gradients), len(model.handles)))
        return met, model.gradients

    assert_same(run)


def test_node_that_a_program_keeps_is_the_node_of_autograds_graph() -> None:
    """DistributedDataParallel keeps the nodes that accumulate gradients, because autograd does not keep them."""

    def run(compile_: Compile) -> Any:
        torch.manual_seed(0)
        model, log, nodes = nn.Linear(3, 2), Log(), Log()

        def program(x: Tensor) -> Tensor:
            node = model.weight.view_as(model.weight).grad_fn.next_functions[0][0]
            node.register_hook(lambda *gradients: log.append(copies(gradients)))
            node.register_prehook(lambda gradients: log.append(copies(gradients)))
            nodes.append(node)
            return model(x)

        called = compile_(program)
        for _ in range(CALLS):
            called(torch.ones(3)).sum().backward()
        return model.weight.grad, log, [node.name() for node in nodes]

    assert_same(run)


def test_retain_grad_of_a_kept_activation_is_its_gradient() -> None:
    def run(compile_: Compile) -> Any:
        kept, x = Log(), leaf()

        def program(x: Tensor) -> Tensor:
            y = x * 2
            y.retain_grad()
            kept.append(y)
            return y.sin()

        called = compile_(program)
        for _ in range(CALLS):
            called(x).sum().backward()
        return x.grad, [tensor.grad for tensor in kept]

    assert_same(run)


def test_the_error_of_a_hook_is_raised_by_backward() -> None:
    log: dict[str, Any] = {}

    @thunder.jit
    def program(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda gradient: log["key"])
        return y.sin()

    result = program(leaf()).sum()
    with pytest.raises(KeyError, match="key"):
        result.backward()


def test_a_hook_of_a_tensor_without_gradient_is_refused_as_in_eager() -> None:
    def program(x: Tensor) -> Tensor:
        (y := x * 2).register_hook(print)
        return y

    for called in (program, thunder.jit(program)):
        with pytest.raises(RuntimeError, match="cannot register a hook on a tensor that doesn't require gradient"):
            called(torch.ones(3))


def test_a_hook_at_a_node_of_a_graph_from_outside_is_refused() -> None:
    @partial(thunder.jit, data_dependent="error")
    def program(y: Tensor) -> Tensor:
        y.grad_fn.next_functions[0][0].register_hook(print)
        return y.cos()

    with pytest.raises(CannotReplay, match="the program reads a node of a graph from outside") as caught:
        program(leaf().exp().sin())
    assert caught.value.where is not None


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook:FutureWarning")
def test_backward_hook_of_a_module_that_dies_in_the_program() -> None:
    def program(x: Tensor) -> Any:
        module = nn.Sigmoid()
        module.register_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))
        module(x).backward(torch.ones(3))
        return x.grad

    compiled = thunder.jit(program, executors=("torch",))
    for run in (program, compiled, compiled):
        x = torch.zeros(3, requires_grad=True)
        assert run(x).tolist() == [0.5, 0.5, 0.5]
