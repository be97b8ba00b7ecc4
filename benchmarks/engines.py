"""Inference engines for ONNX on CPUs. Benchmarks run the installed engines."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[], Any]


def export(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> bytes:
    """Return the model as ONNX."""
    program = torch.onnx.export(model, inputs, dynamo=True, verbose=False)
    assert program is not None
    buffer = io.BytesIO()
    program.save(buffer)
    return buffer.getvalue()


def onnx_runtime_session(
    content: bytes, inputs: tuple[torch.Tensor, ...], threads: int, profile: str = ""
) -> tuple[Any, dict[str, Any]]:
    """Return a session of ONNX Runtime and its inputs by name; `profile` is the beginning of a profile's file name."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session, {each.name: value.numpy() for each, value in zip(session.get_inputs(), inputs, strict=True)}


def openvino_request(content: bytes, threads: int, *, counts: bool = False) -> Any:
    """Return a request of OpenVINO, in float32 like the others; with `counts`, it measures each operation."""
    import openvino as ov

    core = ov.Core()
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": 1,
        "PERF_COUNT": counts,
    }
    return core.compile_model(core.read_model(io.BytesIO(content)), "CPU", settings).create_infer_request()


def onnx_runtime(content: bytes, inputs: tuple[torch.Tensor, ...], threads: int) -> Call:
    """Return the call of ONNX Runtime."""
    session, arrays = onnx_runtime_session(content, inputs, threads)
    return lambda: session.run(None, arrays)


def openvino(content: bytes, inputs: tuple[torch.Tensor, ...], threads: int) -> Call:
    """Return the call of OpenVINO."""
    request, arrays = openvino_request(content, threads), [value.numpy() for value in inputs]
    return lambda: request.infer(arrays)


PEERS: dict[str, tuple[str, Callable[..., Call]]] = {
    "ONNX Runtime": ("onnxruntime", onnx_runtime),
    "OpenVINO": ("openvino", openvino),
}


def installed_engines() -> dict[str, Callable[..., Call]]:
    """Return the functions that make the calls of the engines that are installed, by the engine's name."""
    return {name: make for name, (package, make) in PEERS.items() if importlib.util.find_spec(package)}
