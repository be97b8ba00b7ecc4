"""Random tokens, numbers and pixels for one model's config, from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

from thunder_core.foundation.errors import NoExampleInputs

Inputs = dict[str, Any]  # tensors, caches, and other arguments
SPECIAL_TOKEN_IDS = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "audio_token_id",
)


@dataclass(frozen=True)
class RandomInputs:
    """A seeded generator of random inputs, with the requested sizes and the config of the model.

    If `height` or `width` is None, images have the size that the config names. If `padded` is False, texts have neither
    padding nor a mask.
    """

    config: PretrainedConfig
    batch: int
    seq: int
    generator: torch.Generator
    height: int | None = None
    width: int | None = None
    padded: bool = True

    @classmethod
    def from_seed(
        cls,
        config: PretrainedConfig,
        *,
        batch: int,
        seq: int,
        seed: int,
        height: int | None = None,
        width: int | None = None,
        padded: bool = True,
    ) -> RandomInputs:
        """Return random inputs with a seed; the generator is on the CPU, so all devices get the same numbers."""
        return cls(config, batch, seq, torch.Generator("cpu").manual_seed(seed), height, width, padded)

    def number(self, low: int, high: int) -> int:
        """Return a random integer in [low, high)."""
        return int(torch.randint(low, high, (), generator=self.generator))

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Return integers in [low, high)."""
        return torch.randint(low, high, shape, generator=self.generator)

    def normal(self, *shape: int) -> torch.Tensor:
        """Return float32 numbers with mean 0 and standard deviation 1."""
        return torch.randn(shape, generator=self.generator)

    def tokens(self, length: int) -> torch.Tensor:
        """Return tokens of shape [batch, length], without special tokens."""
        ordinary = torch.ones(self.vocabulary, dtype=torch.bool)
        ordinary[[token for token in self.special if 0 <= token < self.vocabulary]] = False
        (choice,) = ordinary.nonzero(as_tuple=True)
        return choice[self.integers(0, len(choice), self.batch, length)]

    @property
    def text(self) -> PretrainedConfig:
        """The config of the part that reads text."""
        return self.config.get_text_config()

    @property
    def vocabulary(self) -> int:
        """The size of the vocabulary, or the number of hash buckets of a model that reads characters.

        Raises `NoExampleInputs` for a config that has neither.
        """
        sizes = (getattr(self.text, name, None) for name in ("vocab_size", "num_hash_buckets"))
        if (size := next((size for size in sizes if size is not None), None)) is None:
            raise NoExampleInputs(
                f"there are no example tokens for the family {self.config.model_type!r}",
                fix="use a model whose config names `vocab_size`",
            )
        return int(size)

    @property
    def special(self) -> set[int]:
        """The special tokens of the model."""
        return {
            token for name in SPECIAL_TOKEN_IDS for config in (self.config, self.text) for token in _ids(config, name)
        }

    @property
    def padding(self) -> int:
        """The padding token: the model's padding token, otherwise its end token, otherwise 0."""
        return next((token for name in ("pad_token_id", "eos_token_id") for token in _ids(self.text, name)), 0)

    @property
    def start(self) -> int:
        """The token that a decoder starts with."""
        names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
        return next((t for name in names for config in (self.config, self.text) for t in _ids(config, name)), 0)

    @property
    def end(self) -> int | None:
        """The token that ends a text, if the model has one."""
        return next(iter(_ids(self.text, "eos_token_id")), None)


def _ids(config: PretrainedConfig, name: str) -> list[int]:
    value: Any = getattr(config, name, None)
    if value is None:
        return []
    return [int(token) for token in value] if isinstance(value, (list, tuple)) else [int(value)]
