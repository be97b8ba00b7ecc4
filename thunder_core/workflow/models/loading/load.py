"""Load the model of a request into memory; all checks of files come before heavy work."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from transformers import PretrainedConfig

from thunder_core.foundation.errors import BadOption, RemoteCodeRefused, UnknownArchitecture
from thunder_core.foundation.similar_names import nearest
from thunder_core.tracing.ir.proxy import dtype_name
from thunder_core.tracing.library.model_output import set_outputs
from thunder_core.workflow.models.adapters.folder import Adapter
from thunder_core.workflow.models.adapters.loading import apply_adapter, describe_adapter, require_peft
from thunder_core.workflow.models.diffusion.config import config_of_model
from thunder_core.workflow.models.folder.checkpoint import checkpoint_files
from thunder_core.workflow.models.folder.foreign_formats import refuse_other_kinds
from thunder_core.workflow.models.folder.hub import are_stages_unknown, fetch_code, fetch_weights
from thunder_core.workflow.models.folder.origin import FolderOrigin, SampleOrigin, find_origin, request_of
from thunder_core.workflow.models.kinds.table import kind_of, kind_of_folder
from thunder_core.workflow.models.loading.attending_weights import enlarge_queries_and_keys
from thunder_core.workflow.models.loading.config import class_names
from thunder_core.workflow.models.loading.fingerprint import structure_fingerprint
from thunder_core.workflow.models.loading.library_output import messages_for_users, quiet_transformers
from thunder_core.workflow.models.loading.load_errors import loading_errors
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.loading.model_folder import open_model_folder
from thunder_core.workflow.models.loading.outputs import follow_config, request_outputs
from thunder_core.workflow.models.loading.packed_weights import require_packages
from thunder_core.workflow.models.loading.plan import LoadingPlan, StoredModel, described_dtype
from thunder_core.workflow.models.loading.seeding import seed_generator
from thunder_core.workflow.models.loading.timm_models import is_timm_config, timm_config
from thunder_core.workflow.models.request.device import parse_device
from thunder_core.workflow.models.request.dtype import parse_dtype
from thunder_core.workflow.models.request.mode import put_into_mode
from thunder_core.workflow.models.request.names import TIMM_PREFIX, is_generation, spelled_task
from thunder_core.workflow.models.request.request import KEEP, MERGE, PLAIN_OUTPUTS, ModelRequest, SampleModel
from thunder_core.workflow.models.sentences.folder import MODULES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

UNKNOWN_STAGES = (
    f"the local cache does not show whether {{name}} has stages ({MODULES} of sentence-transformers, such as a "
    "pooling); they are left out. With a network, `hf download {name}` fetches them"
)


def load_model(request: ModelRequest) -> LoadedModel:
    """Load the model that a request names, in eval mode on its device; raise a `ThunderError` for any problem."""
    with quiet_transformers() as warned:
        plan = plan_loading(request)
        with seed_generator(request.seed):
            model, caveats, notes = build(plan, request)
    notes = (*plan.notes, *caveats, *notes, *messages_for_users(warned))
    return dataclasses.replace(finish(plan, request, model, notes), caveats=caveats)


def rebuild_model(
    source: Mapping[str, object], *, device: str | None = None, train: bool = False, trust_remote_code: bool = False
) -> LoadedModel:
    """Load the model that an earlier `LoadedModel.source` describes, on its device or on `device`.

    With `train`, the model is in training mode. The source may be untrusted: raises `RemoteCodeRefused` if the model
    runs code from its folder, unless `trust_remote_code` is set.
    """
    request = request_of(source)
    if request.trust_remote_code and not trust_remote_code:
        raise RemoteCodeRefused(
            f"the model {request.model} asks to run its own Python code",
            fix="read the code; if you trust it, use --trust-remote-code or trust_remote_code=True, or pass a model "
            "that you have loaded yourself: thunder_core.load(folder, model)",
        )
    loaded = load_model(request if device is None else dataclasses.replace(request, device=device))
    put_into_mode(loaded.model, train=train)
    return loaded


def plan_loading(request: ModelRequest) -> LoadingPlan:
    """Parse a request, and check everything that can be checked without reading weights."""
    dtype = None if request.dtype is None else parse_dtype(request.dtype)
    device = parse_device(request.device or "cpu")
    if request.task is not None:
        spelled_task(request.task)
    origin = find_origin(request)
    adapter = adapter_of(origin)
    request = with_adapter_task(request, adapter)
    config = config_of(origin, request, request.task)
    request_outputs(config, request.outputs)
    if request.train:
        kind_of(config).add_loss(config)
    named = request.task is not None and not is_generation(request.task)
    task, note = kind_of(config).find_task(request.task, config)
    on_adapter = () if adapter is None else (describe_adapter(adapter, adapter_mode(request)),)
    notes = (*on_adapter, *(() if note is None else (note,)), *notes_on_parts(origin, config, request.task))
    return LoadingPlan(origin, config, task, dtype, device, notes, names_task=named)


def adapter_of(origin: FolderOrigin | SampleOrigin) -> Adapter | None:
    """Return the adapter at an origin, if there is one."""
    return origin.adapter if isinstance(origin, FolderOrigin) else None


def with_adapter_task(request: ModelRequest, adapter: Adapter | None) -> ModelRequest:
    """Return the request with the adapter's task, if the user names no task.

    Raises `PackageMissing` without PEFT, `BadModelFolder` for an unknown type of adapter, and `BadOption` for the
    option `adapter` without an adapter or for training of a merged adapter.
    """
    if adapter is None:
        if request.adapter is not None:
            raise BadOption(
                "--adapter is for folders of PEFT adapters, but MODEL is not such a folder", fix="leave out --adapter"
            )
        return request
    if request.train and request.adapter == MERGE:
        raise BadOption(
            f"--adapter {MERGE} and --train exclude each other: a merged adapter has no weights of its own to train",
            fix=f"leave out --adapter {MERGE}; in training, the adapter is kept, and its base model is frozen",
        )
    require_peft(adapter)
    return dataclasses.replace(request, task=request.task or adapter.task)


def adapter_mode(request: ModelRequest) -> str:
    """Return the mode in which a request applies an adapter: `KEEP` in training, otherwise the user's or `MERGE`."""
    return KEEP if request.train else request.adapter or MERGE


