"""Checks of a request by its names, sizes and paths alone, before PyTorch is imported."""

from __future__ import annotations

from thunder_core.foundation.errors import BadOption, OutOfMemory
from thunder_core.foundation.options import require_values
from thunder_core.passes.recipe.source import refuse_options
from thunder_core.workflow.artifact.format.signature import import_key_function
from thunder_core.workflow.benchmark.gate import check_speedup_factor
from thunder_core.workflow.models.folder.checkpoint import require_checkpoint
from thunder_core.workflow.models.folder.foreign_formats import require_config
from thunder_core.workflow.models.folder.hub import (
    cached_model,
    find_on_hub,
    is_offline,
    missing_weights,
    require_weights,
)
from thunder_core.workflow.models.folder.origin import FolderOrigin, find_origin, local_origin
from thunder_core.workflow.models.inputs.data_file import require_samples_of_metric
from thunder_core.workflow.models.memory.weight_lower_bound import memory_shortage
from thunder_core.workflow.models.request.names import timm_architecture
from thunder_core.workflow.models.request.request import PLAIN_OUTPUTS, ModelRequest
from thunder_core.workflow.pipeline.request.folder_recipe import trusted_recipe
from thunder_core.workflow.pipeline.request.part_names import FILE_SUFFIX, recipe_names
from thunder_core.workflow.pipeline.request.ranges import limited_size
from thunder_core.workflow.pipeline.request.request import INPUTS, Request
from thunder_core.workflow.report.number_format import size as bytes_in_words


def check_request(request: Request, *, dry_run: bool = False) -> None:
    """Raise an error for an invalid size, name or model folder. With `dry_run`, weights may be missing.

    Errors that only PyTorch, transformers, the network or a recipe's code can find are raised later. The options of a
    recipe are checked against its source, without running it.
    """
    require_values(request)
    require_measurable(request)
    require_samples_of_metric(request.metric, request.evaluate)
    refuse_evaluation(request)
    refuse_training(request)
    refuse_generation(request)
    refuse_ranges(request)
    refuse_sizes(request)
    refuse_another_device(request)
    if request.sign_key is not None:
        import_key_function("read_private_key")(request.sign_key)
    require_model(request.model, config_is_enough=needs_no_weights(request, dry_run=dry_run))
    require_memory(request, dry_run=dry_run)
    trusted_recipe(request)
    named = request.recipe if isinstance(request.recipe, tuple) else (request.recipe,)
    recipe = named[0] if len(named) == 1 else None
    if isinstance(recipe, str) and request.options and recipe_names(recipe) == (recipe,) and FILE_SUFFIX not in recipe:
        refuse_options(recipe, request.options)


def require_memory(request: Request, *, dry_run: bool) -> None:
    """Raise `OutOfMemory` if a model's files show that its weights alone do not fit into memory."""
    origin = named_origin(request.model)
    if origin is None or needs_no_weights(request, dry_run=dry_run):
        return
    if (shortage := memory_shortage(request.model, origin.folder)) is not None:
        needed, free = map(bytes_in_words, shortage)
        raise OutOfMemory(
            f"the weights of the model need at least {needed} of memory but {free} are free; nothing was loaded",
            fix="use a checkpoint on disk instead of random weights: its weights are memory-mapped and need not fit; "
            f"or use a machine with more than {needed} free",
        )


def require_measurable(request: Request) -> None:
    """Raise `BadOption` for a required speed-up in a run that does not measure it, or with too few rounds."""
    if request.require_speedup is None:
        return
    against = f"--target {request.target}" if request.target else "" if request.benchmark else "--no-benchmark"
    if against:
        raise BadOption(
            f"--require-speedup and {against} exclude each other: nothing is measured", fix="leave out one of the two"
        )
    check_speedup_factor(request.require_speedup, request.runs)


def refuse_evaluation(request: Request) -> None:
    """Raise `BadOption` for an evaluation of a model that does not run here, or of a training step."""
    against = f"--target {request.target}" if request.target else "--train" if request.train else ""
    if request.evaluate is not None and against:
        raise BadOption(
            f"--eval and {against} exclude each other: --eval runs inference on this machine",
            fix="leave out one of the two",
        )


def refuse_training(request: Request) -> None:
    """Raise `BadOption` for a training step for a missing device."""
    if request.train and request.target:
        raise BadOption(
            f"--train and --target {request.target} exclude each other: without the GPU, PyTorch chooses no fused "
            "attention, whose derivative the program needs",
            fix="leave out --target, and run the command on a machine with this GPU",
        )


def refuse_another_device(request: Request) -> None:
    """Raise `BadOption` for a device and a target, because programs for a target are programs for a GPU."""
    if request.target and request.model.device:
        raise BadOption(
            f"--target {request.target} and --device {request.model.device} exclude each other: the programs are for "
            "a GPU of the target, and nothing runs on this machine",
            fix="leave out --device",
        )


