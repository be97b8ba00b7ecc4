"""Load the model of a request into memory; all checks of files come before heavy work."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import torch
import transformers
from transformers import PretrainedConfig

from thunder_core.foundation.errors import BadOption, RemoteCodeRefused, UnknownArchitecture
from thunder_core.foundation.plugins import nearest
from thunder_core.tracing.library.model_output import set_outputs
from thunder_core.workflow.models.adapters.folder import Adapter
from thunder_core.workflow.models.adapters.loading import apply_adapter, describe_adapter, require_peft
from thunder_core.workflow.models.diffusion.config import config_of_model, is_diffusers
from thunder_core.workflow.models.diffusion.loading import read_diffusers_weights
from thunder_core.workflow.models.folder.checkpoint import checkpoint_files
from thunder_core.workflow.models.folder.foreign_formats import refuse_other_kinds
from thunder_core.workflow.models.folder.hub import are_stages_unknown, fetch_code, fetch_weights
from thunder_core.workflow.models.folder.origin import FolderOrigin, SampleOrigin, find_origin, request_of
from thunder_core.workflow.models.loading.attending_weights import enlarge_queries_and_keys
from thunder_core.workflow.models.loading.config import class_names, load_config
from thunder_core.workflow.models.loading.fingerprint import structure_fingerprint
from thunder_core.workflow.models.loading.library_output import quiet_transformers, told_to_users
from thunder_core.workflow.models.loading.load_errors import loading_errors
from thunder_core.workflow.models.loading.outputs import follow_config, request_outputs
from thunder_core.workflow.models.loading.packed_weights import require_packages, unpack
from thunder_core.workflow.models.loading.seeding import seeded
from thunder_core.workflow.models.loading.timm_models import is_timm_config, timm_config
from thunder_core.workflow.models.loading.weight_checks import Allowed, check_weights
from thunder_core.workflow.models.request.device import parse_device
from thunder_core.workflow.models.request.dtype import dtype_name, parse_dtype
from thunder_core.workflow.models.request.mode import put_into_mode
from thunder_core.workflow.models.request.names import (
    BASE_TASK,
    OTHER_TASK,
    SENTENCE_TASK,
    TIMM_PREFIX,
    is_generation,
    is_sentence_task,
    spelled_task,
)
from thunder_core.workflow.models.request.request import KEEP, MERGE, PLAIN_OUTPUTS, ModelRequest, SampleModel
from thunder_core.workflow.models.request.task import from_config, loading_class, require_task, task_named
from thunder_core.workflow.models.sentences.folder import MODULES, has_stages
from thunder_core.workflow.models.sentences.loading import describe_stages, with_stages
from thunder_core.workflow.models.sentences.transformer import is_sentence_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

UNKNOWN_STAGES = (
    f"the local cache does not tell whether {{name}} has stages ({MODULES} of sentence-transformers, such as a "
    "pooling); they are left out. With a network, `hf download {name}` fetches them"
)
POOLER = "pooler"  # the layer of a transformer that sentence embeddings do not use


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode on its device, with its config, task, source and notes from loading.

    `source` is plain data from which `rebuild_model` builds the same model. `fingerprint` is the hash of the structure
    (`structure_fingerprint`), which does not depend on the values of weights or the device. `original` is the loaded
    model, if a recipe has prepared a different model from it. `caveats` are notes that must accompany every verdict on
    the model: random weights, and unused weights of the checkpoint.
    """

    model: PreTrainedModel
    config: PretrainedConfig
    task: str
    source: dict[str, object]
    fingerprint: str
    notes: tuple[str, ...] = ()
    original: PreTrainedModel | None = None
    caveats: tuple[str, ...] = ()

    def prepared_as(self, model: torch.nn.Module) -> LoadedModel:
        """Return a copy with the model that a recipe's transforms have prepared; `original` is the loaded model."""
        if model is self.model:
            return self
        prepared = cast("PreTrainedModel", model)
        return dataclasses.replace(
            self, model=prepared, fingerprint=structure_fingerprint(prepared), original=self.model
        )


