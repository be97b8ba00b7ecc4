"""Values for other ranks: tensors of a GPU arrive on the device of the receiver, others on the CPU."""

from __future__ import annotations

import io

import pytest
import torch
from transformers.cache_utils import DynamicCache

from thunder_core.workflow.pipeline.ranks.packing import pack, unpack


def locations(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let tensors be stored as tensors of this device."""
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: name)


def test_tensor_of_a_gpu_arrives_on_the_device_of_the_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DynamicCache()
    cache.update(torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), 0)
    tensor = torch.arange(6.0).view(2, 3)
    with monkeypatch.context() as patched:
        locations(patched, "cuda:99")
        content = pack(("leaves", {"input_ids": tensor.t(), "numbers": [1, None]}, cache))
    name, inputs, received = unpack(content, torch.device("cpu"))
    assert name == "leaves"
    assert inputs["numbers"] == [1, None]
    assert torch.equal(inputs["input_ids"], tensor.t())
    assert torch.equal(received.layers[0].keys, torch.ones(1, 2, 3, 4))
    with pytest.raises(RuntimeError, match="CUDA"):  # without a mapping, PyTorch uses the device of the sender
        torch.load(io.BytesIO(content), weights_only=False)


def test_tensor_of_the_processor_stays_there() -> None:
    (tensor,) = unpack(pack((torch.ones(2),)), torch.device("meta"))
    assert torch.equal(tensor, torch.ones(2))
