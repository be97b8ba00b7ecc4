"""A model's parameters and buffers in an artifact: each storage once, and each weight as a view of a storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from thunder_core.foundation.errors import ArtifactForeign, CannotReplay, WrongInputs
from thunder_core.tracing.ir.proxy import dtype_name
from thunder_core.tracing.library.extent import extent
from thunder_core.workflow.artifact.format.manifest import WEIGHTS, Manifest, WeightFacts
from thunder_core.workflow.artifact.format.read import Artifact, damage_error
from thunder_core.workflow.artifact.format.tensors import DTYPE_NAMES, read_tensors
from thunder_core.workflow.models.loading.fingerprint import weights_of

BASE_TENSOR_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
ALIGNMENT = 16  # bytes: no dtype is larger


@dataclass(frozen=True)
class StoredWeights:
    """The tensors to write, by key, and for each weight's name the facts of its view of one of these tensors."""

    tensors: Mapping[str, torch.Tensor]
    facts: Mapping[str, WeightFacts]

    @property
    def size(self) -> int:
        """The number of bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    def on(self, device: str) -> StoredWeights:
        """Return these weights with facts for another device; reading moves them to that device."""
        return StoredWeights(
            self.tensors, {name: facts.model_copy(update={"device": device}) for name, facts in self.facts.items()}
        )


NO_WEIGHTS = StoredWeights({}, {})


def stored_weights(subject: object) -> StoredWeights:
    """Return every parameter and buffer of a module; raise `CannotReplay` if one cannot be restored from elements."""
    if not isinstance(subject, torch.nn.Module):
        raise WrongInputs("a function has no weights to include", fix="leave out the weights, or save a module")
    tensors_by_name = dict(weights_of(subject))
    for name, tensor in tensors_by_name.items():
        require_plain(name, tensor)
    tensors: dict[str, torch.Tensor] = {}
    facts: dict[str, WeightFacts] = {}
    for names in group_by_storage(tensors_by_name):
        tensor_of_storage, views = storage_and_views(names, tensors_by_name)
        tensors[names[0]] = tensor_of_storage
        facts |= views
    return StoredWeights(tensors, {name: facts[name] for name in tensors_by_name})


def require_plain(name: str, tensor: torch.Tensor) -> None:
    """Raise `CannotReplay` for a tensor that cannot be restored from its elements and strides."""
    special = type(tensor) not in BASE_TENSOR_CLASSES or tensor.layout is not torch.strided or tensor.is_quantized
    if special or tensor.is_meta or tensor.is_conj() or tensor.is_neg():
        kind = (
            "has no data"
            if tensor.is_meta
            else f"is a tensor of class {type(tensor).__name__} with more data than its elements"
        )
        raise CannotReplay(f"the weight {name} {kind}, so it cannot be included", fix="leave out the weights")


def group_by_storage(tensors_by_name: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Group the names of tensors that share memory."""
    groups: dict[object, list[str]] = {}
    for name, tensor in tensors_by_name.items():
        address = tensor.untyped_storage().data_ptr()
        groups.setdefault((tensor.device, address) if address else id(tensor), []).append(name)
    return list(groups.values())


def storage_and_views(
    names: list[str], tensors_by_name: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, dict[str, WeightFacts]]:
    """Return the used part of a storage, and the view of that part for each name."""
    first = tensors_by_name[names[0]]
    is_alone = (
        all(tensors_by_name[name] is first for name in names) and first.is_contiguous() and first.dtype in DTYPE_NAMES
    )
    dtype = (
        first.dtype
        if first.dtype in DTYPE_NAMES and len({tensors_by_name[name].dtype for name in names}) == 1
        else torch.uint8
    )
    low = min(span(tensors_by_name[name])[0] for name in names)
    low -= 0 if is_alone else low % ALIGNMENT
    high = max(span(tensors_by_name[name])[1] for name in names)
    flat = torch.empty(0, dtype=dtype, device=first.device).set_(
        first.untyped_storage(), low // dtype.itemsize, ((high - low) // dtype.itemsize,), (1,)
    )
    return first.detach() if is_alone else flat, {
        name: facts_of(tensors_by_name[name], names[0], low) for name in names
    }


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of its storage that a tensor uses, and the first byte after the tensor."""
    start = int(tensor.storage_offset())
    end = start + extent(tensor.shape, tensor.stride())
    return start * tensor.element_size(), end * tensor.element_size()


def facts_of(tensor: torch.Tensor, key: str, low: int) -> WeightFacts:
    """Return a tensor's facts as a view of the saved part of its storage, which begins at the byte `low`."""
    return WeightFacts(
        key=key,
        dtype=dtype_name(tensor.dtype),
        shape=tuple(tensor.shape),
        stride=tensor.stride(),
        offset=int(tensor.storage_offset()) - low // tensor.element_size(),
        device=str(tensor.device),
        requires_grad=tensor.requires_grad,
    )


