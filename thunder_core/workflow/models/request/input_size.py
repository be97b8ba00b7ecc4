"""The size of a model's inputs: the numbers of samples, tokens and cached tokens, and the size of images."""

from __future__ import annotations

from typing import NamedTuple


class InputSize(NamedTuple):
    """The number of samples in an input, the number of tokens in a sample, and optional sizes.

    `cache` is the number of tokens in the KV cache of a call; 0 means an empty cache, and None no cache. `height` and
    `width` are the size of images in pixels; None means the size in the model's config.
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
