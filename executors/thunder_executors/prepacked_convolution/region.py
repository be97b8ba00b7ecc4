"""The source of the region of a chain, a block or a pooling: a module that packs the weights and calls the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from thunder_core.backend.fusion.machine_code import ENTRY
from thunder_core.backend.fusion.region import RegionOccurrence
from thunder_core.tracing.ir.sizes import hint_of
from thunder_executors.packed_linear.region_names import RegionNames
from thunder_executors.prepacked_convolution.block import Block
from thunder_executors.prepacked_convolution.chain import Chain
from thunder_executors.prepacked_convolution.kernel import CONVOLVE, CONVOLVE_BLOCK, POOL
from thunder_executors.prepacked_convolution.lines_source import FEW_CHANNELS
from thunder_executors.prepacked_convolution.padding_source import METHODS
from thunder_executors.prepacked_convolution.pooling import Pool

Part: TypeAlias = Chain | Block | Pool
ONEDNN = "oneDNN"
NUMBERS = {"": 0, "relu": 1, "silu": 2, "gelu": 3, "relu6": 5, "hardswish": 6}  # the kernel's activations
# The first parts of the source of modules: imports, and a function with its arguments and memory for the result.
TITLE = '"""{title}."""\n\n'
TORCH = "import torch\n"
WEIGHTS = "from thunder_executors.prepacked_convolution.weights import packed_weights\n"
START = """

def {entry}(args):
    {names}, = args
    args.clear()
"""
RESULT = f"""
empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu
{START}\
    result = empty_strided_cpu({{shape}}, {{stride}}, torch.float32)
"""
KERNEL_TEXT = (
    TITLE
    + TORCH
    + WEIGHTS
    + RESULT
    + """\
    packed = packed_weights({parameters}, {eps}, {method!r}, {panel})
    bias = {x} if packed.bias is None else packed.bias
    sizes = {sizes}
    {function}({x}, packed.weight, bias, {addend}, result, {number}, *sizes, packed.bias is not None, {has_addend})
    return result
"""
)
LIBRARY_TEXT = (
    TITLE
    + "from thunder_executors.prepacked_convolution.operator import convolution\n"
    + START
    + "    return convolution({x}, {parameters}, {addend}, {settings})\n"
)
BLOCK_TEXT = (
    TITLE
    + TORCH
    + WEIGHTS
    + RESULT
    + """\
    all_packed = [{packed}]
    weights = [{x} if packed is None else packed.weight for packed in all_packed]
    biases = [{x} if packed is None or packed.bias is None else packed.bias for packed in all_packed]
    has_bias = [packed is not None and packed.bias is not None for packed in all_packed]
    operands = (weights[0], biases[0], weights[1], biases[1], weights[2], biases[2])
    sizes = {sizes}
    {function}({x}, *operands, {addend}, result, *sizes, *has_bias, {has_addend})
    return result
"""
)
POOL_TEXT = (
    TITLE
    + TORCH
    + RESULT
    + """\
    {function}({x}, result, *{sizes})
    return result
