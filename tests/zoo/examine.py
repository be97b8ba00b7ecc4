"""Examine a type in its own process: compare Thunder's results with those of eager PyTorch."""

from __future__ import annotations

import contextlib
import copy
import random
import re
import resource
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import product
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch._dynamo
import transformers
from transformers import GenerationConfig, PretrainedConfig

import thunder_core as thunder
from tests.families import tensors
from tests.zoo.closeness import require_close, require_same
from tests.zoo.configs import LEVELS, SMALL, architectures_of, small_config
from tests.zoo.shelves import TRANSFORMERS, Subject, shelf_of, subject_of
from thunder_core.foundation.errors import ThunderError, WrongInputs
from thunder_core.workflow.models.inputs.inputs import example_inputs
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.request.request import ModelRequest

BATCH, LENGTHS = 2, (12, 9, 16)
LARGEST = 150_000_000  # parameters
ROUNDING = 1e-6  # relative to the largest gradient: the error of a gradient whose terms cancel
PERTURBATION = 2**-23  # relative change of each parameter, to measure how rounding changes eager PyTorch's gradients
CHANGES = 10  # a gradient is right if its error is at most this multiple of the change by the perturbation
EAGER = "eager PyTorch raises"
RUNNING = "running"  # the key in a row for the name of the running comparison
COMPARISONS = ("inference", "dynamo", "training", "symbolic", "generate")
CALLS = 2  # a call that is left to eager PyTorch, and a call that is traced
DYNAMO = 8  # Dynamo traces one of this many types, chosen by their names
Row = dict[str, Any]


def examine(model_type: str, names: Collection[str] = COMPARISONS) -> Iterator[Row]:
    """Yield the row of a type after each comparison of these names, with the name of the next comparison as `running`.

    If eager PyTorch does not run the type, `eager` has the reason.
    """
    row: Row = {"type": model_type, "shelf": shelf_of(model_type)}
    try:
        model, compare_by_name = prepare_type(model_type)
    except Exception as error:
        yield row | {"eager": in_words(error)}
        return
    row["class"] = type(model).__name__
    for name, compare in compare_by_name.items():
        if name in names:
            yield row | {RUNNING: name}
            row |= attempt(name, compare)
    yield row


def prepare_type(model_type: str) -> tuple[torch.nn.Module, dict[str, Callable[[], Row]]]:
    """Run the model of a type in eager PyTorch; return the model and its comparisons, or raise eager's error."""
    if shelf_of(model_type) == TRANSFORMERS:
        loaded, inputs, expected = run_in_eager(model_type)
        return loaded.model, comparisons(loaded, inputs, expected)
    subject = subject_of(model_type)
    return subject.model, comparisons_of_subject(subject)


def comparisons_of_subject(subject: Subject) -> dict[str, Callable[[], Row]]:
    """Return the comparisons that fit a model of another library, by name."""
    model, first = subject.model.eval(), subject.inputs(subject.sizes[0])
    seed_all()
    with torch.no_grad():
        expected = model(**first)
    found = {"inference": lambda: compare_inference(model, first, expected)}
    if any(parameter.requires_grad for parameter in model.parameters()):
        found["training"] = lambda: train_subject(model, first)
    if len(subject.sizes) > 1:
        found["symbolic"] = lambda: compare_sizes(model.eval(), map(subject.inputs, subject.sizes))
    return found


def comparisons(loaded: LoadedModel, inputs: dict[str, Any], expected: Any) -> dict[str, Callable[[], Row]]:
    """Return the comparisons that fit a model of transformers, by name."""
    found = {"inference": lambda: compare_inference(loaded.model, inputs, expected)}
    if zlib.crc32(loaded.model.config.model_type.encode()) % DYNAMO == 0:
        found["dynamo"] = lambda: trace_with_dynamo(loaded, inputs)
    found["training"] = lambda: compare_training(loaded, inputs)
    if "input_ids" in inputs:
        found["symbolic"] = lambda: compare_lengths(loaded)
        if loaded.model.can_generate():
            found["generate"] = lambda: compare_generate(loaded, inputs)
    return found


