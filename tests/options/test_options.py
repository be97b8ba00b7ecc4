"""An option is defined once: the command line, settings files, checks and docs follow from the definition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from docs import cli
from thunder_cli.main import main
from thunder_cli.options import EVERY_SETTING, SETTINGS
from thunder_cli.settings import read_settings
from thunder_core.foundation.errors import BadConfigFile, BadOption
from thunder_core.foundation.options import Option, option, options_of, require_values, same_option
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline.request.bench_request import BenchRequest, check_bench_request
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.request.request_checks import check_request
from thunder_core.workflow.pipeline.request.search_request import SearchRequest, check_search
from thunder_core.workflow.pipeline.request.validate_request import ValidateRequest

REQUESTS = (ModelRequest, Request, BenchRequest, ValidateRequest, SearchRequest)
BOUNDED = {
    setting.name: setting for setting in SETTINGS.values() if setting.minimum is not None or setting.maximum is not None
}


def outside(stated: Option) -> list[int]:
    """The nearest values that are out of bounds."""
    below = [] if stated.minimum is None else [int(stated.minimum) - 1]
    return below if stated.maximum is None else [*below, int(stated.maximum) + 1]


def of_request(stated: Option, value: object) -> Request:
    if stated.field in options_of(ModelRequest):
        return Request(model=ModelRequest(**{stated.field: value}))
    return Request(**{stated.field: value})


def check_asked(stated: Option, value: object) -> None:
    if stated.field in options_of(SearchRequest):
        check_search(SearchRequest(60.0, **{stated.field: value}), Request())
    else:
        check_request(of_request(stated, value))


def test_numbers_have_bounds() -> None:
    durations = {"validate-budget", "benchmark-budget", "max-kl", "min-top1", "max-error"}
    assert {name for name, one in SETTINGS.items() if one.kind is int} == BOUNDED.keys() - durations
    sizes = {"batch", "seq", "cache", "height", "width", "prompt-length", "new-tokens"}
    assert {*sizes, "runs", "warmup", "validate-inputs", "seed", "threads"} == BOUNDED.keys() - durations


@pytest.mark.parametrize("name", BOUNDED)
def test_a_bound_holds_wherever_the_option_is_given(name: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for value in outside(BOUNDED[name]):
        with pytest.raises(BadOption, match=f"--{name} is {value}"):
            check_asked(BOUNDED[name], value)
        (tmp_path / "run.toml").write_text(f"{name} = {value}")
        with pytest.raises(BadConfigFile, match=f"{name} is {value}"):
            read_settings(tmp_path / "run.toml")
        assert main(["optimize", f"--{name}={value}", "--dry-run"]) == BadOption.status
        assert f"--{name} is {value}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "field"), [("batch", "batches"), ("seq", "seqs"), ("runs", "runs"), ("warmup", "warmup")]
)
def test_shared_options_of_a_benchmark_have_the_same_bounds(name: str, field: str) -> None:
    value = outside(BOUNDED[name])[0]
    many = field.endswith("s") and field != "runs"
    with pytest.raises(BadOption, match=f"--{name} is {value}"):
        check_bench_request(BenchRequest(**{field: (4, value) if many else value}))


def test_every_option_is_in_the_help_and_in_the_docs() -> None:
    page = cli.render()
    section = page.partition("## `thunder optimize")[2].partition("\n## ")[0]
    for name in EVERY_SETTING:
        assert f"`--{name}`" in section, name
        assert SETTINGS[name].help.removesuffix(".") in section
    for request in REQUESTS:
        for setting in options_of(request).values():
            assert setting.help
            assert setting.name == "model" or f"`--{setting.name}`" in page


def test_defaults_in_help_texts_match_the_fields() -> None:
    known = {
        name: request for request in (ModelRequest(), Request(), SearchRequest()) for name in options_of(type(request))
    }
    for setting in SETTINGS.values():
        value = getattr(known[setting.field], setting.field)
        if setting.kind is int and value is not None:
            assert setting.default_text == str(value)


def test_a_new_option_is_one_field() -> None:
    @dataclass(frozen=True)
    class Small:
        depth: int = option(2, int, metavar="N", help="How deep", minimum=1, maximum=5)
        plain: bool = option(True, bool, name="no-plain", negative=True, help="Not plain.")
        other: str = "no option"

    @dataclass(frozen=True)
    class Other:
        deep: int = same_option(Small, "depth", default=3)

    assert [setting.flag for setting in options_of(Small).values()] == ["--depth", "--no-plain"]
    assert options_of(Small)["plain"].value_of(True) is False
    assert Other() == Other(deep=3)
    assert options_of(Other)["deep"].flag == "--depth"
    require_values(Small(depth=5))
    for wrong in (0, 6):
        with pytest.raises(BadOption, match=f"--depth is {wrong}") as caught:
            require_values(replace(Small(), depth=wrong))
        assert caught.value.fix == "set --depth to a number from 1 to 5"
