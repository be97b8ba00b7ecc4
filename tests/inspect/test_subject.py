"""Selection of traces and stages, their parts, and their differences."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from thunder_core.foundation.errors import BadOption, NoSuchTrace
from thunder_core.tracing.ir.layout import layout
from thunder_core.workflow.inspect.difference import unified_diff
from thunder_core.workflow.inspect.regions import EarlierStages, is_within
from thunder_core.workflow.inspect.runnable import is_used, runnable
from thunder_core.workflow.inspect.select import matches, module_lines


def test_the_default_stage_is_the_stage_that_runs(subject):
    stage = subject.stage("computation")
    assert stage.facts.runs
    assert stage.facts.number == len(subject.traces["computation"]) - 1


def test_stages_go_by_number_name_and_part_of_a_name(subject):
    by = [
        subject.stage("computation", wanted).facts.number
        for wanted in ("2", "drop-dead-code", "Drop dead code", "dead")
    ]
    assert by == [2, 2, 2, 2]


def test_unknown_names_are_refused_with_the_existing_names(subject):
    with pytest.raises(NoSuchTrace, match="no stage '9'") as missing:
        subject.stage("computation", "9")
    assert "0 trace, 1 share-common-expressions" in missing.value.fix
    with pytest.raises(NoSuchTrace, match=r"'a' matches \d stages"):
        subject.stage("computation", "a")


def test_missing_backward_is_refused_with_the_reason(subject):
    with pytest.raises(NoSuchTrace, match="has no compiled backward: autograd was off when") as missing:
        subject.stage("backward")
    assert missing.value.fix == "name one of: prologue, computation, epilogue"


def test_changes_of_each_stage_are_counted(subject):
    drop = subject.stage("computation", "drop-dead-code").facts
    assert (drop.added, drop.removed) == (0, 2)


def test_the_lines_of_a_module_with_its_inputs_and_outputs(subject):
    listing = module_lines(subject.stage("computation", "drop-dead-code").read(), "layers.1")
    assert {line.module for line in listing.lines} == {"layers.1", "layers.1.up", "layers.1.down"}
    origins = [value.origin for value in listing.inputs]
    assert origins == [
        "",
        *(f"module.layers[1].{name}" for name in ("up.weight", "up.bias", "down.weight", "down.bias")),
    ]
    assert [value.described for value in listing.results] == ["f32[2, 4]"]


def test_a_part_of_a_modules_path_is_enough(subject):
    stage = subject.stage("computation")
    assert {line.module for line in module_lines(stage.read(), "1.up").lines} == {"layers.1.up"}
    assert {line.module for line in module_lines(stage.read(), "module.layers.1.up").lines} == {"layers.1.up"}
    with pytest.raises(NoSuchTrace, match=r"'layers\.7'") as missing:
        module_lines(stage.read(), "layers.7")
    assert "layers.1" in missing.value.fix


def test_a_module_whose_lines_are_gone_is_looked_for_in_the_stages_before(subject):
    stage = subject.stage("computation")
    whole = stage.read()
    rest = replace(whole, lines=tuple(line for line in whole.lines if not is_within(line.module, "layers.1")))
    with pytest.raises(NoSuchTrace, match=r"no line of 'layers\.1' at this stage") as missing:
        module_lines(rest, "layers.1", EarlierStages(subject.before(stage)))
    assert missing.value.fix == "use --stage 3 (claim by torch), the last stage with such lines"


def test_the_function_of_a_module_equals_the_module(subject, compiled):
    listing = module_lines(subject.stage("computation").read(), "layers.1")
    namespace: dict[str, object] = {}
    exec(layout(listing), namespace)
    module, x = compiled, torch.randn(2, 4)
    given = [eval(value.origin, {"module": module}) if value.origin else x for value in listing.inputs]
    with torch.no_grad():
        (found,) = namespace["computation"](*given)
        torch.testing.assert_close(found, compiled.layers[1](x))


def test_paths_are_compared_by_their_parts():
    assert is_within("layers.1.up", "layers.1")
    assert not is_within("layers.10.up", "layers.1")


def test_patterns_are_looked_for_in_statements_metadata_modules_and_the_users_lines(subject):
    listing = subject.stage("computation", "trace").read()
    assert [m.module for m in matches(listing, r"torch\.tanh\(t\d+\)$")] == ["layers.0", "layers.1"]
    assert [m.metadata for m in matches(listing, r"\[2, 8\].*")][:1] == ["f32[2, 8]"]
    assert {m.module for m in matches(listing, r"\.down$")} == {"layers.0.down", "layers.1.down"}
    assert [m.module for m in matches(listing, r"py:\d+: unused = x")] == ["layers.0", "layers.1"]
    assert [m.text for m in matches(listing, "aten.addmm", "aten")]


def test_a_bad_pattern_is_refused(subject):
    with pytest.raises(BadOption, match="not a regular expression"):
        list(matches(subject.stage("computation").read(), "("))


def test_a_diff_shows_the_changes_of_a_stage(subject):
    before, after = (subject.stage("computation", name) for name in ("share-common-expressions", "drop-dead-code"))
    lines = unified_diff(before, after)
    assert lines[0] == "--- computation, stage 1: share common expressions"
    assert sum(line.startswith("-    t") and "+ 1 " in line for line in lines) == 2
    assert not any(line.startswith("+ ") for line in lines)
    assert unified_diff(after, after) == []


def test_plain_text_without_a_source_defines_the_function_and_names_missing_parts(subject):
    stage = subject.stage("computation")
    text = runnable(subject, stage, stage.read())
    assert "raise SystemExit('the origin of the model is unknown" in text
    namespace: dict[str, object] = {"__name__": "imported"}
    exec(text, namespace)
    assert callable(namespace["computation"])


@pytest.mark.parametrize("trace", ["prologue", "computation", "epilogue"])
@pytest.mark.parametrize("level", ["torch", "aten"])
def test_every_trace_is_a_python_file_whose_names_all_resolve(subject, trace, level):
    for stage in subject.traces[trace]:
        namespace: dict[str, object] = {"__name__": "imported"}
        exec(runnable(subject, stage, stage.read(), level=level), namespace)
        missing = set(namespace[trace].__code__.co_names) - namespace.keys() - set(dir(torch))
        used = {name for name in stage.facts.constants if name in missing}
        assert used == set()


@pytest.mark.parametrize("number", ["--5", "²", "-"])
def test_text_that_only_looks_like_a_number_is_refused(subject, number):
    with pytest.raises(NoSuchTrace, match="stage"):
        subject.stage("computation", number)


def test_constant_is_not_used_by_a_longer_name():
    listing = SimpleNamespace(lines=[SimpleNamespace(text="t0 = f(object_10)", parts=())], returns="(t0,)")
    assert is_used("object_10", listing)
    assert not is_used("object_1", listing)
