"""Convolutions are not traced again for batches and images for which PyTorch's C++ code chooses another kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import thunder_core as thunder

IMAGES = ((2, 32, 32), (3, 40, 24), (20, 16, 48), (1, 16, 16))  # batches and sizes for different kernels
DEPTH = 4  # the third size, for volumes
LAYERS: dict[str, tuple[int, Callable[[], torch.nn.Module]]] = {
    "points": (2, lambda: torch.nn.Conv2d(3, 4, 1)),
    "padded": (2, lambda: torch.nn.Conv2d(3, 4, 3, padding=1)),
    "patches": (2, lambda: torch.nn.Conv2d(3, 4, 8, stride=8)),
    "groups": (2, lambda: torch.nn.Conv2d(3, 6, 3, groups=3)),
    "points in groups": (2, lambda: torch.nn.Conv2d(3, 6, 1, groups=3)),
    "transposed": (2, lambda: torch.nn.ConvTranspose2d(3, 4, 3)),
    "over time": (1, lambda: torch.nn.Conv1d(3, 4, 3)),
    "volumes": (3, lambda: torch.nn.Conv3d(3, 4, 1)),
}


def result_and_gradients(layer: torch.nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
    """Return the result of a layer, and the gradients of its input and parameters."""
    result = layer(images)
    return [result, *torch.autograd.grad(result.square().mean(), [images, *layer.parameters()])]


@pytest.mark.parametrize("name", LAYERS)
def test_all_batches_and_images_share_one_program(name: str, one_thread: None) -> None:
    torch.manual_seed(0)
    dimensions, maker = LAYERS[name]
    layer = maker()
    compiled = thunder.jit(layer, cache="symbolic values", executors=("torch",))
    for batch, *sizes in IMAGES:
        images = torch.randn(batch, 3, *(*sizes, DEPTH)[:dimensions], requires_grad=True)
        for found, expected in zip(*(result_and_gradients(run, images) for run in (compiled, layer)), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            assert found.stride() == expected.stride()
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)
    assert not thunder.last_program(compiled).constant_because


@pytest.mark.parametrize("name", [name for name, (dimensions, _) in LAYERS.items() if dimensions == 2])
def test_channels_last_is_kept_for_all_batches(name: str, one_thread: None) -> None:
    layer = LAYERS[name][1]().to(memory_format=torch.channels_last)
    compiled = thunder.jit(layer, cache="symbolic values", executors=("torch",))
    for batch, *sizes in IMAGES:
        images = torch.randn(batch, 3, *sizes).to(memory_format=torch.channels_last).requires_grad_()
        for found, expected in zip(*(result_and_gradients(run, images) for run in (compiled, layer)), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            assert found.stride() == expected.stride()
    assert thunder.cache_misses(compiled) == 1, thunder.recompile_reasons(compiled)


@pytest.mark.parametrize("name", ["points", "padded", "points in groups"])
def test_views_of_results_in_channels_last_are_views_for_all_batches(name: str, one_thread: None) -> None:
    def views(images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = layer(images)
        return result, result.permute(0, 2, 3, 1).view(-1), result.flatten(2), result * 2

    layer = LAYERS[name][1]().to(memory_format=torch.channels_last).requires_grad_(False)
    compiled = thunder.jit(views, cache="symbolic values", executors=("torch",))
    for batch, *sizes in IMAGES:
        images = torch.randn(batch, 3, *sizes).to(memory_format=torch.channels_last)
        found, expected = compiled(images), views(images)
        assert [value.stride() for value in found] == [item.stride() for item in expected]
        owners = [[entry.data_ptr() == result[0].data_ptr() for entry in result] for result in (found, expected)]
        assert owners[0] == owners[1]


def test_image_smaller_than_the_kernel_raises_as_in_eager() -> None:
    layer = torch.nn.Conv2d(3, 4, 8)
    compiled = thunder.jit(layer, cache="symbolic values", executors=("torch",))
    compiled(torch.randn(2, 3, 16, 16))
    for shape in ((2, 3, 16, 7), (2, 4, 16, 16)):
        errors = []
        for run in (compiled, layer):
            with pytest.raises(RuntimeError) as raised:
                run(torch.randn(shape))
            errors.append((type(raised.value), str(raised.value)))
        assert errors[0] == errors[1]


def test_convolutions_with_strides_share_one_program_for_all_lengths(one_thread: None) -> None:
    layers = [torch.nn.Conv1d(1, 8, 10, 5), *(torch.nn.Conv1d(8, 8, 4, 4) for _ in range(3))]
    model = torch.nn.Sequential(*layers)
    compiled = thunder.jit(model, executors=("torch",))
    for length in (4000, 4400, 5200, 9100, 700):
        x = torch.randn(2, 1, length)
        torch.testing.assert_close(compiled(x), model(x))
    assert thunder.cache_misses(compiled) == 2
