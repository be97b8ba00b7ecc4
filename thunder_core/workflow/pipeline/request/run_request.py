"""The request to generate text with an artifact, checked before PyTorch is imported."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace

from thunder_core.foundation.errors import BadOption
from thunder_core.foundation.options import option, require_values
from thunder_core.foundation.options.whole_number import is_whole_number
from thunder_core.workflow.models.request.request import LARGEST_SEED

SAMPLING = "Sampling"  # the title of these options in the help
SEED_BITS = 32
MIN_TEMPERATURE = 1e-6  # logits divided by it are finite in float32
PROMPT_FIX = "pass text with --prompt, or tokens with --prompt-ids: --prompt-ids 1,2,3"


def parse_tokens(option_name: str, text: str) -> tuple[int, ...]:
    """Return the tokens in a text of numbers separated by commas; raise `BadOption` for any other text."""
    parts = [part.strip() for part in text.split(",")]
    if not all(map(is_whole_number, parts)):
        raise BadOption(f"{option_name} is {text!r:.80}", fix=f"write numbers separated by commas: {option_name} 1,2,3")
    return tuple(map(int, parts))


def require_positive(option_name: str, value: float) -> None:
    """Raise `BadOption` for a number that is not above 0."""
    if not 0 < value < math.inf:
        raise BadOption(
            f"{option_name} is {value:g}",
            fix=f"set {option_name} to a number above 0; for greedy decoding, leave out {option_name}",
        )


def require_temperature(option_name: str, value: float) -> None:
    """Raise `BadOption` for a temperature that is not above 0, or too small to divide logits by."""
    require_positive(option_name, value)
    if value < MIN_TEMPERATURE:
        raise BadOption(
            f"{option_name} is {value:g}; logits divided by it are not finite",
            fix=f"set {option_name} to {MIN_TEMPERATURE:g} or more; for greedy decoding, leave out {option_name}",
        )


def require_share(option_name: str, value: float) -> None:
    """Raise `BadOption` for a number that is not a probability above 0 and at most 1."""
    if not 0 < value <= 1:
        raise BadOption(f"{option_name} is {value:g}", fix=f"set {option_name} to a number above 0 and at most 1")


@dataclass(frozen=True)
class Sampling:
    """The sampling settings; decoding is greedy if none of them is set."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None

    @property
    def samples(self) -> bool:
        """Whether tokens are sampled."""
        return any(value is not None for value in vars(self).values())

    @property
    def stated(self) -> dict[str, float]:
        """The specified settings except the seed, by their names in `generate` of the transformers library."""
        return {name: value for name, value in vars(self).items() if value is not None and name != "seed"}


@dataclass(frozen=True)
class RunRequest:
    """The prompt as text or tokens, the number of new tokens, and the sampling settings."""

    prompt: str | None = option(None, metavar="TEXT", help="The prompt [default: read from stdin]")
    prompt_ids: tuple[int, ...] | None = option(
        None,
        metavar="N,N,...",
        parse=parse_tokens,
        help="Token ids of the prompt. No tokenizer is needed, and token ids are printed.",
    )
    new_tokens: int | None = option(
        None,
        int,
        metavar="N",
        minimum=1,
        help="Maximum number of tokens to generate",
        default_text="128, or the artifact's maximum if that is less",
    )
    temperature: float | None = option(
        None,
        float,
        metavar="X",
        panel=SAMPLING,
        check=require_temperature,
        help="Sampling temperature. Values below 1 favour likely tokens",
        default_text="with another sampling option, the value in generation_config.json; otherwise greedy decoding",
    )
    top_p: float | None = option(
        None,
        float,
        metavar="P",
        panel=SAMPLING,
        check=require_share,
        help="Sample from the smallest set of tokens whose probabilities add up to P",
        default_text="when sampling, the value in generation_config.json",
    )
    top_k: int | None = option(
        None,
        int,
        metavar="N",
        panel=SAMPLING,
        minimum=1,
        help="Sample from the N most likely tokens",
        default_text="when sampling, the value in generation_config.json",
    )
    seed: int | None = option(
        None,
        int,
        metavar="N",
        panel=SAMPLING,
        minimum=0,
        maximum=LARGEST_SEED,
        help="Seed for sampling, for reproducible output",
        default_text="random",
    )

    @property
    def sampling(self) -> Sampling:
        """The sampling settings, with a seed if tokens are sampled."""
        sampling = Sampling(self.temperature, self.top_p, self.top_k, self.seed)
        return (
            replace(sampling, seed=secrets.randbits(SEED_BITS))
            if sampling.samples and sampling.seed is None
            else sampling
        )


def check_run_request(request: RunRequest) -> None:
    """Raise `BadOption` for an invalid number, for two prompts, and for an empty prompt."""
    require_values(request)
    if request.prompt is not None and request.prompt_ids is not None:
        raise BadOption("--prompt and --prompt-ids exclude each other", fix="use one of the two")
    if request.prompt is not None and not request.prompt.strip():
        raise BadOption("the prompt is empty", fix=PROMPT_FIX)
