"""The modules that may be imported to restore a constant of a trace. Scripts and tests are never imported.

A constant of a trace is a function, a class, an operation or a lookup table (a dict) in a model's code. An import runs
the module, so scripts are not imported even if they belong to a known library.
"""

from __future__ import annotations

from collections.abc import Mapping

# The modules of each library that define constants of programs. `NAME` is a module with its submodules, `NAME.` the
# module alone, and `.` the library's top module alone. `PREFIX*` is every module whose name begins with the prefix.
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "builtins": (".",),
    "torch": (
        *(".", "functional", "nn", "ops", "overrides", "storage", "random", "return_types", "types", "library", "amp"),
        *("autograd", "func", "fft", "linalg", "special", "signal", "sparse", "masked", "nested", "distributions"),
        *("cpu", "cuda", "mps", "mtia", "xpu", "accelerator", "backends", "compiler", "jit", "fx", "export", "optim"),
        *("ao", "quantization", "distributed", "utils._*", "utils.checkpoint", "utils.hooks", "utils.dlpack"),
        *("_C", "_VF", "_classes", "_compile", "_custom_op", "_custom_ops", "_decomp", "_dispatch", "_dynamo"),
        *("_functorch", "_guards", "_higher_order_ops", "_inductor", "_jit_internal", "_library", "_linalg_utils"),
        *("_lobpcg", "_lowrank", "_meta_registrations", "_native", "_numpy", "_ops", "_prims", "_prims_common"),
        *("_refs", "_subclasses", "_tensor", "_tensor_str", "_utils", "_vmap_internals"),
    ),
    "transformers": (
        *(
            ".",
            "activations",
            "backbone_utils",
            "cache_utils",
            "configuration_utils",
            "fusion_mapping",
            "initialization",
        ),
        *("masking_utils", "modeling_*", "pytorch_utils", "time_series_utils", "generation", "integrations", "loss"),
        *("quantizers", "utils", "distributed", "models.", "monkey_patching"),
    ),
    "numpy": (
        ".",
        "_core",
        "core",
        "char",
        "dtypes",
        "exceptions",
        "fft",
        "lib",
        "linalg",
        "ma",
        "polynomial",
        "random",
    ),
    "scipy": (
        *(".", "_lib", "cluster", "constants", "fft", "integrate", "interpolate", "linalg", "ndimage", "optimize"),
        *("signal", "sparse", "spatial", "special", "stats"),
    ),
    "sympy": (
        *(".", "abc", "assumptions", "calculus", "concrete", "core", "functions", "integrals", "logic", "matrices"),
        *("multipledispatch", "ntheory", "polys", "printing", "series", "sets", "simplify", "solvers", "utilities"),
    ),
    "mpmath": (".", "calculus", "ctx_*", "functions", "libmp", "math2", "matrices", "rational"),
    "regex": (".", "_main", "_regex", "_regex_core"),
}
# The prefixes of the modules in `transformers.models.FAMILY` that may be imported: models and configs, but not
# converters and tokenizers.
FAMILY_PREFIXES = ("modeling_", "configuration_", "modular_")
SCRIPT = frozenset({"conftest", "setup", "main", "cli", "commands", "scripts", "examples", "benchmarks", "sandbox"})
TEST = frozenset({"test", "tests", "testing"})


def may_define_constants(module: str) -> bool:
    """Whether constants may come from a module of a library."""
    top, _, rest = module.partition(".")
    if top not in LIBRARIES or is_script_or_test(module):
        return False
    if module.startswith("transformers.models."):
        return is_family_module(rest.split(".")[1:])
    return any(_matches(rest, pattern) for pattern in LIBRARIES[top])


def is_family_module(parts: list[str]) -> bool:
    """Whether a module in `transformers.models` is the package, model, config or auto class of a model family."""
    return len(parts) < 2 or (len(parts) == 2 and (parts[1].startswith(FAMILY_PREFIXES) or parts[1] == "auto"))


def is_script_or_test(module: str) -> bool:
    """Whether a part of a module's name, below the library, is a script, a test or a name such as `__main__`."""
    return any(part.startswith("__") or part in SCRIPT or is_test(part) for part in module.split(".")[1:])


def is_test(part: str) -> bool:
    """Whether a part of a module's name marks tests."""
    return part in TEST or part.startswith("test_") or part.endswith(("_test", "_tests"))


def _matches(rest: str, pattern: str) -> bool:
    if pattern.endswith("."):
        return rest == pattern.removesuffix(".")
    if pattern.endswith("*"):
        return rest.startswith(pattern.removesuffix("*"))
    return rest == pattern or rest.startswith(f"{pattern}.")
