"""Left-out parts stay left out in the programs of an artifact and in the programs that it traces later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import thunder_core as thunder
from tests.claiming.test_withholding import ONE, assert_alike, compiled_stack, count_withheld, executors_in
from thunder_core.compilation.compiler import specializations_of
from thunder_core.foundation.errors import ArtifactDamaged
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.foundation.storage.manifest import MANIFEST
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.artifact.format.compilers import compiler_of
from thunder_core.workflow.artifact.trust.trust import trust_in

WITHOUT = ("cse", f"inductor:{ONE}", "sdpa")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stack, compiled = compiled_stack("sdpa", "inductor", without=WITHOUT)
    assert_alike(stack, compiled)
    return thunder.save(compiled, tmp_path_factory.mktemp("without") / "a.thunder")


def test_the_manifest_lists_left_out_parts_and_new_traces_leave_them_out(saved: Path) -> None:
    facts = open_artifact(saved).manifest.compiler
    assert facts.options.without == WITHOUT
    assert facts.executors == ("inductor", "torch")
    stack, _ = compiled_stack()
    loaded = thunder.load(saved, stack)
    for size, misses in ((3, 0), (5, 1)):
        assert_alike(stack, loaded, size)
        assert thunder.cache_misses(loaded) == misses
    for traces in (thunder.last_traces(loaded), thunder.last_backward_traces(loaded)):
        assert executors_in(traces[-1], ONE) == {"torch"}
        assert "inductor" in executors_in(traces[-1], "layers.0.mlp")
    assert count_withheld(thunder.last_traces(loaded)[-1])["inductor"] > 4
    assert compiler_of(facts, trust_in(None)).options.without == WITHOUT
    assert specializations_of(loaded).options.without == WITHOUT


@pytest.mark.parametrize("without", ["cse", ["inductor:"], [3], ["sdpa", "cse"], None])
def test_a_manifest_that_leaves_out_nonsense_is_damaged(saved: Path, tmp_path: Path, without: object) -> None:
    content = json.loads((saved / MANIFEST).read_bytes())
    del content["digest"]
    content["compiler"]["options"]["without"] = without
    digest = digest_of((json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    (tmp_path / MANIFEST).write_text(json.dumps({**content, "digest": digest}, indent=1, ensure_ascii=False) + "\n")
    with pytest.raises(ArtifactDamaged):
        open_artifact(tmp_path)