def run_in_eager(model_type: str) -> tuple[LoadedModel, dict[str, Any], Any]:
    """Return the model of the smallest config and the first class that eager PyTorch runs, its inputs and outputs.

    Raises the error of the first attempt if none runs.
    """
    errors: dict[str, list[Exception]] = {architecture: [] for architecture in architectures_of(model_type)}
    for sizes, architecture in product(LEVELS, errors):
        if is_repeated(errors[architecture]):
            continue
        try:
            require_few_parameters(small_config(model_type, sizes, architecture))
            loaded = load_small(model_type, sizes, architecture)
            inputs = inputs_of(loaded, LENGTHS[0])
            seed_all()
            with torch.no_grad():
                return loaded, inputs, loaded.model.eval()(**inputs)
        except Exception as error:
            errors[architecture].append(error)
    raise next((error for found in errors.values() for error in found), LookupError("the type has no class"))


def is_repeated(errors: list[Exception]) -> bool:
    """Whether the last two errors are the same, so that other sizes will not help."""
    return len(errors) > 1 and in_words(errors[-1]) == in_words(errors[-2])


def require_few_parameters(config: PretrainedConfig) -> None:
    """Raise `ValueError` if the model of a config has more parameters than a process can train.

    A class that takes a nested config is not counted.
    """
    model = None
    with torch.device("meta"), contextlib.suppress(AttributeError):
        model = getattr(transformers, config.architectures[0])(config)
    count = sum(parameter.numel() for parameter in model.parameters()) if model is not None else 0
    if count > LARGEST:
        raise ValueError(f"{count:,} parameters are too many")


def load_small(model_type: str, sizes: Mapping[str, int] = SMALL, architecture: str = "") -> LoadedModel:
    """Return the model of a type, loaded from a folder that only has a small config."""
    with tempfile.TemporaryDirectory() as folder:
        small_config(model_type, sizes, architecture).save_pretrained(folder)
        return load_model(ModelRequest(folder, random_weights=True, device="cpu", dtype="float32"))


def inputs_of(loaded: LoadedModel, length: int, *, labels: bool = False) -> dict[str, Any]:
    """Return seeded inputs without a KV cache, because a later call would continue the cache."""
    inputs = dict(example_inputs(loaded, batch=BATCH, seq=length, seed=1, labels=labels))
    without_cache = "input_ids" in inputs and hasattr(loaded.model.config, "use_cache")
    return inputs | ({"use_cache": False} if without_cache else {})


class EagerRaised(Exception):
    """Raised if eager PyTorch does not run a comparison."""


@contextlib.contextmanager
def in_eager() -> Iterator[None]:
    """Raise `EagerRaised` for every error."""
    try:
        yield
    except Exception as error:
        raise EagerRaised(in_words(error)) from error


def attempt(name: str, compare: Callable[[], Row]) -> Row:
    """Run a comparison; return its result (`right`, or the reason why it is not) and its seconds, as a row."""
    began = time.process_time()
    try:
        details = compare()
    except EagerRaised as error:
        details = {name: f"{EAGER}: {error}"}
    except Exception as error:
        details = {name: in_words(error)}
    return {name: "right", **details, f"{name} seconds": round(time.process_time() - began, 2)}


def compare_inference(model: torch.nn.Module, inputs: dict[str, Any], expected: Any) -> Row:
    """Compare a call without gradients; return the number of the trace's operations and the CPU seconds of the call."""
    compiled = thunder.jit(model, executors=("torch",))
    for _ in range(CALLS):
        seed_all()
        began = time.process_time()
        with torch.no_grad():
            output = compiled(**inputs)
        seconds = time.process_time() - began
        require_same(output, expected)
        if is_traced(compiled):
            break
    return {
        "operations": len(thunder.last_traces(compiled)[0].bound_symbols),
        "inference first call seconds": round(seconds, 3),
    }


