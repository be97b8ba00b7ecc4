"""A cached call of a torch function, and its key: calls with equal signatures differ only in names.

The result of an operation depends on the operation, its constants and the metadata of its tensors. Models repeat their
layers, so nearly every call of a trace has an equal earlier call. A cache lookup takes a tenth of the time of a call on
fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

from thunder_core.foundation.quick_objects import ComputedOnce
from thunder_core.tracing.capture.fakes.faithful import FaithfulMode
from thunder_core.tracing.capture.fakes.fake import mark
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy
from thunder_core.tracing.ir.sizes import size_for_trace
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import leaves

CONSTANTS = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
# classes in which equal constants are interchangeable
SINGLE_FORM = frozenset({*CONSTANTS, type(Ellipsis)} - {float, complex})
RESULTS = (*CONSTANTS, torch.Tensor, torch.SymInt)  # classes of results, or of their items, that can be cached
Metadata = tuple[Hashable, ...]
Described = tuple[Metadata, int]  # with the identity of the tensor's storage


@dataclass(frozen=True)
class MemoizedResult:
    """A tensor that the call returned: its proxy, and the position of the input that it shares memory with.

    If `is_differentiable_view` is set, autograd treats the tensor as a view of that input: a write to either is a write
    to both.
    """

    proxy: TensorProxy
    view_of: int | None
    offset: Any
    is_differentiable_view: bool = False


@dataclass(frozen=True)
class CachedCall:
    """A call as it was first recorded: its bound symbol, the tensors that it read and made, and its result.

    `intermediates` are the tensors that its aten operations make and that it does not return.
    """

    bsym: BoundSymbol | None
    read: tuple[tuple[torch.Tensor, TensorProxy], ...]
    results: tuple[MemoizedResult, ...]
    intermediates: tuple[TensorProxy, ...]
    result: Any

    @ComputedOnce
    def fresh(self) -> list[torch.Tensor]:
        """The tensors of the result that the call made, in the order of `results`."""
        ids_read = {id(tensor) for tensor, _ in self.read}
        returned = {id(leaf): leaf for leaf in leaves(self.result) if isinstance(leaf, torch.Tensor)}
        return [tensor for number, tensor in returned.items() if number not in ids_read]


def metadata(proxy: TensorProxy) -> Metadata:
    """Return the metadata of a tensor that operations depend on, as a key."""
    return (proxy.shape, proxy.stride, proxy.dtype, proxy.device, proxy.is_conj, proxy.is_neg, proxy.requires_grad)


def signature(
    function: Callable[..., Any], args: object, kwargs: object, describe: Callable[[torch.Tensor], Described | None]
) -> tuple[Hashable | None, list[torch.Tensor]]:
    """Return the key of a call, or None if the call cannot be cached, and the tensors that the call reads.

    The key distinguishes one tensor that is passed twice from two tensors, and shared memory from separate memory. The
    tensors are without duplicates, in order, and complete if there is a key.
    """
    parts: list[Hashable] = [function]
    seen: dict[Any, int] = {}
    read: list[torch.Tensor] = []
    is_described = _add_descriptions((args, kwargs), parts, seen, read, describe)
    return (tuple(parts) if is_described and read else None), read


def _add_descriptions(
    trees: Iterable[Any],
    parts: list[Hashable],
    seen: dict[Any, int],
    read: list[torch.Tensor],
    describe: Callable[[torch.Tensor], Described | None],
) -> bool:
    """Add the descriptions of trees to the parts, and their tensors to `read`.

    Return False if a leaf cannot be described.
    """
    for tree in trees:
        kind = type(tree)
        if kind in SINGLE_FORM:
            parts.append((kind, tree))
        elif isinstance(tree, torch.Tensor):
            number = seen.get(id(tree))
            if number is None:
                number = seen[id(tree)] = len(seen)
                read.append(tree)
            described = describe(tree)
            if described is None:
                return False
            parts.append((number, seen.setdefault((described[1],), len(seen)), described[0]))
        elif isinstance(tree, torch.SymInt):
            parts.append((torch.SymInt, tree.node.expr))
        elif kind is float or kind is complex:
            parts.append((kind, repr(tree)))  # by text, because 0.0 and -0.0 are equal numbers
        else:
            label, items = _items_of(tree, kind)
            parts.append(label)
            if items is None or (items and not _add_descriptions(items, parts, seen, read, describe)):
                return False
    return True


def _items_of(tree: Any, kind: type) -> tuple[Hashable, Iterable[Any] | None]:
    """Return a container's description without its items, and its items; no items for other objects."""
    if kind is tuple or kind is list or (isinstance(tree, tuple | list) and not getattr(tree, "__dict__", None)):
        return (kind, len(tree)), tree
    if kind is dict:
        return tuple(tree), tree.values()
    if kind is slice:
        return slice, (tree.start, tree.stop, tree.step)
    return None, None