@dataclass(frozen=True)
class LoadingPlan:
    """The parsed request: the model and how to load it; `names_task` is True if the user has named the task."""

    origin: FolderOrigin | SampleOrigin
    config: PretrainedConfig
    task: str
    dtype: torch.dtype | None
    device: torch.device
    notes: tuple[str, ...]
    names_task: bool = False


def load_model(request: ModelRequest) -> LoadedModel:
    """Load the model that a request names; raise a `ThunderError` that describes any problem."""
    with quiet_transformers() as warned:
        plan = plan_loading(request)
        with seeded(request.seed):
            model, caveats, notes = build(plan, request)
    notes = (*plan.notes, *caveats, *notes, *told_to_users(warned))
    return dataclasses.replace(finish(plan, request, model, notes), caveats=caveats)


def rebuild_model(
    source: Mapping[str, object], *, device: str | None = None, train: bool = False, trust_remote_code: bool = False
) -> LoadedModel:
    """Load the model of an earlier `LoadedModel.source`, on its device or on `device`; with `train`, in training mode.

    The source may be untrusted: raises `RemoteCodeRefused` if the model runs code from its folder, unless
    `trust_remote_code` is set.
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
    request = for_adapter(request, adapter)
    config = config_of(origin, request, request.task)
    request_outputs(config, request.outputs)
    if is_diffusers(config):
        config.has_loss = request.train
    named = request.task is not None and not is_generation(request.task)
    task, note = task_named(request.task, config)
    require_task(task, config)
    on_adapter = () if adapter is None else (describe_adapter(adapter, adapter_mode(request)),)
    notes = (*on_adapter, *(() if note is None else (note,)), *notes_on_parts(origin, config, request.task))
    return LoadingPlan(origin, config, task, dtype, device, notes, names_task=named or is_sentence_config(config))


def adapter_of(origin: FolderOrigin | SampleOrigin) -> Adapter | None:
    """Return the adapter at an origin, if there is one."""
    return origin.adapter if isinstance(origin, FolderOrigin) else None


def for_adapter(request: ModelRequest, adapter: Adapter | None) -> ModelRequest:
    """Return the request with the adapter's task, unless the user names a task.

    Raises `PackageMissing` without PEFT, `BadModelFolder` for an unknown type, and `BadOption` if the request says how
    to apply an adapter and there is none, or asks to train a merged adapter.
    """
    if adapter is None:
        if request.adapter is not None:
            raise BadOption("--adapter is for folders of PEFT adapters, and MODEL is none", fix="leave out --adapter")
        return request
    if request.train and request.adapter == MERGE:
        raise BadOption(
            f"--adapter {MERGE} and --train exclude each other: a merged adapter has no weights of its own to train",
            fix=f"leave out --adapter {MERGE}; in training, the adapter is kept, and its base model is frozen",
        )
    require_peft(adapter)
    return dataclasses.replace(request, task=request.task or adapter.task)


def adapter_mode(request: ModelRequest) -> str:
    """Return how a request applies an adapter: in training, it is always kept."""
    return KEEP if request.train else request.adapter or MERGE


def notes_on_parts(origin: FolderOrigin | SampleOrigin, config: PretrainedConfig, task: str | None) -> tuple[str, ...]:
    """Return a note if only a part of a folder is optimized: a component of a pipeline, or a model without stages.

    Without a named task, a base model in the Hub's cache may be the transformer of a model of sentence-transformers.
    """
    hub = None if isinstance(origin, SampleOrigin) else origin.hub
    if hub is not None and task is None and are_stages_unknown(hub):
        return (UNKNOWN_STAGES.format(name=hub.name),)
    if isinstance(origin, FolderOrigin) and is_diffusers(config) and origin.folder != origin.named:
        return (f"{origin.folder.name} of the pipeline in {origin.named}; other components have folders of their own",)
    if isinstance(origin, SampleOrigin) or not has_stages(origin.named) or is_sentence_config(config):
        return ()
    return (f"the stages of {MODULES} (such as the pooling) are left out: {SENTENCE_TASK} is the task that has them",)


def config_of(origin: FolderOrigin | SampleOrigin, request: ModelRequest, task: str | None) -> PretrainedConfig:
    """Return the config at an origin; raise a `ThunderError` if it is damaged, unknown, or needs code to run."""
    if isinstance(origin, SampleOrigin):
        return sample_config(origin.sample)
    if origin.hub is not None and request.trust_remote_code:
        fetch_code(origin.hub)
    if origin.hub is not None and not request.random_weights:
        refuse_other_kinds(origin.folder)
    is_sentences = has_stages(origin.named) and (task is None or is_sentence_task(task))
    of_transformer = BASE_TASK if is_sentences else task
    config = load_config(origin.folder, trust_remote_code=request.trust_remote_code, task=of_transformer)
    if is_sentences:
        describe_stages(config, origin.named)
    return config


def sample_config(sample: SampleModel) -> PretrainedConfig:
    """Return the config of a sample, with the sample's architecture."""
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