def refuse_generation(request: Request) -> None:
    """Raise `BadOption` if an optimization of generation has options for single calls, or the other way round."""
    if not request.generates:
        lengths = {"--prompt-length": request.prompt_length, "--new-tokens": request.new_tokens}
        for option in (option for option, length in lengths.items() if length is not None):
            raise BadOption(f"{option} is for generation", fix=f"add --task generate, or leave out {option}")
        return
    lengths_fix = "set the lengths with --prompt-length, --new-tokens and --batch"
    refused = {
        "--train": (request.train, "a training step generates no text", "leave out one of the two"),
        "--seq": (request.seq is not None, "prompts of all lengths up to the longest are served", lengths_fix),
        "--cache": (request.cache is not None, "caches of all lengths are served", lengths_fix),
        "--dynamic": (bool(request.dynamic), "all lengths and batches up to the largest are served", lengths_fix),
        "--input": (request.input is not None, "prompts are random", "leave out one of the two"),
        "--eval": (request.evaluate is not None, "samples are for single calls", "leave out one of the two"),
        "--validate-inputs": (
            request.inputs != INPUTS,
            "all prompts are validated",
            "leave out --validate-inputs, and set the number of prompts with --batch",
        ),
        "--validate-budget": (
            request.validate_budget is not None,
            "all prompts are validated",
            "leave out --validate-budget, or use a smaller --batch, --prompt-length or --new-tokens",
        ),
        "--include-weights": (
            bool(request.target and request.include_weights),
            "with --target, generation is traced on a model without data",
            "leave out --include-weights, and load the artifact together with the model's checkpoint",
        ),
        "--outputs": (request.model.outputs in PLAIN_OUTPUTS, "generate() reads the KV cache", "leave out --outputs"),
    }
    for option, (is_given, why, fix) in refused.items():
        if is_given:
            raise BadOption(f"--task generate and {option} exclude each other: {why}", fix=fix)


def refuse_ranges(request: Request) -> None:
    """Raise `BadOption` for ranges of sizes with a file of samples, and for a requested size outside its range."""
    if request.dynamic and request.input:
        raise BadOption(
            f"--dynamic and --input {request.input} exclude each other: samples have one size",
            fix="leave out one of the two",
        )
    for name in request.dynamic:
        requested = getattr(request, name)
        if requested is not None:
            limited_size(request.dynamic, name, requested, is_requested=True)


def refuse_sizes(request: Request) -> None:
    """Raise `BadOption` for a cache in training, and for a cache or an image size with real samples."""
    cache_options = ["--cache"] * (request.cache is not None) + ["--dynamic cache="] * ("cache" in request.dynamic)
    image_options = [f"--{name}" for name in ("height", "width") if getattr(request, name) is not None]
    sizes_of_samples = "samples have a fixed size"
    refused = {
        "--train": (request.train, cache_options, "a training step has no KV cache"),
        f"--input {request.input}": (request.input is not None, cache_options + image_options, sizes_of_samples),
        f"--eval {request.evaluate}": (request.evaluate is not None, cache_options + image_options, sizes_of_samples),
    }
    for option, (is_given, size_options, why) in refused.items():
        if is_given and size_options:
            raise BadOption(f"{size_options[0]} and {option} exclude each other: {why}", fix="leave out one of the two")


def needs_no_weights(request: Request, *, dry_run: bool) -> bool:
    """Whether a request needs only the config: a plan, or programs for a target without weights."""
    return dry_run or bool(request.target and not request.include_weights)


def require_model(model: ModelRequest, *, config_is_enough: bool = False) -> None:
    """Raise `UnknownName`, `ModelNotFound` or `BadModelFolder` for names that do not exist and invalid files.

    Missing weights are no error if `config_is_enough` is set.
    """
    require_values(model)
    if model.model is None:
        return
    if timm_architecture(model.model) is not None:
        find_origin(model)
        return
    origin = named_origin(model)
    if origin is None:
        require_on_hub(model.model, model)
        return
    require_config(origin.folder)
    if not model.random_weights:
        require_checkpoint(origin.folder, config_is_enough=config_is_enough)


def named_origin(model: ModelRequest) -> FolderOrigin | None:
    """Return the origin of the folder that a request names; None if it names no folder."""
    if model.model is None or timm_architecture(model.model) is not None:
        return None
    return local_origin(model.model, model.revision)


def require_on_hub(name: str, model: ModelRequest) -> None:
    """Raise `ModelNotFound` or `BadModelFolder` if the local cache shows that a Hub model cannot be loaded.

    Without a network, the cache must have the config and the weights. With a network, missing files are fetched later.
    """
    hub = find_on_hub(name, model.revision) if is_offline() else cached_model(name, model.revision)
    if hub is not None and not model.random_weights and (is_offline() or not missing_weights(hub)):
        require_weights(hub)


def asks_the_hub(model: ModelRequest) -> bool:
    """Whether a model must be fetched from the Hub, because the local cache lacks some of its files."""
    if model.model is None or timm_architecture(model.model) is not None:
        return False
    if is_offline() or named_origin(model) is not None:
        return False
    hub = cached_model(model.model, model.revision)
    return hub is None or (not model.random_weights and bool(missing_weights(hub)))