def cached_call(
    bsym: BoundSymbol | None, read: list[tuple[torch.Tensor, TensorProxy]], output: Any, proxy_of: Any
) -> CachedCall | None:
    """Return the cache entry of a call without random numbers and writes; None if its result is unusual."""
    if not all(isinstance(leaf, RESULTS) for leaf in leaves(output)) or not _is_plain(output):
        return None
    if not all(leaf.layout is torch.strided for leaf in leaves(output) if isinstance(leaf, torch.Tensor)):
        return None  # sparse tensors have no storage
    ids_read = {id(tensor) for tensor, _ in read}
    returned = {id(leaf): leaf for leaf in leaves(output) if isinstance(leaf, torch.Tensor)}
    tensors = [tensor for identity, tensor in returned.items() if identity not in ids_read]
    if any(tensor.requires_grad or tensor.constant is not None for tensor in tensors):  # type: ignore[attr-defined]
        return None
    outputs = tuple(
        _describe_result(tensor, [tensor_read for tensor_read, _ in read], proxy_of(tensor)) for tensor in tensors
    )
    if len({tensor.untyped_storage()._cdata for tensor in tensors}) < sum(1 for m in outputs if m.view_of is None):
        return None  # results that share memory with each other
    outer = {proxy.name for _, proxy in read} | {result.proxy.name for result in outputs}
    inner = {p.name: p for sub in (bsym.subsymbols if bsym else ()) for p in sub.tensors if p.name not in outer}
    if bsym is not None and any(_is_foreign(p, outer, inner) for s in bsym.subsymbols for p in s.inputs):
        return None
    return CachedCall(bsym, tuple(read), outputs, tuple(inner.values()), output)


def _is_foreign(proxy: Proxy, outer: Container[str], inner: Container[str]) -> bool:
    """Whether a proxy that a call's operation reads belongs to another call, as after a cast by autocast.

    Symbolic sizes belong to no call, because the prologue computes them.
    """
    return not (isinstance(proxy, NumberProxy) or proxy.name in outer or proxy.name in inner)


def _describe_result(tensor: torch.Tensor, read: list[torch.Tensor], proxy: TensorProxy) -> MemoizedResult:
    """Describe a result, with the position of the first input that it is a view of, or otherwise shares memory with."""
    storage, base = tensor.untyped_storage()._cdata, tensor._base
    sharing = [number for number, tensor_read in enumerate(read) if tensor_read.untyped_storage()._cdata == storage]
    viewed = [number for number in sharing if base is not None and (read[number] is base or read[number]._base is base)]
    input_index = next(iter(viewed or sharing), None)
    return MemoizedResult(
        proxy, input_index, size_for_trace(tensor.storage_offset()), is_differentiable_view=bool(viewed)
    )


def _is_plain(output: object) -> bool:
    """Whether a result consists of plain tuples and lists, which `rebuild` rebuilds."""
    if isinstance(output, tuple | list):
        return type(output) in (tuple, list, torch.Size) and all(_is_plain(item) for item in output)
    return not isinstance(output, dict)


def fresh_fake(output: MemoizedResult, read: list[torch.Tensor], mode: FaithfulMode) -> torch.Tensor:
    """Return a fake tensor for a result of a cached call; a view shares the storage of its base again."""
    proxy = output.proxy
    with no_dispatch():
        if output.view_of is None:
            meta = torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device="meta")
        else:
            storage = read[output.view_of].untyped_storage()
            meta = torch.empty(0, dtype=proxy.dtype, device="meta")
            meta.set_(storage, 0, (0,), (1,))  # with symbolic sizes, `set_` would decide whether they are contiguous
            meta.as_strided_(proxy.shape, proxy.stride, output.offset)
        return mark(mode.fake(meta, proxy.device), is_conj=proxy.is_conj, is_neg=proxy.is_neg)


def rebuild(result: Any, fakes: Mapping[int, torch.Tensor]) -> Any:
    """Return a cached result with its tensors replaced by new ones."""
    if isinstance(result, torch.Tensor):
        return fakes[id(result)]
    if type(result) in (tuple, list):
        return type(result)(rebuild(item, fakes) for item in result)
    return result
