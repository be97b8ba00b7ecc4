"""The size of a model's inputs: samples, tokens, cached tokens and pixels. Each has an option and a name for ranges."""

from __future__ import annotations

from typing import NamedTuple


class InputSize(NamedTuple):
    """The number of samples in an input and of tokens in a sample, and optional sizes, which are None if not set.

    `cache` is the number of tokens in the KV cache of a call; 0 is an empty cache, and None is a call without a cache.
    `height` and `width` are the size of images in pixels; None is the size in the model's config.
    """

    batch: int
    seq: int
    cache: int | None = None
    height: int | None = None
    width: int | None = None

    @property
    def stated(self) -> dict[str, int]:
        """The sizes that are set, by name."""
        return {name: size for name, size in self._asdict().items() if size is not None}

    @property
    def other_sizes(self) -> dict[str, int]:
        """The sizes that are set, except for `batch` and `seq`."""
        return {name: size for name, size in self.stated.items() if name not in {"batch", "seq"}}
