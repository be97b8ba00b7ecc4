"""Jacobian-vector products of bound symbols: by PyTorch's own forward AD, or by the derivative of the backward."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.autograd import forward_ad

from thunder_core.foundation.errors.tree import first_line
from thunder_core.passes.autodiff.tape import Tape, Underivable, pairs_of
from thunder_core.passes.autodiff.vjp import derive, evaluate_on_tape
from thunder_core.tracing.analysis.data_errors import is_check
from thunder_core.tracing.analysis.own_derivatives import has_derivative_rule
from thunder_core.tracing.capture.fakes.fake import empty, new_mode
from thunder_core.tracing.capture.torch_facts.quiet_attempts import quiet_attempt
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import TensorProxy, environment_of
from thunder_core.tracing.ir.symbol import BoundSymbol


@dataclass(frozen=True)
class JVP:
    """The Jacobian-vector product (JVP) of a bound symbol, as bound symbols (`bsyms`).

    `bsyms` compute the `tangents` of the results from the `input_tangents`. Both map the name of a tensor to its
    tangent. `bsyms` also read the inputs and results of the bound symbol. If `computes_results` is set, they compute
    the results, too, and replace the bound symbol; otherwise they run after it.
    """

    input_tangents: Mapping[str, TensorProxy]
    bsyms: tuple[BoundSymbol, ...]
    tangents: Mapping[str, TensorProxy]
    computes_results: bool


def derive_jvp(bsym: BoundSymbol, tangents: Mapping[str, TensorProxy]) -> JVP:
    """Return the JVP of a bound symbol for tangents of its inputs with this metadata.

    Raises `Underivable` for a bound symbol that writes to a tensor with a tangent, or that PyTorch has no formula for.
    """
    if any(name in tangents for name in bsym.mutates):
        raise Underivable("it writes to a tensor that has a tangent")
    if has_derivative_rule(bsym) or not all(map(_is_pytorch_operation, bsym.at_level("aten"))):
        return _by_backward(bsym, tangents)
    jvp = _by_dual_numbers_in_thread(bsym, tangents)
    if isinstance(jvp, JVP):
        return jvp
    try:
        return _by_backward(bsym, tangents)
    except Underivable as second:
        raise Underivable(jvp) from second


def _is_pytorch_operation(operation: BoundSymbol) -> bool:
    """Whether an operation is PyTorch's own.

    For custom operations without a JVP, forward AD silently drops tangents.
    """
    return operation.symbol.name.startswith("torch.ops.aten.")


def _by_dual_numbers_in_thread(bsym: BoundSymbol, tangents: Mapping[str, TensorProxy]) -> JVP | str:
    """Return the JVP by dual numbers, or, as a string, the reason why PyTorch cannot compute it.

    The attempt runs in a separate thread, because a failing formula of PyTorch leaves autograd switched off in the
    thread's dispatcher.
    """
    answers: list[JVP | str] = []

    def run() -> None:
        try:
            answers.append(_by_dual_numbers(bsym, tangents))
        except Exception as error:  # PyTorch's formulas may raise any exception
            answers.append(first_line(error))

    with quiet_attempt():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    return answers[0]


def _by_dual_numbers(bsym: BoundSymbol, tangents: Mapping[str, TensorProxy]) -> JVP:
    """Return the JVP from a run on fakes with dual numbers, PyTorch's own forward-mode derivative."""
    mode, tape = new_mode(environment_of(bsym.inputs)), Tape("%s")
    with mode:
        inputs = {proxy.name: empty(proxy) for proxy in bsym.inputs if isinstance(proxy, TensorProxy)}
        tangent_fakes = {name: empty(proxy) for name, proxy in tangents.items() if name in inputs}
    for proxy in bsym.inputs:
        if isinstance(proxy, TensorProxy):
            tape.bind(inputs[proxy.name], proxy)
    tangent_names = {name: tape.new_proxy(fake) for name, fake in tangent_fakes.items()}
    tangent_proxies: dict[str, TensorProxy] = {}
    with _dual_level() as level:
        with mode, tape:
            duals = {
                name: torch._VF._make_dual(inputs[name], fake, level=level) for name, fake in tangent_fakes.items()
            }
        inputs |= duals
        output = evaluate_on_tape(bsym, inputs, mode, tape)
        with mode:
            _require_no_new_tangents((fake for name, fake in inputs.items() if name not in duals), level)
        for proxy, tensor in pairs_of(bsym.output, output):
            tape.bind_result(tensor, proxy)
            with mode, tape:
                tangent = torch._VF._unpack_dual(tensor, level=level)[1]
            if tangent is not None:
                tangent_proxies[proxy.name] = tape.proxy(tangent)
    return _prune(bsym, tangent_names, tape.functionalize(), tangent_proxies)


