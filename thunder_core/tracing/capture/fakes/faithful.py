"""Fake tensors with the metadata that PyTorch's kernels give to their results.

PyTorch's meta functions are often separate implementations in Python. Some give results other strides (`layouts.py` has
the rules). Meta functions that refuse dtypes which the kernel accepts, or return another dtype, are replaced here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._mode_utils import no_dispatch

from thunder_core.tracing.capture.fakes import quantized
from thunder_core.tracing.capture.fakes.absent_gpu import DEVICE_QUERIES, is_on_absent_gpu, restore, stand_in_for
from thunder_core.tracing.capture.fakes.meta_kernels import cheaper_operation, results_on_meta
from thunder_core.tracing.capture.symbolic.all_sizes import is_size_oblivious
from thunder_core.tracing.capture.symbolic.metadata import decide, deciding, is_symbolic_slice, slice_dimension
from thunder_core.tracing.capture.torch_facts.casts import require_castable
from thunder_core.tracing.capture.torch_facts.examples import example_of
from thunder_core.tracing.capture.torch_facts.indexing import indexing_strides
from thunder_core.tracing.capture.torch_facts.layouts import (
    RULES_FOR_EMPTY_TENSORS,
    Rule,
    is_symbolic,
    lay_out,
    rule,
    rule_of,
    tensors_of,
)
from thunder_core.tracing.capture.torch_facts.writes import versioned_lists
from thunder_core.tracing.ir.sizes import generic_hint_of, hint_of, symbolic_dense_strides
from thunder_core.tracing.ir.tree import leaves, replace_leaves

ALIGNMENT = 16  # bytes; the alignment of rows in grouped products and of their operands
MATRIX = 2  # dimensions
PYTORCHS_NAMESPACES = frozenset({"aten", "prim", "prims"})  # of operations without effects on other processes
GROUPED = (torch.float32, torch.bfloat16, torch.float16)


class FaithfulMode(FakeTensorMode):
    """A mode in which operations compute only metadata, with the strides that kernels give to their results.

    With `estimates_sizes`, a size that depends on values gets an upper bound, if only a backward reads the result.
    """

    estimates_sizes = False

    def __init__(self, *, allow_non_fake_inputs: bool = False, shape_env: ShapeEnv | None = None) -> None:
        super().__init__(allow_non_fake_inputs=allow_non_fake_inputs, shape_env=shape_env)
        # PyTorch's cache of results with symbolic sizes belongs to the environment, so no other trace uses it.
        self.cache_enabled = self.cache_enabled and shape_env is None
        self._attributes: dict[torch.device, tuple[torch.device, dict[str, Any]]] = {}

    def fake(self, meta: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a new fake on a device, with the metadata and the memory of a tensor on the meta device.

        PyTorch's constructor sets 21 attributes, which are equal in all new fakes on a device. It takes four times as
        long as this method, so it runs only once for each device.
        """
        if device not in self._attributes:
            self._attributes[device] = self._attributes_of_fakes(meta, device)
        represented, attributes = self._attributes[device]
        fake = torch.Tensor._make_subclass(
            FakeTensor, meta, meta.requires_grad, dispatch_device=True, device_for_backend_keys=represented
        )
        self._forbid_data(fake)
        vars(fake).update(attributes, fake_mode=self)
        return fake

    def _attributes_of_fakes(self, meta: torch.Tensor, device: torch.device) -> tuple[torch.device, dict[str, Any]]:
        """Return a device with its index, and the attributes of a new fake on this device."""
        first = FakeTensor(self, meta, device)
        attributes = vars(first).copy()
        del attributes["fake_mode"]  # the mode would refer to itself
        return first.fake_device, attributes

    @property
    def _forbid_data(self) -> Callable[[torch.Tensor], None]:
        """The function of PyTorch that marks a fake, so that C++ code that writes to its data fails or warns."""
        if self._allow_unsafe_data_ptr_access:
            return torch._C._set_warn_deprecated_on_mutable_data_ptr
        return torch._C._set_throw_on_mutable_data_ptr

    @contextmanager
    def estimating(self, function: object) -> Iterator[None]:
        """Estimate sizes during the block for a function of `WITH_UNSIZED_PARTS`."""
        before, self.estimates_sizes = self.estimates_sizes, self.estimates_sizes or function in WITH_UNSIZED_PARTS
        try:
            yield
        finally:
            self.estimates_sizes = before

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: Dynamo is not involved, and its guard around each dispatch would cost 20 us."""
        return False

    def __torch_dispatch__(self, func: object, types: object, args: object = (), kwargs: object = None) -> Any:
        return self.dispatch(func, types, args, kwargs)

    def dispatch(self, func: object, types: object, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation on fakes. Tensors on a GPU that this build of PyTorch cannot use hide their device."""
        if func in DEVICE_QUERIES and is_on_absent_gpu(args[0]):
            return stand_in_for(args[0].device)
        output = self._dispatch_operation(func, types, args, restore(kwargs or {}))
        if self.shape_env is not None and is_size_oblivious():
            for leaf in leaves(output):
                settle_contiguity(leaf, self.shape_env)
        return output

    def _dispatch_impl(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Compute the metadata of a result that PyTorch's cache lacks.

        Operations that this operation calls are not cached. The cached result of this operation makes their entries
        unnecessary, and an entry takes longer to write than many of these operations take to run.
        """
        is_cached, self.cache_enabled = self.cache_enabled, False
        try:
            return super()._dispatch_impl(func, types, args, kwargs)
        finally:
            self.cache_enabled = is_cached

    def _dispatch_operation(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        for position, name in versioned_lists(func):
            increment_versions(args[position] if position < len(args) else kwargs[name])
        if self.shape_env is not None:
            decide(func, args, kwargs)
        if func is aten.slice.Tensor and is_symbolic_slice(*args, **kwargs):
            with self:
                return slice_dimension(*args, **kwargs)
        require_castable(func, args, kwargs)
        if func.namespace not in PYTORCHS_NAMESPACES:
            self._forget_constants((args, kwargs))
        func, args, kwargs = self._faithful_call(func, args, kwargs)
        metadata = METADATA.get(func) or (ESTIMATES.get(func) if self.estimates_sizes else None)
        if metadata is not None:
            with self:
                return metadata(*args, **kwargs)
        output = self._output(func, types, args, kwargs)
        if self.shape_env is not None and self.shape_env.decides_ones:  # type: ignore[attr-defined]
            decide_ones(output)
        if (rule := rule_of(func, args)) is not None:
            self._lay_out(output, rule, args, kwargs)
        return output

    def _forget_constants(self, arguments: object) -> None:
        """Forget the values of the fakes among arguments that are constants, such as `torch.tensor([5.0])`.

        PyTorch runs an operation on constants at once. An operator that communicates, or any other with effects, must
        only run in the compiled program.
        """
        for leaf in leaves(arguments):
            if type(leaf) is FakeTensor and leaf.constant is not None:
                self.fake_tensor_converter.invalidate_constant_aliases(leaf.constant)

    def _faithful_call(self, func: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Return the operation and arguments whose result on fakes has the metadata of eager PyTorch's result."""
        if func in POWERS and is_power_of_booleans(args, kwargs):
            return POWERS[func], args[:1], {name: value for name, value in kwargs.items() if name == "out"}
        if func is aten.logical_not.default and self.shape_env is not None and args[0].dtype == torch.bool:
            # for symbolic sizes PyTorch writes `~a`, which makes a's GPU current
            return aten.bitwise_not.default, args, kwargs
        if func is aten.bmm.default and is_empty_mixed_product(*args):
            with self:
                return func, (torch.empty_like(args[0], dtype=args[1].dtype), args[1]), kwargs
        return func, args, kwargs

    def _output(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the output of an operation, from its kernel for the meta device alone if possible.

        PyTorch's own dispatch takes several times as long: it prefers Python code, which serves symbolic sizes too.
        """
        if self.shape_env is None:
            results = results_on_meta(self, *cheaper_operation(func, args, kwargs))
            if results is not None:
                return self._fakes_of(*results)
        with nullcontext() if self.shape_env is None else enable_python_dispatcher(), deciding(func):
            return super().dispatch(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    def _fakes_of(self, metas: Any, device: torch.device) -> Any:
        """Return a fake on a device for a tensor on the meta device; return a tuple of fakes for a tuple of tensors."""
        if isinstance(metas, torch.Tensor):
            return self.fake(metas, device)
        return tuple(self.fake(meta, device) if isinstance(meta, torch.Tensor) else meta for meta in metas)

    def _lay_out(self, output: object, rule: Rule, args: object, kwargs: object) -> None:
        """Give the results of an operation on strided tensors the strides that eager PyTorch gives them."""
        tensors = tensors_of(args, kwargs)
        if not tensors or not all(tensor.layout is torch.strided for tensor in tensors):
            return
        results = [leaf for leaf in leaves(output) if type(leaf) is FakeTensor]
        if any(map(is_symbolic, (*tensors, *results))):
            for tensor in results:
                self._lay_out_symbolic(tensor, rule, args, kwargs)
            return
        for tensor in results:
            if tensor.numel() or rule in RULES_FOR_EMPTY_TENSORS:
                lay_out(tensor, rule(args, kwargs, tensor))

    def _lay_out_symbolic(self, tensor: torch.Tensor, rule: Rule, args: Any, kwargs: Any) -> None:
        """Give a result with symbolic sizes the memory order that it has for generic sizes, none of which is zero or
        one.

        If an operation does not accept generic sizes, the memory order for the sizes of the call is used.
        """
        for value_of in (generic_hint_of, hint_of):
            valued: Callable[[Any], Any] = functools.partial(example_of, mode=self, value_of=value_of)
            example = valued(tensor)
            arguments = replace_leaves((tuple(args), dict(kwargs)), valued)
            with suppress(RuntimeError):
                applies = example.numel() or rule in RULES_FOR_EMPTY_TENSORS
                strides = rule(arguments[0], arguments[1], example) if applies else None
                if strides is not None and strides != example.stride():
                    with no_dispatch():
                        tensor.as_strided_(tensor.shape, symbolic_dense_strides(strides, example.shape, tensor.shape))
                return


def decide_ones(output: object) -> None:
    """Decide for each symbolic size of an operation's results whether it is one, because strides depend on that."""
    for leaf in leaves(output):
        for size in leaf.shape if isinstance(leaf, torch.Tensor) else ():
            bool(size == 1)


def settle_contiguity(result: object, environment: ShapeEnv) -> None:
    """Let a tensor with symbolic sizes cache whether it is contiguous for all sizes.

    C++ code asks whether a tensor is contiguous, for example in `reshape` within `matmul` and attention. Without a
    cached answer, PyTorch would decide for this call whether sizes are one.
    """
    if type(result) is FakeTensor and result.layout is torch.strided and is_symbolic(result):
        with environment.answering_for_all_sizes(), torch._C.DisableTorchFunction(), no_dispatch():  # type: ignore[attr-defined]
            torch.Tensor.is_contiguous(result)


def increment_versions(written: Sequence[torch.Tensor]) -> None:
    """Increment the version of each tensor for autograd, once for each occurrence in the list."""
    for tensor in written:
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def grouped_mm(
    left: torch.Tensor,
    right: torch.Tensor,
    offsets: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return the product of groups of matrices, whose rows are padded to 16 bytes.

    The checks are those of PyTorch's kernels (GroupedMMUtils.h). PyTorch's meta function accepts only bfloat16, and
    pads rows only in CUDA builds.
    """
    require(left.dtype in GROUPED and right.dtype == left.dtype, "grouped_mm of other dtypes")
    require(out_dtype in (None, left.dtype) and bias is None, "grouped_mm with a bias or another dtype")
    require(left.dim() in (2, 3) and right.dim() in (2, 3), "grouped_mm of other than 2 or 3 dimensions")
    require((offsets is None) == (left.dim() == right.dim() == 3), "grouped_mm needs offsets for 2 dimensions")
    require(left.shape[-1] == right.shape[-2], "grouped_mm of matrices that do not fit")
    require(is_aligned(left) and is_aligned(right), "strides should be multiple of 16 bytes")
    shape = [*_groups(left, right, offsets), left.shape[-2], right.shape[-1]]
    row = -(-shape[-1] * left.itemsize // ALIGNMENT) * ALIGNMENT // left.itemsize
    strides = [shape[-2] * row, row, 1][-len(shape) :]
    return torch.empty_strided(shape, strides, dtype=left.dtype, device=left.device)


def _groups(left: torch.Tensor, right: torch.Tensor, offsets: torch.Tensor | None) -> list[int]:
    """Return the number of groups as a list of one size, if the product has a dimension for groups; else an empty list.

    The product has this dimension if both factors have it, or neither.
    """
    counts = {tensor.shape[0] for tensor in (left, right) if tensor.dim() == 3}
    counts |= set() if offsets is None else {offsets.shape[0]}
    require(len(counts) == 1, "grouped_mm of other numbers of groups")
    return list(counts) if left.dim() == right.dim() else []


def is_aligned(matrix: torch.Tensor) -> bool:
    """Whether the rows, or the columns, of matrices are contiguous and begin at multiples of 16 bytes."""
    rows, columns = matrix.stride()[-2:]
    if rows == 1 and columns >= max(1, matrix.shape[-2]):
        return columns * matrix.itemsize % ALIGNMENT == 0
    return columns == 1 and rows >= max(1, matrix.shape[-1]) and rows * matrix.itemsize % ALIGNMENT == 0


def block_diag(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the block-diagonal matrix of the given matrices.

    Its dtype is the result type of arithmetic with all matrices. Tensors without dimensions have lower priority in it;
    PyTorch's meta function gives all matrices the same priority.
    """
    require(all(tensor.dim() <= MATRIX for tensor in tensors), "block_diag of more than 2 dimensions")
    require(len({tensor.device for tensor in tensors}) < 2, "block_diag of tensors on several devices")
    if not tensors:
        return torch.empty(1, 0)
    shapes = [(1,) * (MATRIX - tensor.dim()) + tuple(tensor.shape) for tensor in tensors]
    shape = [sum(sizes) for sizes in zip(*shapes, strict=True)]
    return torch.empty(shape, dtype=result_dtype(tensors), device=tensors[0].device)


def assert_metadata(
    tensor: torch.Tensor,
    size: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    *,
    device: torch.device | None = None,
    layout: torch.layout | None = None,
) -> None:
    """Raise an error if a tensor has other metadata; PyTorch's own meta function accepts no list of sizes."""
    require(size is None or tuple(size) == tuple(tensor.shape), "Tensor sizes mismatch!")
    require(stride is None or tuple(stride) == tuple(tensor.stride()), "Tensor strides mismatch!")
    require(dtype in (None, tensor.dtype), "Tensor dtype mismatch!")
    require(device in (None, tensor.device), "Tensor device mismatch!")
    require(layout in (None, tensor.layout), "Tensor layout mismatch!")


def ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: object, target_lengths: object, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses of a batch, and the logarithms of the forward probabilities with an upper bound as their last
    size.

    The bound assumes that each target has the largest length. One-dimensional `targets` are the concatenated targets of
    the batch.
    """
    steps, batch = log_probs.shape[:2]
    losses = torch.empty_like(log_probs[0, :, 0], memory_format=torch.contiguous_format)
    return losses, log_probs.new_empty((batch, steps, 2 * targets.shape[-1] + 1))


def ctc_loss_backward(_: torch.Tensor, log_probs: torch.Tensor, *__: Any) -> torch.Tensor:
    """Return the gradient of the losses of a batch."""
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def is_power_of_booleans(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a power has boolean operands. Its kernel returns booleans, but PyTorch's meta function returns
    integers.
    """
    exponent = args[1] if len(args) > 1 else kwargs.get("exponent")
    return type(exponent) is bool and args[0].dtype == torch.bool


def is_empty_mixed_product(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether batches of matrices have different dtypes and no elements, which the kernel accepts."""
    return left.dtype != right.dtype and (left.numel() == 0 or right.numel() == 0)


def result_dtype(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    """Return the dtype of arithmetic with all tensors (`at::native::result_type`)."""
    kinds = [[tensor.dtype for tensor in tensors if bool(tensor.dim()) == has_dims] for has_dims in (True, False)]
    dtypes = [functools.reduce(torch.promote_types, kind) for kind in kinds if kind]
    if len(dtypes) == 1:
        return dtypes[0]
    return torch.result_type(torch.empty(1, dtype=dtypes[0]), torch.empty((), dtype=dtypes[1]))


def require(condition: bool, what: str) -> None:
    """Raise `RuntimeError` as the operation would, unless the condition is true."""
    if not condition:
        raise RuntimeError(what)


aten = torch.ops.aten
POWERS: Mapping[object, Any] = {  # replacements with the metadata of the kernel for booleans
    aten.pow.Tensor_Scalar: aten.logical_not.default,
    aten.pow.Tensor_Scalar_out: aten.logical_not.out,
    aten.pow_.Scalar: aten.logical_not_.default,
}
METADATA: dict[object, Callable[..., Any]] = {
    **dict.fromkeys(quantized.QUANTIZING, quantized.refuse),
    aten._assert_tensor_metadata.default: assert_metadata,
    aten._grouped_mm.default: grouped_mm,
    aten.block_diag.default: block_diag,
}
# Functions whose results have known sizes, although operations within them have results whose sizes depend on values.
WITH_UNSIZED_PARTS = frozenset({torch.nn.functional.ctc_loss, torch.ctc_loss})
ESTIMATES: dict[object, Callable[..., Any]] = {
    **dict.fromkeys((aten._ctc_loss.default, aten._ctc_loss.Tensor), ctc_loss),
    **dict.fromkeys((aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor), ctc_loss_backward),
}
rule(aten.index.Tensor, aten._unsafe_index.Tensor)(indexing_strides)
