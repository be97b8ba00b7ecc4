"""Symbols for integers that the prologue computes from tensors: result sizes, and values that the program reads.

A result size is, for example, the number of nonzero elements. The prologue can compute a value only if each operation
between the inputs and the value is a PyTorch operation or a function of numbers (`math.sqrt`, `operator.add`), uses no
random numbers, and writes only to memory that these operations allocated. Any other value that the program reads is a
constant of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.tracing.capture.call import RecordedCall
from thunder_core.tracing.capture.fakes.tensors import Tensors
from thunder_core.tracing.capture.fakes.trial import outside_recording
from thunder_core.tracing.capture.quantities import COUNT, NUMBER, QUANTITIES, TENSOR, VALUE, Quantity, find_quantity
from thunder_core.tracing.capture.symbolic.calls import OPAQUE
from thunder_core.tracing.capture.symbolic.composites import COMPOSITES
from thunder_core.tracing.capture.symbolic.sizes import SymbolicSizes
from thunder_core.tracing.capture.values import TracedValues
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol

MAX_OPERATIONS = 1000  # the largest number of operations that compute one value in the prologue
# Functions that are repeatable, although the trace may hold no ATen operations for them.
ALWAYS_REPEATABLE = COMPOSITES | OPAQUE | frozenset((*QUANTITIES, torch.Tensor.__setitem__))
NUMBER_MODULES = ("_operator", "builtins", "math")  # the modules of functions that compute numbers from numbers
TORCH_NAMESPACES = ("aten", "prims")
# Smaller values are constants, because a size of 0 or 1 changes strides and broadcasting.
MIN_SYMBOLIC_VALUE = 2


SourceOf = Callable[[Quantity, Sequence[BoundSymbol], Proxy, int], Any]


@dataclass
class Counts:
    """The symbols of a recording for result sizes and for numbers that the program reads from tensors.

    `allowed` is True if tensor values may be read. `source_of(quantity, bsyms, proxy, value)` returns the source of a
    quantity of a proxy: the object from which code of the prologue is generated. It returns None if the quantity must
    be a constant. The `bsyms` compute the proxy from inputs, and `value` is the quantity in the recorded call.
    `symbols` maps a name, a version and the text of a quantity to a symbol. The name is that of a tensor, or of a
    number that is read from a tensor; the version of a number is 0. `dependent_names` are names of values that depend
    on inputs.
    """

    sizes: SymbolicSizes | None
    tensors: Tensors
    evaluation: TracedValues
    allowed: bool
    source_of: SourceOf
    symbols: dict[tuple[str, int, str], torch.SymInt] = field(default_factory=dict)
    dependent_names: set[str] = field(default_factory=set)

    @contextmanager
    def symbolic_result_size(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], call: RecordedCall
    ) -> Iterator[None]:
        """Make the result size of the call in the block a symbol, if it depends on tensor values and the prologue can
        compute it.

        If the size is such a symbol, `call.has_counted_size` is set to True.
        """
        tensor_and_quantity = find_quantity(function, args, kwargs) if self.allowed else None
        size = None if tensor_and_quantity is None else self._symbol_of_tensor(*tensor_and_quantity)
        if tensor_and_quantity is None or size is None or self.sizes is None:
            yield
            return
        tensor, quantity = tensor_and_quantity
        call.has_counted_size = True
        if quantity is COUNT:
            tensor.nonzero_memo = size  # type: ignore[attr-defined]
        try:
            with self.sizes.environment.counting(size):
                yield
        except Exception:
            call.has_counted_size = False
            raise

    def can_use_count(self, tensor: torch.Tensor) -> bool:
        """Whether the number of a tensor's nonzero elements may be a result size: it has a symbol, or all sizes are
        constants.
        """
        fake = self.tensors.fake(tensor)
        return self.sizes is None or (self.allowed and self._symbol_of_tensor(fake, COUNT) is not None)

    def _symbol_of_tensor(self, fake: torch.Tensor, quantity: Quantity) -> torch.SymInt | None:
        """Return the symbol of a quantity of a tensor, or None if the quantity is a constant."""
        if not self.tensors.is_named(fake) or fake.is_inference():
            return None
        proxy = self.tensors.proxy(fake)
        return self._symbol((proxy.name, fake._version, quantity.expression), quantity, proxy, proxy, least=1)

    def symbol_of_result(self, maker: BoundSymbol) -> torch.SymInt | None:
        """Return the symbol of the integer that a bound symbol reads from a tensor or computes; None for a constant."""
        is_item_call = maker.symbol.target is torch.Tensor.item
        if not self.allowed or not (is_item_call or module_of(maker.symbol.target) in NUMBER_MODULES):
            return None
        quantity, proxy = (VALUE, maker.args[0]) if is_item_call else (NUMBER, maker.output)
        return self._symbol((maker.output.name, 0, quantity.expression), quantity, proxy, maker.output)

    def _symbol(
        self, key: tuple[str, int, str], quantity: Quantity, proxy: Proxy, target: Proxy, least: int | None = None
    ) -> torch.SymInt | None:
        """Return the symbol of a quantity, made at its first use; None for a constant.

        `least` is the least value of a size. The other arguments are those of `_source_and_value_of`.
        """
        if key not in self.symbols:
            source, value = self._source_and_value_of(quantity, proxy, target) or (None, 0)
            if source is None or self.sizes is None or value < (least or MIN_SYMBOLIC_VALUE):
                return None
            self.symbols[key] = self._mark_as_computed_in_prologue(self.sizes.symbol(source, value, least=least))
        return self.symbols[key]

    def source_and_value(self, tensor: torch.Tensor) -> tuple[Any, torch.Tensor] | None:
        """Return the source and the value of a tensor in this call; None if the prologue cannot compute the tensor."""
        fake = self.tensors.fake(tensor)
        if not self.allowed or not self.tensors.is_named(fake) or fake.is_inference() or fake.requires_grad:
            return None
        proxy = self.tensors.proxy(fake)
        if (computed := self._operations_and_value(proxy)) is None:
            return None
        bsyms, value = computed
        source = self.source_of(TENSOR, bsyms, proxy, value)
        return None if source is None else (source, value)

    def _mark_as_computed_in_prologue(self, size: torch.SymInt) -> torch.SymInt:
        """Record that the prologue computes a symbol from tensors, and return the symbol."""
        size.node.shape_env.counts |= size.node._expr.free_symbols
        return size

    def _operations_and_value(self, target: Proxy) -> tuple[Sequence[BoundSymbol], Any] | None:
        """Return the operations that the prologue can repeat for a proxy, and its value; None if it cannot."""
        bsyms = self.evaluation.bsyms_for(target)
        if bsyms is None or len(bsyms) > MAX_OPERATIONS or not self._are_repeatable(bsyms):
            return None
        if self.evaluation.first_effect() is not None:
            return None
        try:
            return bsyms, self.evaluation.value(target)
        except Exception:  # the operations raise the same error for these values when the program runs
            return None

    def _source_and_value_of(self, quantity: Quantity, proxy: Proxy, target: Proxy) -> tuple[Any, int] | None:
        """Return the source and the value of a quantity in this call, or None if the prologue cannot compute it.

        `proxy` is the tensor or number that the quantity is read from. `target` is the proxy that the prologue
        computes: `proxy` itself, or the result of `proxy.item()`.
        """
        if (computed := self._operations_and_value(target)) is None:
            return None
        bsyms, value = computed
        with outside_recording():
            number = int(quantity.compute(value) if isinstance(value, torch.Tensor) else value)
        makers = bsyms if target is proxy else [bsym for bsym in bsyms if target not in bsym.outputs]
        return self.source_of(quantity, makers, proxy, number), number

    def are_constants(self, proxies: Sequence[Proxy]) -> bool:
        """Whether proxies have the same values at each call, because no input of the program affects them."""
        return bool(proxies) and all(map(self._is_constant, proxies))

    def _is_constant(self, proxy: Proxy) -> bool:
        """Whether a proxy has the same value at each call.

        If an input affects the value, the names between them are noted: programs that read many values would otherwise
        search for the same inputs many times.
        """
        names, leads_to_input = self._first_ancestors(proxy)
        bsyms = None if leads_to_input else self.evaluation.bsyms_for(proxy)
        if not bsyms or not self._are_repeatable(bsyms) or inputs_of(bsyms):
            self.dependent_names |= names
            return False
        return True

    def _first_ancestors(self, proxy: Proxy) -> tuple[set[str], bool]:
        """Return the names to which the first inputs of operations lead, and whether they lead to an input."""
        names: set[str] = set()
        while proxy.name not in names:
            names.add(proxy.name)
            maker = self.evaluation.first_maker_of(proxy)
            if proxy.name in self.dependent_names or maker is None:
                return names, True
            proxy = next(iter(maker.inputs), proxy)
        return names, False

    def _are_repeatable(self, bsyms: Sequence[BoundSymbol]) -> bool:
        """Whether the prologue may run bound symbols: all are repeatable, and they write only to new memory."""
        written = self.evaluation.memory_of({name for bsym in bsyms for name in bsym.mutates})
        writes_only_new_memory = None not in written and written.isdisjoint(self.evaluation.memory_of(inputs_of(bsyms)))
        return (not written or writes_only_new_memory) and all(map(is_repeatable, bsyms))


def inputs_of(bsyms: Sequence[BoundSymbol]) -> set[str]:
    """Return the names that bound symbols read but do not define."""
    defined = {proxy.name for bsym in bsyms for proxy in bsym.defines}
    return {proxy.name for bsym in bsyms for proxy in bsym.inputs} - defined


def is_repeatable(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol consists of repeatable operations, is not ordered, and does not communicate."""
    if bsym.symbol.target in ALWAYS_REPEATABLE:
        return True
    operations = [part.symbol.target for part in bsym.subsymbols] or [bsym.symbol.target]
    return not (bsym.ordered or bsym.communicates) and all(map(is_repeatable_operation, operations))


def is_repeatable_operation(operation: Any) -> bool:
    """Whether an operation of PyTorch or a function of numbers computes the same result for the same inputs."""
    if operation is torch.Tensor.item or module_of(operation) in NUMBER_MODULES:
        return True
    is_torch = isinstance(operation, torch._ops.OpOverload) and operation.namespace in TORCH_NAMESPACES
    return is_torch and torch.Tag.nondeterministic_seeded not in operation.tags


def module_of(function: object) -> str:
    """Return the name of the module that defines a function, or an empty string if it is unknown."""
    return str(getattr(function, "__module__", ""))