def is_traced(compiled: Any) -> bool:
    """Whether a call was traced; a call that fills a cache of `functools.lru_cache` runs in eager PyTorch."""
    try:
        return bool(thunder.last_traces(compiled))
    except WrongInputs:
        return False


def trace_with_dynamo(loaded: LoadedModel, inputs: dict[str, Any]) -> Row:
    """Trace with Dynamo, which runs the graphs in eager PyTorch; return the CPU seconds."""
    compiled = torch.compile(loaded.model, backend="eager", dynamic=False)
    began = time.process_time()
    with torch.no_grad(), in_eager():
        compiled(**inputs)
    return {"dynamo": "traced", "dynamo first call seconds": round(time.process_time() - began, 3)}


def compare_training(loaded: LoadedModel, inputs: dict[str, Any]) -> Row:
    """Compare a training step, with labels if the model takes labels in eager PyTorch."""
    put_into_training(loaded.model)
    return compare_step(loaded.model, *train_in_eager(loaded, inputs))


def train_subject(model: torch.nn.Module, inputs: dict[str, Any]) -> Row:
    """Compare a training step of a model of another library, through all of its outputs."""
    put_into_training(model)
    twin = copy.deepcopy(model)
    with in_eager():
        expected = outputs_after_backward(twin, inputs)
    return compare_step(model, twin, inputs, expected)


def put_into_training(model: torch.nn.Module) -> None:
    """Put a model into train mode, without dropout."""
    model.train()
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0


def compare_step(model: torch.nn.Module, twin: torch.nn.Module, inputs: dict[str, Any], expected: Any) -> Row:
    """Compare the outputs, the gradients of all parameters and the buffers with those of a twin in eager PyTorch."""
    compiled = thunder.jit(model, executors=("torch",))
    output = outputs_after_backward(compiled, inputs)
    if not is_traced(compiled):
        model.zero_grad()
        twin.zero_grad()
        with in_eager():
            expected = outputs_after_backward(twin, inputs)
        output = outputs_after_backward(compiled, inputs)
    model.eval()
    require_same(output, expected)
    require_same_gradients(model, twin, inputs)
    for (name, actual), expected_buffer in zip(model.named_buffers(), twin.buffers(), strict=True):
        require_close(f"the buffer {name}", actual, expected_buffer)
    reason = thunder.last_backward_reason(compiled)
    return {"training": f"right, recorded: {without_folders(reason)}" if reason else "right"}


def require_same_gradients(model: torch.nn.Module, twin: torch.nn.Module, inputs: dict[str, Any]) -> None:
    """Raise `AssertionError` if a gradient differs from that of the twin, which ran in eager PyTorch, beyond rounding.

    Some gradients consist of rounding errors alone, such as that of a bias before a normalization. Their differences
    are compared with the changes of eager PyTorch's gradients if all parameters change in their last digits.
    """
    gradients = (parameter.grad for parameter in twin.parameters() if parameter.grad is not None)
    largest = max((float(gradient.abs().max()) for gradient in gradients if gradient.numel()), default=0.0)
    changes: dict[str, float] = {}
    for (name, parameter), twin_parameter in zip(model.named_parameters(), twin.parameters(), strict=True):
        if (parameter.grad is None) != (twin_parameter.grad is None):
            raise AssertionError(f"one gradient of {name} is missing")
        if parameter.grad is None or twin_parameter.grad is None:
            continue
        try:
            require_close(f"the gradient of {name}", parameter.grad, twin_parameter.grad, largest * ROUNDING)
        except AssertionError:
            changes = changes or changes_by_rounding(twin, inputs)
            require_close(f"the gradient of {name}", parameter.grad, twin_parameter.grad, CHANGES * changes[name])


def changes_by_rounding(twin: torch.nn.Module, inputs: dict[str, Any]) -> dict[str, float]:
    """Return the changes of eager PyTorch's gradients, by name, if all parameters change in their last digits."""
    perturbed = copy.deepcopy(twin)
    perturbed.zero_grad()
    seed_all()
    with torch.no_grad():
        for parameter in perturbed.parameters():
            parameter *= 1 + PERTURBATION * torch.randint(-1, 2, parameter.shape)
    with in_eager():
        outputs_after_backward(perturbed, inputs)
    pairs = zip(twin.named_parameters(), perturbed.parameters(), strict=True)
    return {
        name: float((parameter.grad - twin_parameter.grad).abs().max())
        for (name, parameter), twin_parameter in pairs
        if parameter.grad is not None and twin_parameter.grad is not None and parameter.grad.numel()
    }


