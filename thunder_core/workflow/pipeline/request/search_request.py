"""The request of a search for the best candidate; checked before PyTorch is imported."""

from __future__ import annotations

from dataclasses import dataclass, fields

from thunder_core.foundation.errors import BadOption
from thunder_core.foundation.options import option, options_of, require_values
from thunder_core.foundation.options.amount import bytes_of
from thunder_core.foundation.options.duration import parse_duration
from thunder_core.foundation.similar_names import unknown_name
from thunder_core.workflow.pipeline.request.request import Request

SEARCH = "Search"  # the panel of the options in the help
OBJECTIVES = ("latency", "throughput", "memory", "size")
USUAL_SECONDS = 300.0  # the default time of `thunder bench --candidates`
TIME_FIX = "set {} to a time above zero, such as 90s, 10m or 1h"
MAX_SECONDS = 7 * 24 * 3600.0  # seconds
# Fields of a request that a search does not accept: it sets them itself, or they disable measurements.
REFUSED_FIELDS = (
    "recipe",
    "options",
    "add_transform",
    "add_executor",
    "compiler",
    "trust_recipe",
    "strict",
    "force_slow",
    "target",
    "validate",
    "benchmark",
    "calibrate",
    "skip_layers",
)


def search_seconds(option: str, text: object) -> float:
    """Return the seconds of `90s`, `10m` or `1h`; raise `BadOption` for anything else."""
    try:
        return parse_duration(option, text)
    except BadOption as error:
        raise BadOption(error.what, fix=TIME_FIX.format(option)) from None


def require_time(option: str, seconds: float) -> None:
    """Raise `BadOption` for a time of zero, or of more than a week."""
    if not 0 < seconds <= MAX_SECONDS:
        how = "leaves no time" if seconds <= 0 else "is more than a week"
        raise BadOption(f"{option} {how}", fix=TIME_FIX.format(option))


def require_objective(_: str, name: str) -> None:
    """Raise `UnknownName` for an objective that does not exist."""
    if name not in OBJECTIVES:
        raise unknown_name("objective", name, OBJECTIVES)


def require_not_nan(option: str, value: float) -> None:
    """Raise `BadOption` for a bound that is NaN."""
    if value != value:
        raise BadOption(f"{option} is NaN", fix=f"set {option} to a number")


def require_bytes(option: str, number: int) -> None:
    """Raise `BadOption` for a size below 1 byte."""
    if number < 1:
        raise BadOption(f"{option} is {number}", fix=f"set {option} to a size such as 500MiB or 8GiB")


@dataclass(frozen=True)
class SearchRequest:
    """The time limit of a search in seconds (`search`), its objective and its bounds.

    If `search` is None, no search is requested. A `fresh` search ignores stored results of earlier searches.
    """

    search: float | None = option(
        None,
        metavar="TIME",
        panel=SEARCH,
        parse=search_seconds,
        check=require_time,
        help="Time limit for trying recipes, dtypes and numbers of threads, such as 10m. The best candidate "
        "within all bounds (--max-kl, --min-top1, --max-error and --max-memory) wins. The same command "
        "continues an earlier search.",
    )
    objective: str = option(
        "latency",
        metavar="NAME",
        panel=SEARCH,
        check=require_objective,
        completion="objectives",
        help="Objective of the search: latency, throughput, memory (weights plus the peak memory of a call) or size "
        "(weights)",
    )
    max_kl: float | None = option(
        None,
        float,
        metavar="X",
        panel=SEARCH,
        minimum=0,
        check=require_not_nan,
        help="Largest KL divergence of the logits from those of eager PyTorch, in nats",
        default_text="the bound of each recipe",
    )
    min_top1: float | None = option(
        None,
        float,
        metavar="X",
        panel=SEARCH,
        minimum=0,
        maximum=1,
        check=require_not_nan,
        help="Smallest top-1 agreement with eager PyTorch, 0 to 1",
        default_text="the bound of each recipe",
    )
    max_error: float | None = option(
        None,
        float,
        metavar="X",
        panel=SEARCH,
        minimum=0,
        check=require_not_nan,
        help="Largest relative error of an output, compared with eager PyTorch",
        default_text="the bound of each recipe",
    )
    max_memory: int | None = option(
        None,
        metavar="SIZE",
        panel=SEARCH,
        parse=bytes_of,
        check=require_bytes,
        help="Memory limit (weights plus the peak memory of a call), such as 8GiB.",
    )
    fresh: bool = option(False, bool, panel=SEARCH, help="Measure all candidates again, and ignore stored results.")

    @property
    def changed_options(self) -> list[str]:
        """Return the flags of the options, except the time limit, whose values differ from the defaults."""
        options = options_of(SearchRequest)
        changed_fields = (field.name for field in fields(self) if getattr(self, field.name) != field.default)
        return [options[name].flag for name in changed_fields if name != "search"]


def check_search(search: SearchRequest, request: Request) -> None:
    """Raise an error for invalid values, for bounds without a search, and for options that the search itself sets."""
    require_values(search)
    if search.search is None:
        if search_options := search.changed_options:
            names = ", ".join(search_options)
            verb = "needs" if len(search_options) == 1 else "need"
            raise BadOption(f"{names} {verb} --search", fix=f"add --search 10m, or leave out {names}")
        return
    options, usual = options_of(Request), Request()
    for name in REFUSED_FIELDS:
        if getattr(request, name) != getattr(usual, name):
            raise BadOption(
                f"--search and {options[name].flag} exclude each other: {reason_against(name)}",
                fix="leave out one of the two",
            )
    refuse_unknown_loss(search, request)


def reason_against(name: str) -> str:
    """Return the reason why a search does not accept a setting of a request, in words."""
    needed = {"validate": "each candidate is validated", "benchmark": "each candidate is measured"}
    here = {"target": "candidates are measured on this machine"}
    return {**needed, **here}.get(name, "the search chooses the recipe and its options")


def refuse_unknown_loss(search: SearchRequest, request: Request) -> None:
    """Raise `BadOption` for a bound on the quantization error with a training step, which quantizes nothing."""
    bounds = {"--max-kl": search.max_kl, "--min-top1": search.min_top1, "--max-error": search.max_error}
    bound_options = [name for name, bound in bounds.items() if bound is not None]
    if bound_options and request.train:
        raise BadOption(
            f"{', '.join(bound_options)} and --train exclude each other: gradients are validated, and nothing is "
            "quantized",
            fix="leave out one of the two",
        )
