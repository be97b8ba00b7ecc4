"""Malicious artifacts with valid seals and digests: each attack has a name and a function that changes the artifact."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.artifact.damages import (
    CRAFTED,
    PATHS,
    craft_weights,
    list_in_manifest,
    manifest_of,
    only,
    outside,
    reseal,
    tensors,
)
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.foundation.storage.manifest import MANIFEST, FileFacts
from thunder_core.workflow.artifact.format.manifest import (
    CONFIG,
    CONSTANTS,
    SCHEMA_VERSION,
    WEIGHTS,
    CubinFacts,
    EmptyModelFacts,
    PartFacts,
)
from thunder_core.workflow.artifact.format.program_facts import ConstantFacts

Attack = Callable[[Path], object]
STRANGER = "a_stranger_of_the_attack"  # a module that writes the mark when it is imported
OBEYED = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e"
PROLOGUE = "traces/0/prologue-*.py"


def attacks() -> Iterator[tuple[str, Attack]]:
    """Every attack by name."""
    for table in (PROGRAMS, IMPORTS, EMPTY_MODELS, MANIFESTS, SCHEMAS, FILES, MODELS, ESCAPES):
        yield from table.items()
    yield from ((f"a path {path!r:.20}", list_in_manifest(path)) for path in PATHS)
    yield from ((f"weights: {name}", craft_weights(content)) for name, content in CRAFTED.items())
    yield from ((f"a literal {text[:20]}", constant(literal(text))) for text in LITERALS)


# ---- parts of a manifest --------------------------------------------------------------------------------------


def change_program(folder: Path, **changes: object) -> None:
    programs = manifest_of(folder).programs
    reseal(folder, programs=(programs[0].model_copy(update=changes), *programs[1:]))


def change_stage(folder: Path, trace: str = "prologue", **changes: object) -> None:
    """Replace the last stage of a trace of program 0."""
    stages = manifest_of(folder).programs[0].stages
    changed = (stage.model_copy(update=changes) if stage.trace == trace and stage.runs else stage for stage in stages)
    change_program(folder, stages=tuple(changed))


def constant(facts: ConstantFacts) -> Attack:
    """Add a constant to the prologue that runs."""

    def attack(folder: Path) -> None:
        stages = manifest_of(folder).programs[0].stages
        kept = next(stage for stage in stages if stage.trace == "prologue" and stage.runs).constants
        change_stage(folder, constants={**kept, "strange": facts})

    return attack


def literal(text: str) -> ConstantFacts:
    return ConstantFacts(kind="literal", text=text)


def import_attack(text: str) -> ConstantFacts:
    return ConstantFacts(kind="import", text=text)


def way(*steps: tuple[str, Any], text: str = "function") -> ConstantFacts:
    return ConstantFacts(kind="path", text=text, steps=steps)


def change_and_reseal(**changes: object) -> Attack:
    return lambda folder: reseal(folder, **changes)


def facts_of(content: bytes) -> FileFacts:
    return FileFacts(size=len(content), digest=digest_of(content))


def rewritten(pattern: str, change: Callable[[bytes], bytes]) -> Attack:
    """Replace the content of a file, and update its digest in the manifest."""

    def attack(folder: Path) -> None:
        path = only(folder, pattern)
        path.write_bytes(change(path.read_bytes()))
        name = path.relative_to(folder).as_posix()
        reseal(folder, files={**manifest_of(folder).files, name: facts_of(path.read_bytes())})

    return attack


def add_file(name: str, content: bytes, **changes: object) -> Attack:
    """Add a file and list it in the manifest."""

    def attack(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        reseal(folder, files={**manifest_of(folder).files, name: facts_of(content)}, **changes)

    return attack


def text_of_manifest(change: Callable[[str], str]) -> Attack:
    """Change the text of the manifest and seal the result."""

    def attack(folder: Path) -> None:
        text = change((folder / MANIFEST).read_text().partition(',\n "digest"')[0])
        content = f"{text}\n}}\n".encode(errors="surrogatepass")
        (folder / MANIFEST).write_bytes(content[:-3] + f',\n "digest": "{digest_of(content)}"\n}}\n'.encode())

    return attack


def option(text: str) -> Attack:
    """An option of the recipe whose JSON value is this text."""
    return text_of_manifest(lambda content: content.replace('"subject"', f'"options": {{"x": {text}}},\n "subject"', 1))


# ---- the attacks ----------------------------------------------------------------------------------------------

LITERALS = (
    *("set(range(1000000000))", "frozenset(range(1000000000))", "(" * 50_000, "-" * 50_000 + "1", "9" * 5001),
    *("__import__('os').system('true')", "[].__class__", "a" + ".b" * 50_000, "{**{}}", "\0"),
)

PROGRAMS: dict[str, Attack] = {
    "no prologue": lambda folder: change_program(
        folder, stages=tuple(stage for stage in manifest_of(folder).programs[0].stages if stage.trace != "prologue")
    ),
    "no stages": lambda folder: change_program(folder, stages=()),
    "nothing that runs": lambda folder: change_stage(folder, "computation", runs=False),
    "a stage in another file": lambda folder: change_stage(folder, file="no/such/file"),
    "a stage outside": lambda folder: change_stage(folder, file="../outside"),
    "a stage that is a library": lambda folder: change_stage(
        folder, file=only(folder, "kernels/*.so").relative_to(folder).as_posix()
    ),
    "a kernel without files": constant(ConstantFacts(kind="region", text="region")),
    "a kernel outside": constant(ConstantFacts(kind="region", text="region", files=("../outside",))),
    "a tensor that is not there": constant(ConstantFacts(kind="tensor", text="nowhere")),
    "a tensor of exabytes": constant(ConstantFacts(kind="tensor", text="inner.weight", stride=(1 << 60, 1 << 60))),
    "a derivative of nothing": lambda folder: reseal(
        folder,
        programs=tuple(
            program
            if program.derivative is None
            else program.model_copy(update={"derivative": with_body(program.derivative)})
            for program in manifest_of(folder).programs
        ),
    ),
    "cubins of nobody": add_file("x", b"x", cubins=(CubinFacts(executor="nobody", file="x", facts={}),)),
    "cubins outside": change_and_reseal(cubins=(CubinFacts(executor="triton", file="../outside", facts={}),)),
}  # fmt: skip


def with_body(derivative: Any) -> Any:
    return type(derivative)(**{**vars(derivative), "body": 10_000})


IMPORTS: dict[str, Attack] = {
    "a stranger's constant": constant(import_attack(f"{STRANGER}:thing")),
    "a stranger": constant(import_attack(STRANGER)),
    "a stranger on a way": constant(way(("import", f"{STRANGER}:thing"))),
    "a stranger as a key": constant(way(("import", "sys:modules"), ("keyed", STRANGER))),
    "a stranger's code": change_and_reseal(code={STRANGER: "0" * 64}),
    "a module that acts": constant(import_attack("antigravity")),
    "a script of a library": constant(import_attack("numpy.f2py.__main__:main")),
    "a script of a library on a way": constant(way(("import", "numpy.f2py.__main__:main"))),
    "a script of a library's code": change_and_reseal(code={"sympy.this": "0" * 64}),
    "a test of a library": constant(import_attack("numpy.fft.tests.test_pocketfft:TestFFT1D")),
    "a tool of a library": constant(import_attack("transformers.convert_slow_tokenizers_checkpoints_to_fast:main")),
    "a relative module": constant(import_attack("..evil:x")),
    "no module": constant(import_attack("")),
    "a getter on a way": constant(way(("open", "T_destination"))),
    "a way without end": constant(way(*[("type", None)] * 50_000, text="nothing")),
    "a step that is none": constant(way(("eval", "1"))),
}

EMPTY_MODELS: dict[str, Attack] = {
    "an empty model of anything": add_file(
        CONFIG, b"{}", empty_model=EmptyModelFacts(path="os:system", dtype="float32")
    ),
    "an empty model of a library's": add_file(
        CONFIG, b"{}", empty_model=EmptyModelFacts(path="transformers.utils:os.system", dtype="x")
    ),
}

MANIFESTS: dict[str, Attack] = {
    "an option of many digits": option("9" * 5001),
    "an option that nests": option("[" * 100_000 + "]" * 100_000),
    "an option that nests a little": option("[" * 500 + "]" * 500),
    "an option that is no number": option("NaN"),
    "an option that is infinite": option("-Infinity"),
    "half a character": option('"\\ud800"'),
    "a key twice": option('1, "x": 2'),
    "a comment": option("1 /* one */"),
    "many files": change_and_reseal(
        files={f"file-{number}": FileFacts(size=0, digest="0" * 64) for number in range(20_000)}
    ),
    "a manifest of 65 MB": option('"' + "a" * (65 << 20) + '"'),
    "a manifest that is a list": lambda folder: (folder / MANIFEST).write_bytes(b"[]"),
    "a mark of the byte order": lambda folder: (folder / MANIFEST).write_bytes(
        b"\xef\xbb\xbf" + (folder / MANIFEST).read_bytes()
    ),
    "negative numbers": change_and_reseal(
        random_inputs={"batch": -1}, files={"x": FileFacts.model_construct(size=-1, digest="")}
    ),
}


def schema(text: str) -> Attack:
    wanted = f'"schema_version": {text}'
    return text_of_manifest(lambda content: content.replace(f'"schema_version": {SCHEMA_VERSION}', wanted, 1))


SCHEMAS: dict[str, Attack] = {
    f"schema {text[:12]}": schema(text)
    for text in ("1", "3", "0", "-1", "4.0", '"4"', "1e0", "true", "null", "[1]", "9" * 30, "9" * 5001)
}


def replaced(pattern: str, make: Callable[[Path], object]) -> Attack:
    """Replace a file by another object, after moving the file outside of the artifact."""

    def attack(folder: Path) -> None:
        path = only(folder, pattern)
        path.rename(outside(folder))
        make(path)

    return attack


def as_link(path: Path) -> None:
    path.symlink_to(outside(next(parent for parent in path.parents if parent.suffix == ".thunder")))


FILES: dict[str, Attack] = {
    **{
        f"{kind} in place of {pattern}": replaced(pattern, make)
        for pattern in (MANIFEST, PROLOGUE, "kernels/*.so", WEIGHTS)
        for kind, make in (("a link", as_link), ("a pipe", os.mkfifo), ("a folder", Path.mkdir))
    },
    "a device": replaced(PROLOGUE, lambda path: path.symlink_to("/dev/zero")),
    "a link to itself": replaced(PROLOGUE, lambda path: path.symlink_to(path)),
    "a text that is none": rewritten(PROLOGUE, lambda content: b"\xff" + content),
    "constants that nest": add_file(CONSTANTS, tensors(b"[" * 100_000)),
    "constants that are a number": add_file(CONSTANTS, tensors(b"5")),
    "constants of many digits": add_file(CONSTANTS, tensors(b'{"x": ' + b"9" * 5001 + b"}")),
    "constants of a product without end": add_file(
        CONSTANTS, tensors({"x": {"dtype": "F32", "shape": [int("9" * 4000)] * 2000, "data_offsets": [0, 4]}}, bytes(4))
    ),
}


def source(**given: object) -> dict[str, object]:
    told = {"kind": "folder", "path": "nowhere", "task": "causal-lm", "dtype": "float32", "device": "cpu"}
    return {**told, "random_weights": False, "seed": 0, "trust_remote_code": False, **given}


# Attacks on models that are built from the artifact because no model is passed.
MODELS: dict[str, Attack] = {
    "code of a model": change_and_reseal(source=source(trust_remote_code=True), weights={}),
    "a model that is a file": change_and_reseal(source=source(path="/etc/hostname"), weights={}),
    "a source that lacks all": change_and_reseal(source={"kind": "folder"}, weights={}),
    "a source of other kinds": change_and_reseal(source=source(seed="x", path=5), weights={}),
    "code of the hub": add_file(
        CONFIG,
        b"{}",
        empty_model=EmptyModelFacts(path="transformers:LlamaForCausalLM", dtype="float32", attention="evil/kernel"),
    ),
    "code of the hub inside": add_file(
        CONFIG,
        json.dumps({"text_config": {"attn_implementation": "evil/kernel"}}).encode(),
        empty_model=EmptyModelFacts(path="transformers:LlamaForCausalLM", dtype="float32"),
    ),
    "a config that nests": add_file(
        CONFIG, b'{"a":' * 100_000, empty_model=EmptyModelFacts(path="transformers:LlamaForCausalLM", dtype="float32")
    ),
    "a config of many digits": add_file(
        CONFIG,
        b'{"hidden_size": ' + b"9" * 4000 + b"}",
        empty_model=EmptyModelFacts(path="transformers:LlamaForCausalLM", dtype="float32"),
    ),
}

ESCAPES: dict[str, Attack] = {
    "a subject that is obeyed": change_and_reseal(subject=OBEYED, fingerprint=OBEYED),
    "a PyTorch that is obeyed": change_and_reseal(torch=f"1.{OBEYED}"),
    "a machine that is obeyed": change_and_reseal(machine=OBEYED),
    "a module that is obeyed": change_and_reseal(code={f"a{OBEYED}": ""}),
    "a constant that is obeyed": constant(import_attack(f"torch:{OBEYED}")),
    "a file that is obeyed": list_in_manifest(OBEYED),
    "a transform that is obeyed": lambda folder: reseal(
        folder,
        subject=OBEYED,
        fingerprint="",
        compiler=manifest_of(folder).compiler.model_copy(update={"transforms": (PartFacts(path=OBEYED),)}),
    ),
}
