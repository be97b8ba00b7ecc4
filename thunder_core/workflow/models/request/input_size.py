"""The size of a model's inputs: samples, tokens, tokens in a cache, pixels; an option each, and a name of a range."""

from __future__ import annotations

from typing import NamedTuple


class InputSize(NamedTuple):
    """The samples in an input, and the tokens in a sample; the rest is None where nobody asked for it.

    `cache` is the number of tokens whose keys and values a call is given in a cache, 0 for an empty one; None is a call
    without a cache. `height` and `width` are those of images, in pixels; None is what the model's config names.
    """

    batch: int
    seq: int
    cache: int | None = None
    height: int | None = None
    width: int | None = None

    @property
    def stated(self) -> dict[str, int]:
        """The sizes that there are, by name."""
        return {name: size for name, size in self._asdict().items() if size is not None}

    @property
    def beside_tokens(self) -> dict[str, int]:
        """The sizes that there are, but for those of samples and tokens."""
        return {name: size for name, size in self.stated.items() if name not in {"batch", "seq"}}