def read_weights(artifact: Artifact) -> dict[str, torch.Tensor]:
    """Read the weights by the model's names, on the CPU, verified; tied weights are one tensor."""
    if not artifact.manifest.weights:
        raise WrongInputs(
            f"{artifact.folder} has no weights",
            fix="make the artifact again with --include-weights, or pass a model that has weights",
        )
    stored = read_tensors(artifact, WEIGHTS)
    views: dict[WeightFacts, torch.Tensor] = {}
    for name, facts in artifact.manifest.weights.items():
        try:
            views[facts] = views[facts] if facts in views else view_of(stored[facts.key], facts)
        except (LookupError, AttributeError, TypeError, RuntimeError) as error:
            raise damage_error(artifact.folder, f"the weight {name} is not in {WEIGHTS}: {error}") from error
    return {name: views[facts] for name, facts in artifact.manifest.weights.items()}


def view_of(stored: torch.Tensor, facts: WeightFacts) -> torch.Tensor:
    """Return a weight as a view of a stored tensor."""
    dtype: torch.dtype = getattr(torch, facts.dtype)
    flat = stored.reshape(-1)
    if flat.dtype != dtype:  # the storage is stored as bytes; bytes at the end may belong to another weight
        flat = flat[: flat.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
    return torch.as_strided(flat, facts.shape, facts.stride, flat.storage_offset() + facts.offset)


def put_weights(manifest: Manifest, weights: Mapping[str, torch.Tensor], model: torch.nn.Module) -> None:
    """Set a model's parameters and buffers to these values. Meta tensors are replaced, and tied weights stay tied.

    Raises `ArtifactForeign` if the model has other names or shapes.
    """
    weights_of_model = dict(weights_of(model))
    for name in sorted(weights_of_model.keys() ^ weights.keys()):
        raise wrong_weights_error(name, model)
    tensors_by_facts: dict[WeightFacts, torch.Tensor] = {}
    for name, value in weights.items():
        facts = manifest.weights[name]
        if weights_of_model[name].shape != value.shape:
            raise wrong_weights_error(name, model)
        if weights_of_model[name].is_meta:
            replace(
                model,
                name,
                tensors_by_facts.setdefault(facts, weight_like(weights_of_model[name], value.to(facts.device), facts)),
            )
        else:
            weights_of_model[name].data = value.to(weights_of_model[name].device)
            weights_of_model[name].requires_grad_(facts.requires_grad)


def adopt_weights(
    manifest: Manifest,
    tensors: Mapping[str, torch.Tensor],
    values: Mapping[WeightFacts, torch.Tensor],
    model: torch.nn.Module,
) -> None:
    """Replace a model's weights: `tensors` are used as they are, `values` become new tensors.

    Raises `ArtifactForeign` if the model has other names or shapes.
    """
    weights_of_model = dict(weights_of(model))
    for name in sorted(weights_of_model.keys() ^ manifest.weights.keys()):
        raise wrong_weights_error(name, model)
    tensors_by_facts = {manifest.weights[name]: tensor for name, tensor in tensors.items()}
    for name, facts in manifest.weights.items():
        if weights_of_model[name].shape != facts.shape:
            raise wrong_weights_error(name, model)
        if facts not in tensors_by_facts:
            tensors_by_facts[facts] = weight_like(weights_of_model[name], values[facts].to(facts.device), facts)
        replace(model, name, tensors_by_facts[facts])


def wrong_weights_error(name: str, model: torch.nn.Module) -> ArtifactForeign:
    """Return the error for a model whose weights have other names or shapes."""
    return ArtifactForeign(
        f"the artifact's weights do not fit this {type(model).__name__}: {name} differs",
        fix="load the artifact with a model of the class and config that it was made from",
    )


def weight_like(model_weight: torch.Tensor, value: torch.Tensor, facts: WeightFacts) -> torch.Tensor:
    """Return a value as a parameter if the model's weight is a parameter; otherwise, return it unchanged."""
    return torch.nn.Parameter(value, facts.requires_grad) if isinstance(model_weight, torch.nn.Parameter) else value


def replace(model: torch.nn.Module, name: str, value: torch.Tensor) -> None:
    """Replace a parameter or buffer of a model."""
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    table = owner._parameters if leaf in owner._parameters else owner._buffers
    table[leaf] = value  # type: ignore[assignment]


def has_no_data(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether any of the tensors is on the meta device."""
    return any(tensor.is_meta for tensor in tensors)