def _require_no_new_tangents(inputs: Iterable[torch.Tensor], level: int) -> None:
    """Raise `Underivable` if an operation has written a value with a tangent to one of these tensors without one."""
    if any(torch._VF._unpack_dual(fake, level=level)[1] is not None for fake in inputs):
        raise Underivable("it writes values that have a tangent to a tensor that has none")


def _by_backward(bsym: BoundSymbol, tangents: Mapping[str, TensorProxy]) -> JVP:
    """Return the JVP from the backward: the derivative of the backward with respect to its cotangents.

    The backward is linear in the cotangents, so this derivative is the transpose of the VJP.
    """
    derivation = derive(bsym, frozenset(tangents))
    if derivation is None:
        return JVP({}, (), {}, computes_results=False)
    tape, mode = derivation.tape.continue_in_backward(), derivation.mode
    with torch.inference_mode(False), mode:
        tangent_fakes = [empty(tangents[proxy.name]) for proxy in derivation.differentiated_inputs]
        dummies = [torch.empty_like(output, requires_grad=True) for output in derivation.outputs]
    inputs_with_tangents = zip(derivation.differentiated_inputs, tangent_fakes, strict=True)
    tangent_names = {proxy.name: tape.new_proxy(fake) for proxy, fake in inputs_with_tangents}
    zeros = [tape.new_proxy(dummy) for dummy in dummies]
    try:
        with torch.inference_mode(False), torch.enable_grad(), mode, tape:
            gradients = torch.autograd.grad(
                derivation.outputs, derivation.inputs, dummies, create_graph=True, allow_unused=True
            )
            pairs = [(grad, fake) for grad, fake in zip(gradients, tangent_fakes, strict=True) if grad is not None]
            results = torch.autograd.grad(
                [gradient for gradient, _ in pairs], dummies, [fake for _, fake in pairs], allow_unused=True
            )
    except Underivable:
        raise
    except Exception as error:
        raise Underivable(f"its backward has no derivative: {type(error).__name__}: {first_line(error)}") from error
    results_with_tangents = zip(derivation.results, results, strict=True)
    tangent_proxies = {proxy.name: tape.proxy(fake) for proxy, fake in results_with_tangents if fake is not None}
    filled = [_zeros(name, proxy) for name, proxy in zip(zeros, derivation.results, strict=True)]
    return _prune(bsym, tangent_names, [*derivation.bsyms, *filled, *tape.functionalize()], tangent_proxies)


def _zeros(name: TensorProxy, like: TensorProxy) -> BoundSymbol:
    """Return the bound symbol that makes zeros with a tensor's metadata."""
    return BoundSymbol(symbol_of(torch.ops.aten.zeros_like.default), (like,), {}, name)


def _prune(
    bsym: BoundSymbol,
    tangents: Mapping[str, TensorProxy],
    bsyms: Sequence[BoundSymbol],
    result_tangents: Mapping[str, TensorProxy],
) -> JVP:
    """Return the JVP with only the operations that the tangents depend on.

    If one of these operations has an effect or makes a result of the bound symbol, the JVP replaces the bound symbol.
    Then it also contains the operations that the results depend on.
    """
    results = {proxy.name for proxy in bsym.outputs}
    names = {proxy.name for proxy in result_tangents.values()}
    operations = list(_operations_for(bsyms, names, results))
    if any(bsym.has_effect or any(proxy.name in results for proxy in bsym.defines) for bsym in operations):
        operations = list(_operations_for(bsyms, names | results))
        return JVP(tangents, tuple(operations), result_tangents, computes_results=True)
    return JVP(tangents, tuple(operations), result_tangents, computes_results=False)


def _operations_for(
    bsyms: Sequence[BoundSymbol], names: Iterable[str], available: Iterable[str] = ()
) -> Iterator[BoundSymbol]:
    """Return those bound symbols, in order, that are needed to compute these names from the `available` names.

    Checks of computed tensors, such as that of a solver for a singular matrix, are needed too, because they raise
    eager's error.
    """
    defined, needed = set(available), set[int]()
    read = set(names) - defined
    for index, bsym in reversed([*enumerate(bsyms)]):
        if read & ({proxy.name for proxy in bsym.outputs} | set(bsym.mutates)):
            needed.add(index)
            read |= {proxy.name for proxy in bsym.inputs} - defined
    computed = {proxy.name for index in needed for proxy in bsyms[index].outputs}
    for index, bsym in enumerate(bsyms):
        is_checked = is_check(bsym.symbol.target) and any(proxy.name in computed for proxy in bsym.inputs)
        if index in needed or is_checked:
            yield bsym


@contextmanager
def _dual_level() -> Iterator[int]:
    """Make dual numbers possible within this context, by entering the one level that PyTorch supports.

    `forward_ad.make_dual` is not used, because it first loads TorchScript's derivatives, which takes a second.
    """
    level: int = forward_ad.enter_dual_level()  # type: ignore[no-untyped-call]
    try:
        yield level
    finally:
        forward_ad.exit_dual_level(level=level)  # type: ignore[no-untyped-call]