Built: TypeAlias = "tuple[PreTrainedModel, tuple[str, ...], tuple[str, ...]]"


def build(plan: LoadingPlan, request: ModelRequest) -> Built:
    """Build the model on the CPU with stored or random weights; return the model, caveats about weights, and notes."""
    adapter = adapter_of(plan.origin)
    if adapter is None:
        return build_base(plan, request)
    base, caveats, notes = build_base(plan, request, adapter.patterns)
    model, comparison = apply_adapter(base, adapter, adapter_mode(request), trainable=request.train)
    return model, caveats, (*notes, *comparison)


def build_base(plan: LoadingPlan, request: ModelRequest, not_needed: tuple[str, ...] = ()) -> Built:
    """Build the model without an adapter; `not_needed` are layers whose weights may be missing."""
    if isinstance(plan.origin, SampleOrigin):
        return build_random(plan, f"the sample {plan.origin.sample.architecture}", request), (), ()
    if request.random_weights:
        return build_random(plan, plan.origin.folder, request), (), ()
    if plan.origin.hub is not None:
        fetch_weights(plan.origin.hub)
    checkpoint_files(plan.origin.folder)
    require_packages(plan.origin.folder, plan.config)
    if is_diffusers(plan.config):
        return read_diffusers_weights(plan.config, plan.dtype, plan.origin.folder), (), ()
    if not is_sentence_config(plan.config):
        return read_weights(plan, plan.origin.folder, request, not_needed)
    transformer, caveats, notes = read_weights(plan, plan.origin.folder, request, (*not_needed, POOLER))
    model = with_stages(transformer, plan.config, plan.origin.named)
    return cast("PreTrainedModel", model), caveats, notes


def build_random(plan: LoadingPlan, what: Path | str, request: ModelRequest) -> PreTrainedModel:
    """Build the model with random weights in the requested dtype, the dtype of the config, or float32."""
    dtype = plan.dtype or plan.config.dtype or torch.float32
    with loading_errors(what, "cannot be built from its config"):
        model: PreTrainedModel = from_config(
            plan.task, plan.config, dtype=dtype, trust_remote_code=request.trust_remote_code
        )
    enlarge_queries_and_keys(model)
    return model


def read_weights(plan: LoadingPlan, folder: Path, request: ModelRequest, not_needed: tuple[str, ...] = ()) -> Built:
    """Load the model with the weights of a folder; raise `BadModelFolder` if the weights do not fit."""
    kind = loading_class(plan.task, plan.config)
    with loading_errors(folder, "cannot be loaded"):
        model, report = kind.from_pretrained(
            folder,
            config=plan.config,
            dtype="auto" if plan.dtype is None else plan.dtype,
            use_safetensors=True,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **({} if plan.task == OTHER_TASK else {"trust_remote_code": request.trust_remote_code}),
        )
        unpacked = unpack(model)
    allowed = Allowed(request.allow_random_weights, request.allow_unused_weights, plan.names_task, not_needed)
    return model, check_weights(folder, model, report, allowed), unpacked


def finish(plan: LoadingPlan, request: ModelRequest, model: PreTrainedModel, notes: tuple[str, ...]) -> LoadedModel:
    """Move the model to its device in eval mode, and return it with its source, fingerprint and notes."""
    with loading_errors(f"the model on {plan.device}", "cannot be put there"):
        torch.nn.Module.to(model, plan.device)
    put_into_mode(model, train=False)
    with loading_errors("the config of the model", "cannot be followed"):
        follow_config(model)
    if is_diffusers(plan.config) and request.outputs in PLAIN_OUTPUTS:
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