def notes_on_parts(origin: FolderOrigin | SampleOrigin, config: PretrainedConfig, task: str | None) -> tuple[str, ...]:
    """Return a note if the model is, or may be, only a part of its folder.

    A part is a component of a diffusers pipeline, or a transformer without the other modules (stages) of
    sentence-transformers. The local cache of a Hub model may not show whether there are such stages.
    """
    if isinstance(origin, SampleOrigin):
        return ()
    if origin.hub is not None and task is None and are_stages_unknown(origin.hub):
        return (UNKNOWN_STAGES.format(name=origin.hub.name),)
    note = kind_of(config).describe_part(origin, config)
    return () if note is None else (note,)


def config_of(origin: FolderOrigin | SampleOrigin, request: ModelRequest, task: str | None) -> PretrainedConfig:
    """Return the config at an origin; raise a `ThunderError` if it is damaged, unknown, or needs code to run."""
    if isinstance(origin, SampleOrigin):
        return sample_config(origin.sample)
    if origin.hub is not None and request.trust_remote_code:
        fetch_code(origin.hub)
    if origin.hub is not None and not request.random_weights:
        refuse_other_kinds(origin.folder)
    folder = open_model_folder(origin.folder, root=origin.named, task=task, trust_remote_code=request.trust_remote_code)
    return kind_of_folder(folder).read_config(folder)