def train_in_eager(loaded: LoadedModel, inputs: dict[str, Any]) -> tuple[torch.nn.Module, dict[str, Any], Any]:
    """Train a copy of a model for a step in eager PyTorch; return the copy, its inputs and its outputs.

    The inputs have labels if the model takes labels.
    """
    with contextlib.suppress(Exception):  # some classes have labels of their own kind
        twin, given = copy.deepcopy(loaded.model), inputs_of(loaded, LENGTHS[0], labels=True)
        return twin, given, outputs_after_backward(twin, given)
    twin = copy.deepcopy(loaded.model)
    with in_eager():
        return twin, inputs, outputs_after_backward(twin, inputs)


def outputs_after_backward(call: Callable[..., Any], inputs: dict[str, Any]) -> Any:
    """Return the outputs of a call, after a backward pass through the sum of their mean squares."""
    seed_all()
    output = call(**inputs)
    sum(tensor.square().mean() for _, tensor in tensors(output) if tensor.requires_grad).backward()
    return output


def seed_all() -> None:
    """Seed the random generators of PyTorch, NumPy and Python."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def compare_lengths(loaded: LoadedModel) -> Row:
    """Compare calls of several lengths, which one program should serve."""
    return compare_sizes(loaded.model.eval(), (inputs_of(loaded, length) for length in LENGTHS))


def compare_sizes(model: torch.nn.Module, calls: Iterable[dict[str, Any]]) -> Row:
    """Compare calls of several sizes, which one program should serve."""
    compiled = thunder.jit(model, cache="symbolic values", executors=("torch",))
    for inputs in calls:
        with torch.no_grad():
            seed_all()
            with in_eager():
                expected = model(**inputs)
            seed_all()
            require_same(compiled(**inputs), expected)
    programs = thunder.cache_misses(compiled)
    if programs == 1:
        return {"symbolic": "right"}
    reason = thunder.recompile_reasons(compiled)[0]
    return {"symbolic": f"right, {programs} programs", "symbolic reason": without_folders(reason)}


def without_folders(text: str) -> str:
    """Return a string with paths shortened to begin with a package's name, and temporary folders replaced by MODEL."""
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/\w+", "MODEL", text)
    return re.sub(r"[^\s:(]*site-packages/", "", text)


def compare_generate(loaded: LoadedModel, inputs: dict[str, Any]) -> Row:
    """Compare the tokens that greedy search generates."""
    model = loaded.model.eval()
    given = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    given = {name: value for name, value in given.items() if not name.startswith("decoder_")}
    config = GenerationConfig(
        max_new_tokens=4, do_sample=False, pad_token_id=0, bos_token_id=1, decoder_start_token_id=1
    )
    with in_eager():
        expected = model.generate(**given, generation_config=config)
    compiled = thunder.jit(model, executors=("torch",))
    found = compiled.generate(**given, generation_config=config)
    if not torch.equal(found, expected):
        raise AssertionError("the tokens differ from eager's")
    return {"generate": f"right, {thunder.cache_misses(compiled)} programs"}


def in_words(error: BaseException) -> str:
    """Return an error as one line."""
    code = f"{error.code} " if isinstance(error, ThunderError) else ""
    return f"{code}{type(error).__name__}: {without_folders(str(error).partition(chr(10))[0]):.160}"


def examine_within(
    model_type: str, seconds: int, memory: float, connection: Connection, names: Collection[str] = COMPARISONS
) -> None:
    """Limit the CPU seconds and the GiB of memory of this process, examine a type, and send its rows."""
    limit = int(memory * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for row in examine(model_type, names):
        connection.send(row)
