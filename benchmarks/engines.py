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


def onnx_runtime(content: bytes, inputs: tuple[torch.Tensor, ...], threads: int) -> Call:
    """Return the call of ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    inputs_by_name = {
        argument.name: value.numpy() for argument, value in zip(session.get_inputs(), inputs, strict=True)
    }
    return lambda: session.run(None, inputs_by_name)


def openvino(content: bytes, inputs: tuple[torch.Tensor, ...], threads: int) -> Call:
    """Return the call of OpenVINO, in float32 like the others."""
    import openvino as ov

    core = ov.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
    request = core.compile_model(core.read_model(io.BytesIO(content)), "CPU", settings).create_infer_request()
    arrays = [value.numpy() for value in inputs]
    return lambda: request.infer(arrays)


PEERS: dict[str, tuple[str, Callable[..., Call]]] = {
    "ONNX Runtime": ("onnxruntime", onnx_runtime),
    "OpenVINO": ("openvino", openvino),
}


def installed_engines() -> dict[str, Callable[..., Call]]:
    """Return the functions that make the calls of the engines that are installed, by the engine's name."""
    return {name: make for name, (package, make) in PEERS.items() if importlib.util.find_spec(package)}
