"""What can be refused of a request by its names, sizes and paths alone, before PyTorch is imported."""

from __future__ import annotations

from pathlib import Path

from thunder_core import plugins
from thunder_core.artifact.signature import computing
from thunder_core.benchmark.gate import check_gate
from thunder_core.errors import BadOption
from thunder_core.models.checkpoint import checkpoint_files
from thunder_core.models.data_file import METRIC_NAMES, require_data_file
from thunder_core.models.foreign_formats import require_config
from thunder_core.models.hub import find_on_hub, is_cached, is_offline
from thunder_core.models.names import spelled_device, spelled_dtype, spelled_task
from thunder_core.models.origin import local_origin
from thunder_core.models.request import LARGEST_SEED, ModelRequest
from thunder_core.pipeline.request import Request
from thunder_core.target import parse_target

LEAST = (
    ("--batch", "batch", 1),
    ("--seq", "seq", 1),
    ("--runs", "runs", 2),
    ("--warmup", "warmup", 0),
    ("--inputs", "inputs", 1),
)
SPELLED = (("dtype", spelled_dtype), ("device", spelled_device), ("task", spelled_task))


def check_request(request: Request) -> None:
    """Raise the error for a size, a name or a model's folder that cannot be.

    What is left to be found is what PyTorch, transformers, the recipe's own code and the network have to be asked for.
    """
    for option, name, least in LEAST:
        require_least(option, getattr(request, name), least)
    require_measurable(request)
    require_samples(request)
    if request.target:
        parse_target(request.target)
        refuse_training(request)
    if isinstance(request.recipe, str):
        plugins.require("recipes", request.recipe)
    if request.sign_key is not None:
        computing("read_private_key")(request.sign_key)
    require_model(request.model)


def require_least(option: str, value: int | None, least: int) -> None:
    """Raise `BadOption` for a number that is too small."""
    if value is not None and value < least:
        raise BadOption(f"{option} is {value}", fix=f"give {option} a number of {least} or more")


def require_measurable(request: Request) -> None:
    """Raise `BadOption` for a speed-up that is required of a run that does not measure it, or not often enough."""
    if request.require_speedup is None:
        return
    against = f"--target {request.target}" if request.target else "" if request.benchmark else "--no-benchmark"
    if against:
        raise BadOption(
            f"--require-speedup and {against} exclude each other: nothing is measured", fix="leave one of the two out"
        )
    check_gate(request.require_speedup, request.runs)


def require_samples(request: Request) -> None:
    """Raise for files of samples that are not there, a metric that does not exist, and what cannot be evaluated."""
    require_data_file("--input", request.input)
    require_data_file("--eval", request.evaluate)
    require_metric(request.metric, request.evaluate)
    against = f"--target {request.target}" if request.target else "--train" if request.train else ""
    if request.evaluate is not None and against:
        raise BadOption(
            f"--eval and {against} exclude each other: what is judged is inference, which has to run here",
            fix="leave one of the two out",
        )


def require_metric(metric: str | None, evaluate: Path | None) -> None:
    """Raise `UnknownName` for a metric that does not exist, and `BadOption` for one without samples to measure on."""
    if metric is not None and metric not in METRIC_NAMES:
        raise plugins.unknown_name("metric", metric, METRIC_NAMES)
    if metric is not None and evaluate is None:
        raise BadOption("--metric was given without --eval", fix="name a file of samples with --eval")


def require_seed(seed: int | None) -> None:
    """Raise `BadOption` for a seed that PyTorch's generators do not take."""
    if seed is not None and not 0 <= seed <= LARGEST_SEED:
        raise BadOption(f"--seed is {seed}", fix=f"give --seed a number from 0 to {LARGEST_SEED}")


def refuse_training(request: Request) -> None:
    """Raise `BadOption` for a step of training that is to be made for a device that is not here."""
    if request.train:
        raise BadOption(
            f"--train and --target {request.target} exclude each other: a backward is derived where it runs, "
            "so what is made for a GPU that is not here is for inference",
            fix="leave --target out, and run it on a machine with that GPU",
        )


def require_model(model: ModelRequest) -> None:
    """Raise `UnknownName`, `ModelNotFound` or `BadModelFolder` for names that do not exist and files that are bad."""
    require_seed(model.seed)
    for name, spelled in SPELLED:
        value = getattr(model, name)
        if value is not None:
            spelled(value)
    if model.model is None:
        return
    origin = local_origin(model.model, model.revision)
    if origin is None and is_offline():
        find_on_hub(model.model, model.revision)
    if origin is not None:
        require_config(origin.folder)
        if not model.random_weights:
            checkpoint_files(origin.folder)


def asks_the_hub(model: ModelRequest) -> bool:
    """Whether the network has to be asked for a model: the hub's, and not in the local cache."""
    if model.model is None or is_offline() or local_origin(model.model, model.revision) is not None:
        return False
    return not is_cached(model.model, model.revision)