def sample_config(sample: SampleModel) -> PretrainedConfig:
    """Return the config of a sample model, with the class of the sample as its architecture."""
    if is_timm_config(sample.config):
        return timm_config(f"the model {TIMM_PREFIX}{sample.config['architecture']}", sample.config)
    architecture = getattr(transformers, sample.architecture, None)
    if architecture is None or not hasattr(architecture, "config_class"):
        near = nearest(sample.architecture, class_names())
        raise UnknownArchitecture(
            f"transformers {transformers.__version__} has no class {sample.architecture!r}",
            fix=f"use a class that exists{': ' if near else ''}{' or '.join(near)}",
        )
    with loading_errors(f"the sample {sample.architecture}", "has a config that is not valid for its family"):
        config: PretrainedConfig = architecture.config_class(**sample.config, architectures=[sample.architecture])
    return config


def build(plan: LoadingPlan, request: ModelRequest) -> StoredModel:
    """Build the model on the CPU with stored or random weights; return the model, caveats about weights, and notes."""
    adapter = adapter_of(plan.origin)
    if adapter is None:
        return build_base(plan, request)
    base, caveats, notes = build_base(plan, request, adapter.patterns)
    model, comparison = apply_adapter(base, adapter, adapter_mode(request), trainable=request.train)
    return StoredModel(model, caveats, (*notes, *comparison))


def build_base(plan: LoadingPlan, request: ModelRequest, not_needed: tuple[str, ...] = ()) -> StoredModel:
    """Build the model without its adapter; weights whose names match `not_needed` may be missing."""
    if isinstance(plan.origin, SampleOrigin):
        return StoredModel(build_random(plan, f"the sample {plan.origin.sample.architecture}", request))
    if request.random_weights:
        return StoredModel(build_random(plan, plan.origin.folder, request))
    if plan.origin.hub is not None:
        fetch_weights(plan.origin.hub)
    checkpoint_files(plan.origin.folder)
    require_packages(plan.origin.folder, plan.config)
    return read_model(plan, plan.origin, request, not_needed)


def build_random(plan: LoadingPlan, what: Path | str, request: ModelRequest) -> PreTrainedModel:
    """Build the model with random weights in the requested dtype, the dtype of the config, or float32."""
    dtype = described_dtype(plan)
    with loading_errors(what, "cannot be built from its config"):
        model: PreTrainedModel = kind_of(plan.config).build(plan.task, plan.config, dtype, request.trust_remote_code)
    enlarge_queries_and_keys(model)
    return model


def read_model(
    plan: LoadingPlan, origin: FolderOrigin, request: ModelRequest, not_needed: tuple[str, ...]
) -> StoredModel:
    """Load the model with the weights of a folder; raise `BadModelFolder` if the weights do not fit."""
    return kind_of(plan.config).read(plan, origin, request, not_needed)


def finish(plan: LoadingPlan, request: ModelRequest, model: PreTrainedModel, notes: tuple[str, ...]) -> LoadedModel:
    """Move the model to its device in eval mode, and return it with its source, fingerprint and notes."""
    with loading_errors(f"the model on {plan.device}", "cannot be put there"):
        torch.nn.Module.to(model, plan.device)
    put_into_mode(model, train=False)
    with loading_errors("the config of the model", "cannot be followed"):
        follow_config(model)
    if not kind_of(plan.config).config_sets_outputs and request.outputs in PLAIN_OUTPUTS:
        set_outputs(model, request.outputs)
    source = source_of(plan, request, model.dtype)
    return LoadedModel(model, config_of_model(model), plan.task, source, structure_fingerprint(model), notes)


def source_of(plan: LoadingPlan, request: ModelRequest, dtype: torch.dtype) -> dict[str, object]:
    """Return the plain data from which `rebuild_model` builds the model again."""
    return {
        **plan.origin.as_dict(),
        "task": plan.task,
        "dtype": dtype_name(dtype),
        "device": str(plan.device),
        "random_weights": request.random_weights,
        **({"outputs": request.outputs} if request.outputs else {}),
        **({"adapter": request.adapter} if request.adapter else {}),
        **({"train": True} if request.train else {}),
        **({"allow_random_weights": list(request.allow_random_weights)} if request.allow_random_weights else {}),
        **({"allow_unused_weights": list(request.allow_unused_weights)} if request.allow_unused_weights else {}),
        "seed": request.seed,
        "trust_remote_code": request.trust_remote_code,
    }