"""
)


def region_text(chain: Chain, occurrence: RegionOccurrence, title: str, method: str, panel: int) -> str:
    """Return the source of a module that defines the region: it packs the weight, and computes the result."""
    names = RegionNames.of(occurrence)
    words = template_fields(chain, names, title) | {"parameters": parameters_text(names, chain)}
    if method == ONEDNN:
        return LIBRARY_TEXT.format(**words, addend=names.tensor(chain.addend), settings=settings_text(chain))
    return KERNEL_TEXT.format(
        **words,
        addend=names.tensor(chain.addend or chain.x),
        function=CONVOLVE,
        eps=chain.eps,
        method=method,
        panel=panel,
        number=METHODS[method],
        sizes=names.sizes(sizes_of(chain, (*chain.x.shape, *chain.x.stride), chain.result.shape)),
        has_addend=int(chain.addend is not None),
    )


def template_fields(part: Part, names: RegionNames, title: str) -> dict[str, str]:
    """Return the fields of a template: the title, the function, the input, and the memory of the result."""
    return {
        "title": title,
        "entry": ENTRY,
        "names": names.arguments,
        "x": names.tensor(part.x),
        "shape": names.sizes(part.result.shape),
        "stride": names.sizes(part.result.stride),
    }


def block_text(block: Block, occurrence: RegionOccurrence, title: str, panel: int) -> str:
    """Return the source of a module that defines the region of a block."""
    names = RegionNames.of(occurrence)
    packed = (
        "None"
        if chain is None
        else f"packed_weights({parameters_text(names, chain)}, {chain.eps}, {method!r}, {panel})"
        for chain, method in block.stages
    )
    return BLOCK_TEXT.format(
        **template_fields(block, names, title),
        addend=names.tensor(block.addend or block.x),
        function=CONVOLVE_BLOCK,
        packed=", ".join(packed),
        sizes=names.sizes(sizes_of_block(block, (*block.x.shape, *block.x.stride), block.result.shape)),
        has_addend=int(block.addend is not None),
    )


def pool_text(pool: Pool, occurrence: RegionOccurrence, title: str) -> str:
    """Return the source of a module that defines the region of a pooling."""
    names = RegionNames.of(occurrence)
    sizes = names.sizes((*pool.x.shape, *pool.x.stride))
    return POOL_TEXT.format(**template_fields(pool, names, title), function=POOL, sizes=sizes)


def parameters_text(names: RegionNames, chain: Chain) -> str:
    """Return, as source, the tuple of the tensors from which a packed weight is computed."""
    return f"({''.join(f'{names.tensor(proxy)}, ' for proxy in (chain.weight, chain.bias, *chain.statistics))})"


def settings_text(chain: Chain) -> str:
    """Return the keyword arguments of oneDNN's convolution, as source."""
    constant = all(type(size) is int for size in (*chain.x.shape, *chain.result.stride))
    settings: dict[str, Any] = {
        "stride": chain.stride,
        "padding": (chain.padding[0], chain.padding[2]),
        "dilation": chain.dilation,
        "groups": chain.groups,
        "eps": chain.eps,
        "activation": chain.activation,
    }
    if constant:
        settings |= {"size": tuple(chain.x.shape), "result_stride": tuple(chain.result.stride)}
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())


def sizes_of(chain: Chain, input_layout: Sequence[Any], result_shape: Sequence[Any]) -> tuple[Any, ...]:
    """Return the sizes that the kernel takes, in the order of `padding_source.ARGUMENTS`, up to the activation.

    `input_layout` is the shape of the input, followed by its strides.
    """
    return (
        *(*input_layout, *result_shape[1:], *chain.weight.shape[2:]),
        *(*chain.stride, *chain.dilation, chain.padding[0], chain.padding[2], NUMBERS[chain.activation]),
    )


def sizes_of_block(block: Block, input_layout: Sequence[Any], result_shape: Sequence[Any]) -> tuple[Any, ...]:
    """Return the sizes that the kernel takes, in the order of `block_source.ARGUMENTS`, up to the biases.

    `input_layout` is the shape of the input, followed by its strides.
    """
    middle = block.depthwise
    return (
        *(*input_layout, middle.groups, *result_shape[1:]),
        *(*middle.weight.shape[2:], *middle.stride, *middle.dilation, middle.padding[0], middle.padding[2]),
        *(0 if chain is None else NUMBERS[chain.activation] for chain in (block.expand, middle, block.project)),
        *(int(chain is not None) for chain in (block.expand, block.project)),
    )


def methods_for(chain: Chain) -> tuple[str, ...]:
    """Return the methods of the kernel that compute a chain."""
    if not chain.result.is_channels_last or chain.activation not in NUMBERS:
        return ()
    if chain.is_depthwise and chain.groups > 1:
        return ("depthwise",)
    if chain.groups > 1:
        return ()
    is_planar = hint_of(chain.x.stride[3]) == 1  # the columns of each channel are adjacent
    is_first = chain.weight.shape[1] <= FEW_CHANNELS and is_planar and chain.dilation[1] == 1
    is_small = tuple(chain.weight.shape[2:]) == (3, 3) and chain.stride == chain.dilation == (1, 1)
    return (*(["Winograd"] if is_small else []), *(["planes"] if is_first else []), "direct")
