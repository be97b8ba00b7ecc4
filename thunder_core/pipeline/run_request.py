"""The request of a text that an artifact goes on with; checked before PyTorch is imported."""

from __future__ import annotations

from dataclasses import dataclass

from thunder_core.errors import BadOption
from thunder_core.options import option, require_values

PROMPT_FIX = "give --prompt a text, or --prompt-ids the tokens: --prompt-ids 1,2,3"


def parse_tokens(option_name: str, text: str) -> tuple[int, ...]:
    """The tokens in a text of numbers with commas between them; raises `BadOption` for any other."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise BadOption(f"{option_name} is {text!r}", fix=f"give numbers with commas between them: {option_name} 1,2,3")
    return tuple(map(int, parts))


@dataclass(frozen=True)
class RunRequest:
    """The prompt, as a text or as tokens, and the number of tokens that are to follow it at most."""

    prompt: str | None = option(None, metavar="TEXT", help="The prompt [default: what stdin holds]")
    prompt_ids: tuple[int, ...] | None = option(
        None,
        metavar="N,N,...",
        parse=parse_tokens,
        help="The prompt as tokens, which needs no tokenizer; tokens are printed then.",
    )
    new_tokens: int | None = option(
        None,
        int,
        metavar="N",
        least=1,
        help="How many tokens may follow",
        default_text="128, or as many as the artifact serves",
    )


def check_run_request(request: RunRequest) -> None:
    """Raise `BadOption` for a number that cannot be, for two prompts, and for one without a character."""
    require_values(request)
    if request.prompt is not None and request.prompt_ids is not None:
        raise BadOption("--prompt and --prompt-ids exclude each other", fix="give one of the two")
    if request.prompt is not None and not request.prompt.strip():
        raise BadOption("the prompt is empty", fix=PROMPT_FIX)
