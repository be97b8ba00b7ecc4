"""Checkpoints whose weights are quantized: what is asked of them, how they are unpacked, and how their layers are made.

The transformers library loads them, with the library of their format, in the formats of docs/quantized_checkpoints.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from transformers import PretrainedConfig

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadModelFolder, PackageMissing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# The packages by which transformers loads weights of a format.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "bitnet": ("accelerate",),
    "bitsandbytes": ("accelerate", "bitsandbytes"),
    "compressed-tensors": ("compressed-tensors",),
    "fp8": ("accelerate",),
    "torchao": ("torchao",),
}
REMOVE_OFFLOADING = "compressed_tensors.offload:remove_dispatch"
UNPACKED = (
    "compressed-tensors unpacks its weights for the CPU: the program computes with {} and keeps no packed weights"
)
BITNET = "bitnet"
QUANTIZERS = "transformers.quantizers.auto"


def settings_of(config: PretrainedConfig) -> Mapping[str, Any]:
    """The settings by which the weights of a config are quantized; empty for float ones."""
    settings = getattr(config, "quantization_config", None) or {}
    return settings if isinstance(settings, Mapping) else cast(Mapping[str, Any], settings.to_dict())


def require_packages(what: Path | str, config: PretrainedConfig) -> None:
    """Raise `PackageMissing` where a library that the format of the weights needs is not installed.

    Raises `BadModelFolder` for a format that the transformers library does not know, and would read as float weights.
    """
    method = str(settings_of(config).get("quant_method", "") or "")
    known = {*PACKAGES, *_quantizers("AUTO_QUANTIZER_MAPPING")} if method else ()
    if method and method not in known:
        raise BadModelFolder(
            f"{what} holds weights that are quantized ({method:.80}), a format that is not known here",
            fix="correct or remove the quantization_config of its config.json; known formats: "
            + ", ".join(sorted(known)),
        )
    missing = [package for package in PACKAGES.get(method, ()) if not plugins.installed(package.replace("-", "_"))]
    if missing:
        raise PackageMissing(
            f"{what} has quantized weights ({method}), which need {' and '.join(missing)} to be loaded",
            fix=f"pip install {' '.join(missing)}; the extra `quantize` of this package installs all such packages",
        )


def unpack(model: PreTrainedModel) -> tuple[str, ...]:
    """Unpack weights that the library of their format unpacks at the first call of the model, and say so."""
    if not hasattr(model, "ct_decompress_hook"):
        return ()
    quantizer: Any = model.hf_quantizer
    quantizer.compressor.decompress_model(model)
    remove_offloading = cast("Callable[[PreTrainedModel], object]", plugins.imported(REMOVE_OFFLOADING))
    remove_offloading(model)  # which it puts around each module, though all is on the CPU
    del model.hf_quantizer  # the weights are plain ones from now on
    return (UNPACKED.format(str(model.dtype).removeprefix("torch.")),)


def is_built_by_config(model: PreTrainedModel) -> bool:
    """Whether the layers of a model are told by its config alone, so that plain tensors are all that they need."""
    return settings_of(model.config).get("quant_method") in (None, BITNET)


def place_packed_layers(model: PreTrainedModel) -> None:
    """Put the layers of packed weights, without values, in the places of those that they replace."""
    settings = settings_of(model.config)
    if settings.get("quant_method") == BITNET:
        quantizer: Any = _quantizers("AutoHfQuantizer").from_config(dict(settings), pre_quantized=True)
        quantizer.preprocess_model(model)


def _quantizers(name: str) -> Any:
    """A name of transformers' module of quantizers, which few models need and which takes long to import."""
    return plugins.imported(f"{QUANTIZERS}:{name}")
