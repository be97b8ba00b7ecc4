"""Load a model of the transformers library with the weights of a folder."""

from __future__ import annotations

from typing import Any

from thunder_core.workflow.models.folder.origin import FolderOrigin
from thunder_core.workflow.models.loading.load_errors import loading_errors
from thunder_core.workflow.models.loading.packed_weights import unpack
from thunder_core.workflow.models.loading.plan import LoadingPlan, StoredModel
from thunder_core.workflow.models.loading.weight_checks import AllowedWeights, check_weights
from thunder_core.workflow.models.request.names import OTHER_TASK
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.task import loading_class


def read_weights(
    plan: LoadingPlan, origin: FolderOrigin, request: ModelRequest, not_needed: tuple[str, ...]
) -> StoredModel:
    """Load the model for the task of a plan; raise `BadModelFolder` if the weights do not fit."""
    return read_weights_of(loading_class(plan.task, plan.config), plan, origin, request, not_needed)


def read_weights_of(
    kind: Any, plan: LoadingPlan, origin: FolderOrigin, request: ModelRequest, not_needed: tuple[str, ...]
) -> StoredModel:
    """Load the model of a class; raise `BadModelFolder` if the weights do not fit."""
    with loading_errors(origin.folder, "cannot be loaded"):
        model, report = kind.from_pretrained(
            origin.folder,
            config=plan.config,
            dtype="auto" if plan.dtype is None else plan.dtype,
            use_safetensors=True,
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **({} if plan.task == OTHER_TASK else {"trust_remote_code": request.trust_remote_code}),
        )
        unpacked = unpack(model)
    allowed = AllowedWeights.of(request, other_head=plan.names_task, not_needed=not_needed)
    return StoredModel(model, check_weights(origin.folder, model, report, allowed), unpacked)
