"""Reads of all values of a tensor: as a NumPy array (`x.numpy()`) or as text (`repr(x)`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.foundation.errors import CannotReplay
from thunder_core.foundation.errors.tree import SourceLine
from thunder_core.tracing.analysis.uninitialized import is_uninitialized
from thunder_core.tracing.capture.data_dependent import DataDependentValues
from thunder_core.tracing.capture.fakes.buffers import addresses_of_buffer, addresses_of_tensor, contents_of, overlap
from thunder_core.tracing.capture.fakes.fake import mark
from thunder_core.tracing.capture.fakes.tensors import Tensors
from thunder_core.tracing.capture.symbolic.expectations import expectation_of
from thunder_core.tracing.capture.torch_facts.autograd_nodes import FROM_OUTSIDE
from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.library.objects import digest_of
from thunder_core.tracing.library.output import node_name


@dataclass(frozen=True, eq=False)
class Array:
    """An array of a tensor's data that the program holds, and its original bytes."""

    array: Any
    tensor: torch.Tensor
    before: bytes


class Data:
    """The data that a program reads from tensors; `record(function, args, kwargs)` runs a function on tensors.

    `note_query(tensor, query, answer)` is called with each query of a real tensor and its answer. The values come from
    the recorded call, and a bound symbol checks at each call that they are the same.
    """

    def __init__(
        self,
        tensors: Tensors,
        data_dependent: DataDependentValues,
        record: Callable[..., Any],
        note_query: Callable[[torch.Tensor, str, object], None],
    ) -> None:
        self._note_query = note_query
        self._tensors = tensors
        self._data_dependent = data_dependent
        self._record = record
        self._arrays: dict[int, Array] = {}
        self._owners: dict[int, Any] = {}
        self.shared: set[int] = set()  # identities (`memory_of`) of the memory that tensors share with arrays
        self.written: set[int] = set()  # the memory that the program writes to

    def values(self, function: Callable[..., Any], tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor with its values in this call, and record a check that the values stay the same."""
        data_dependent = self._data_dependent
        with torch._C.DisableTorchFunction():
            detached = self._tensors.fake(self._record(torch.Tensor.detach, (tensor,), {}))
            proxy = self._tensors.proxy(detached)
            values = data_dependent.evaluate(function, lambda: data_dependent.evaluation.value(proxy))
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            if values.numel() and is_uninitialized(proxy, data_dependent.bsyms):
                raise _reads_uninitialized(function, data_dependent.bsyms[-1].source)
            copied: torch.Tensor = values.detach().clone()
            digest = digest_of(copied)
        digest_proxy = Proxy(self._tensors.next_name())
        data_dependent.emit(BoundSymbol(symbol_of(digest_of), (proxy,), {}, digest_proxy))
        bsym = data_dependent.bsyms[-1]
        data_dependent.bsyms_read.append(replace(bsym, symbol=symbol_of(function)))
        data_dependent.emit(expectation_of(bsym, digest_proxy, digest))
        return copied

    # ---- arrays ---------------------------------------------------------------------------------------------

    def array(self, tensor: torch.Tensor, *, force: bool = False) -> Any:
        """Return `tensor.numpy()`: an array on the tensor's memory. Later writes to either of them are refused."""
        fake = self._tensors.fake(tensor)
        if not force and (fake.requires_grad or fake.is_conj() or fake.is_neg()):
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                like = mark(torch.empty(0, dtype=fake.dtype), is_conj=fake.is_conj(), is_neg=fake.is_neg())
                return like.requires_grad_(fake.requires_grad).numpy()  # raises the error of eager PyTorch
        values = self.values(torch.Tensor.numpy, tensor)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            array = values.numpy(force=force)
        self._arrays[id(array)] = Array(array, tensor, array.tobytes())
        self._owners[id(array.base)] = array.base
        self.shared.add(memory_of(fake))
        return array

    def convert(self, tensor: torch.Tensor, dtype: object = None) -> Any:
        """Return `tensor.__array__(dtype)`, with which NumPy makes an array of a tensor."""
        array = self.array(tensor)
        return array if dtype is None else array.astype(dtype, copy=False)

    def tensor_of(self, array: object) -> torch.Tensor | None:
        """Return the tensor whose memory an array shares, if the array was made from a tensor, or None."""
        exported = self._arrays.get(id(array))
        return None if exported is None else exported.tensor

    def owns(self, root: object) -> bool:
        """Whether an object owns the memory of an array that was made from a tensor."""
        return id(root) in self._owners

    def share(self, tensor: torch.Tensor, buffer: object) -> torch.Tensor:
        """Return a tensor that shares the memory of a buffer; later writes to either are refused."""
        self.shared.add(memory_of(self._tensors.fake(tensor)))
        self._tensors.note_buffer(buffer)
        return tensor

    def require_unwritten(self, buffers: Iterable[object]) -> None:
        """Raise `CannotReplay` if the program wrote to a buffer that shares memory with a tensor, or to such a tensor.

        `buffers` are the buffers from outside that C code has read.
        """
        exported = [(array.array, array.before) for array in self._arrays.values()]
        if any(contents_of(buffer) != before for buffer, before in (*exported, *self._tensors.buffers.values())):
            raise _writes_shared_memory(
                "the program writes to a NumPy array or another buffer after a tensor is made of it",
                "write to the tensor, or to a copy of the array",
            )
        written = [tensor for tensor, fake in self._tensors.outside_tensors() if memory_of(fake) in self.written]
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            is_shared = written and overlap(map(addresses_of_tensor, written), map(addresses_of_buffer, buffers))
        if is_shared:
            raise _writes_shared_memory(
                "the program writes to a tensor and reads a NumPy array or another buffer that shares its memory",
                "read the tensor, or copy the array",
            )

    # ---- texts ----------------------------------------------------------------------------------------------

    def text(self, tensor: torch.Tensor, **options: Any) -> str:
        """Return `repr(tensor)`, with its values and autograd's state."""
        values, fake = self.values(torch.Tensor.__repr__, tensor), self._tensors.fake(tensor)
        kind = torch.Tensor if type(tensor) is FakeTensor else type(tensor)
        node = self.node_of(tensor) if fake.requires_grad else ""
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            tensor_to_print = values.as_subclass(kind).requires_grad_(fake.requires_grad)
            text = torch.Tensor.__repr__(tensor_to_print, **options)  # type: ignore[no-untyped-call]
        head, mark, tail = text.rpartition("requires_grad=True")
        return f"{head}grad_fn=<{node}>{tail}" if node and mark else text

    def requires_grad(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor requires a gradient at this point of the program."""
        return self._tensors.fake(tensor).requires_grad

    def node_of(self, tensor: torch.Tensor) -> str:
        """Return the name of a tensor's autograd node, empty for a leaf; guard the name of an outside tensor."""
        node: Any = self._tensors.fake(tensor).grad_fn
        if self._tensors.is_outside(tensor) and (node is None or isinstance(node, FROM_OUTSIDE)):
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                node = tensor.grad_fn
            self._note_query(tensor, *(("is_leaf", True) if node is None else ("grad_fn.name()", node.name())))
        return "" if node is None else node_name(node)

    def format(self, tensor: torch.Tensor, specification: str) -> str:
        """Return `format(tensor, specification)`.

        A tensor without dimensions is formatted as a number. Another tensor is formatted as its `repr`; a specification
        raises `TypeError`, as in PyTorch.
        """
        kind = torch.Tensor if type(tensor) is FakeTensor else type(tensor)
        if self._tensors.fake(tensor).dim() == 0 and kind is torch.Tensor:
            return format(self._record(torch.Tensor.item, (tensor,), {}), specification)
        if specification:
            raise TypeError(f"unsupported format string passed to {kind.__name__}.__format__")
        head = "Parameter containing:\n" if kind is torch.nn.Parameter else ""
        return head + self.text(tensor)


DATA: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.Tensor.numpy: Data.array,
    torch.Tensor.__array__: Data.convert,
    torch.Tensor.__repr__: Data.text,
    torch.Tensor.__format__: Data.format,
}


def _writes_shared_memory(what: str, fix: str) -> CannotReplay:
    """Return the error for a write to memory that a tensor and a buffer share; `jit` runs such a call in eager
    PyTorch.
    """
    return CannotReplay(f"{what}; this write cannot be replayed", fix=fix)


def _reads_uninitialized(function: Callable[..., Any], source: SourceLine | None) -> CannotReplay:
    """Return the error for a read of uninitialized memory; `jit` runs such a call in eager PyTorch."""
    return CannotReplay(
        f"`{symbol_of(function).name}` reads uninitialized memory, whose values differ from call to call",
        fix="initialize the tensor first, for example by torch.zeros, or read its dtype and shape only",
        where=source,
    )
