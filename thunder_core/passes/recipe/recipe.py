"""Recipes: named declarations of how a model is optimized, by which executors, and how exact the result must be."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

import torch

from thunder_core.backend.claiming.executor import Executor
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadRecipe, RecipeConflict, RecipeMismatch
from thunder_core.foundation.model_configs import model_type_of
from thunder_core.foundation.options.left_out import left_out_texts
from thunder_core.foundation.options.quality import Quality
from thunder_core.foundation.options.symbolic_arguments import Given, SymbolicArgument, symbolic_arguments
from thunder_core.foundation.options.tolerance import Tolerance
from thunder_core.passes.recipe.composition import Composition, name_of
from thunder_core.passes.recipe.dimensions import DIMENSIONS
from thunder_core.passes.recipe.options import RecipeOptions, hyphenate, parse_options
from thunder_core.passes.recipe.plugin import Composable, ExecutorRank, Plugin, as_composable, compose
from thunder_core.passes.recipe.settings import WITHOUT, settings_of
from thunder_core.passes.recipe.symbolic_ranges import common_ranges, require_dimensions
from thunder_core.tracing.extension.authorship import call_part
from thunder_core.tracing.extension.declaration import check_attributes, require_traits, require_tuple_of
from thunder_core.tracing.extension.lookaside import Lookaside
from thunder_core.tracing.extension.requirement import Cuda, Degradation, Package, Processor, Requirement, unmet_reason
from thunder_core.tracing.extension.traits import TRAITS, Traits
from thunder_core.tracing.extension.transform import Transform, order_transforms

__all__ = [
    "Cuda",
    "Degradation",
    "Lookaside",
    "Package",
    "Plugin",
    "Processor",
    "Quality",
    "Recipe",
    "RecipeOptions",
    "Requirement",
    "Tolerance",
    "Transform",
    "order_transforms",
    "unmet_reason",
]


# Rounding to a dtype with p bits of precision changes a value by up to 2**-p of itself; a few such roundings are
# allowed.
TOLERANCES: Mapping[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(floor=1e-12, kl=1e-9),
    torch.float32: Tolerance(floor=4e-6, kl=1e-5),
    torch.float16: Tolerance(floor=5e-4),
    torch.bfloat16: Tolerance(floor=4e-3, kl=5e-3, top1=0.97),
}


DECLARED_TUPLES: Mapping[str, tuple[type, ...]] = {
    "families": (str,),
    "parts": (str,),
    "executors": (str, Executor),
}
MISTAKEN_ATTRIBUTES = {
    "transforms": "setup_transforms",
    "lookasides": "setup_lookasides",
    "operators": "setup_operators",
    "settings": "setup_config",
    "family": "families",
}
READ_ATTRIBUTES = (
    *(*DECLARED_TUPLES, *TRAITS, "requirements"),
    *("compiler", "sample", "device", "dtype", "seq", "padded", "dimensions", "symbolic"),
    *("Options", "validate", "tolerance", "quality"),
)


class Recipe(Traits, Composable):
    """The base class of recipes. A recipe declares how a model is optimized; its docstring describes it to users.

    The file of a recipe defines one subclass. Its attributes are:

    - `families`: the model types of transformers that the recipe supports. Empty means every module.
    - `requirements`: the recipe's requirements on the machine. `parts` names the parts that are skipped if a
      requirement is not met.
    - `executors`: the executors in claiming order.
    - `sample`: the small model that is used if no model is given.
    - `device`, `dtype`: the default device of a model, and its default dtype on this device. Empty means the best
      available device, and the checkpoint's dtype.
    - `seq`: the default number of tokens in a text on the default device; 0 means Thunder's default.
    - `padded`: whether random texts have padding and a mask; if not, another program is traced for texts with a mask.
    - `dimensions`: a common name (`seq`) for several sizes of the model's inputs, for `--dynamic seq=1:8192` and
      `compile(..., symbolic=["seq"])`. A model need not have all these inputs.
    - `symbolic`: the dimensions or arguments that are symbolic by default.
    - `compiler`: the front end that traces the program, "jit" or "thunderfx" (TorchDynamo). A combined recipe uses
      "thunderfx" if one of its recipes does.
    - `after`, `before`, `needs`, `excludes`, `provides`: the traits, which `Traits` describes.

    Recipes and plug-ins are combined by `+`. Authors override `validate`, `tolerance`, `quality` and the methods
    `setup_...`, each of which describes only this recipe. They must not override members that describe the combined
    recipe (`composition` and others).
    """

    compiler: ClassVar[Literal["jit", "thunderfx"]] = "jit"
    families: ClassVar[tuple[str, ...]] = ()
    parts: ClassVar[tuple[str, ...]] = ()
    executors: ClassVar[tuple[str | Executor, ...]] = ("torch",)
    sample: ClassVar[str] = "llama3"
    device: ClassVar[str] = ""
    dtype: ClassVar[str] = ""
    seq: ClassVar[int] = 0
    padded: ClassVar[bool] = True
    dimensions: ClassVar[Mapping[str, tuple[str, ...]]] = DIMENSIONS
    symbolic: ClassVar[Given] = ()
    Options: ClassVar[type[RecipeOptions]] = RecipeOptions
    executor_rank: ClassVar[ExecutorRank] = ExecutorRank.RECIPE

    def __init_subclass__(cls) -> None:
        """Raise `BadRecipe` for attributes that Thunder does not read, and for attributes with a wrong type."""
        super().__init_subclass__()
        check_attributes(cls, Recipe, READ_ATTRIBUTES, others=MISTAKEN_ATTRIBUTES)
        for name, kinds in DECLARED_TUPLES.items():
            require_tuple_of(cls.__name__, name, getattr(cls, name), kinds)
        require_traits(cls.__name__, cls)
        require_dimensions(cls.__name__, cls.dimensions, cls.symbolic)
        if not (isinstance(cls.Options, type) and issubclass(cls.Options, RecipeOptions)):
            raise BadRecipe(
                f"{cls.__name__}: Options is not a subclass of RecipeOptions", fix="write class Options(RecipeOptions)"
            )

    def __init__(self, **options: object) -> None:
        """Raise `UnknownName` for an unknown option, and `BadOption` for an invalid value."""
        self.added: tuple[Composable, ...] = ()
        self.compiler_asked = ""
        self.chosen = parse_options(self.name, self.Options, options)

    @property
    def title(self) -> str:
        """The name of the class in lower case with hyphens, which is the name of its file."""
        return hyphenate(type(self).__name__)

    @property
    def labels(self) -> frozenset[str]:
        """The recipe's own name, and the labels that it provides."""
        return frozenset((self.title, *self.provides))

    @property
    def acquires_by(self) -> str:
        """The front end that traces programs: `jit`, or `thunderfx` if a recipe of the combination declares it."""
        return self.compiler_asked or next((part.compiler for part in self.recipes if part.compiler != "jit"), "jit")

    def acquired_by(self, compiler: str) -> Recipe:
        """Return the recipe with another front end, whatever its parts declare."""
        changed = copy.copy(self)
        changed.compiler_asked = compiler
        return changed

    @property
    def name(self) -> str:
        """The recipe's own name; for a combined recipe, the names of its recipes and then of its plug-ins."""
        return " + ".join(part.title for part in self.components)

    @property
    def options(self) -> Mapping[str, object]:
        """The options with their values. If several combined recipes have an option, its name is `recipe.option`."""
        chosen = [(recipe.title, recipe.chosen.model_dump()) for recipe in self.recipes]
        names = [name for _, options in chosen for name in options]
        return {
            name if names.count(name) == 1 else f"{title}.{name}": value
            for title, options in chosen
            for name, value in options.items()
        }

    @classmethod
    def summary(cls) -> str:
        """Return the first line of the recipe's description."""
        return (cls.__doc__ or "").strip().partition("\n")[0]

    def validate(self, model: torch.nn.Module) -> None:
        """Raise `RecipeMismatch` for a model of a family that the recipe does not support."""
        family = model_type_of(model)
        if self.families and family not in self.families:
            suitable_recipes = " or ".join((*recipes_for(family), "hf-transformers" if family else "default"))
            raise RecipeMismatch(
                f"recipe {self.name} is for {', '.join(self.families)}; this model is {family or type(model).__name__}",
                fix=f"use a recipe for this model: {suitable_recipes}",
            )

    def setup_transforms(self) -> tuple[Transform, ...]:
        """Return the recipe's own transforms, in any order; their traits decide the order."""
        return ()

    def setup_lookasides(self) -> tuple[Lookaside, ...]:
        """Return the recipe's own lookasides: functions that replace other functions wherever the model calls them."""
        return ()

    def setup_executors(self) -> tuple[str | Executor, ...]:
        """Return the recipe's own executors in claiming order; eager PyTorch always comes last."""
        return tuple(self.executors)

    def setup_operators(self) -> tuple[Executor, ...]:
        """Return the recipe's own operators: executors that each replace a function of PyTorch, and may claim first."""
        return ()

    def setup_config(self) -> Mapping[str, object]:
        """Return the requested settings of `jit`: `cache`, `memory_budget`, `symbolic` and others."""
        return {}

    def setup_requirements(self) -> tuple[tuple[str, Requirement], ...]:
        """Return the recipe's own requirements on the machine, each with the part that has the requirement."""
        parts = self.parts or (self.title,)
        return tuple((part, need) for need in self.requirements for part in parts)

    @property
    def rank(self) -> tuple[object, ...]:
        """The sort key: recipes come before plug-ins, by name and class."""
        return 0, self.title, f"{type(self).__module__}.{type(self).__qualname__}"

    def is_same(self, other: Composable) -> bool:
        """Whether another part is of the same class; raises `RecipeConflict` if its options differ."""
        if type(self) is not type(other):
            return False
        mine, theirs = (
            {name: value for name, value in vars(recipe).items() if name != "added"} for recipe in (self, other)
        )
        if mine != theirs:
            raise RecipeConflict(
                f"the recipe {self.title} is given twice with different options, one of them {self.chosen}",
                fix=f"give {self.title} once",
            )
        return True

    def combined_with(self, others: Sequence[Composable]) -> Recipe:
        """Return a copy of the recipe with `others` as its added parts."""
        more = copy.copy(self)
        more.added = tuple(others)
        return more

    @property
    def components(self) -> tuple[Composable, ...]:
        """The recipe and the parts that were added to it, in the order of their names."""
        return (self, *self.added)

    @property
    def composition(self) -> Composition:
        """The parts of the combined recipe; they do not depend on the order of addition."""
        return Composition(self.components)

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The recipe, and the recipes that were added to it."""
        return tuple(part for part in self.components if isinstance(part, Recipe))

    def validate_all(self, model: torch.nn.Module) -> None:
        """Call `validate` of each combined recipe; it raises an error for a model that the recipe does not support."""
        for recipe in self.recipes:
            recipe.validate(model)

    def loosest_tolerance(self, dtype: torch.dtype) -> Tolerance:
        """Return the loosest tolerance of the combined recipes."""
        tolerances: list[Tolerance] = [call_part(recipe, "tolerance", Tolerance, dtype) for recipe in self.recipes]
        return functools.reduce(Tolerance.or_looser, tolerances)

    @property
    def loosest_quality(self) -> Quality:
        """Return the loosest bound of the combined recipes on the loss of model quality."""
        qualities = (call_part(recipe, "quality", (Quality, type(None))) for recipe in self.recipes)
        bounds = [quality for quality in qualities if quality is not None]
        return functools.reduce(Quality.or_looser, bounds) if bounds else Quality()

    def all_transforms(self) -> tuple[Transform, ...]:
        """Return the ordered transforms of the combined recipe.

        All `all_` methods raise the errors of `Composition`.
        """
        return self.composition.transforms().in_order()

    def all_lookasides(self) -> tuple[Lookaside, ...]:
        """Return the lookasides of the combined recipe; raise `RecipeConflict` for two lookasides of one function."""
        return self.composition.lookasides

    def all_executors(self) -> tuple[str | Executor, ...]:
        """Return the executors of the combined recipe in claiming order, eager PyTorch last."""
        return self.composition.executor_order

    def all_dimensions(self) -> Mapping[str, tuple[str, ...]]:
        """Return the named dimensions of the combined recipe, each with the names of its sizes."""
        dimensions: dict[str, tuple[str, ...]] = {}
        for recipe in self.recipes:
            for dimension, names in recipe.dimensions.items():
                dimensions[dimension] = tuple(dict.fromkeys((*dimensions.get(dimension, ()), *names)))
        return dimensions

    def symbolic_arguments(self, ranges: Given | None = None) -> tuple[SymbolicArgument, ...]:
        """Return the symbolic arguments in `ranges`; by default, the symbolic arguments of the combined recipe.

        A named dimension is expanded to its sizes. Raises `RecipeConflict` if two parts give an argument different
        ranges.
        """
        if ranges is not None:
            arguments = [("", argument) for argument in symbolic_arguments(ranges)]
        else:
            rows: list[tuple[str, Any]] = [
                (part.title, settings_of(part).get("symbolic", ())) for part in self.components
            ]
            rows += [(recipe.title, recipe.symbolic) for recipe in self.recipes]
            arguments = [(title, argument) for title, row in rows for argument in symbolic_arguments(row)]
        return tuple(size for argument in common_ranges(arguments) for size in self.expand_dimension(argument))

    def expand_dimension(self, argument: SymbolicArgument) -> tuple[SymbolicArgument, ...]:
        """Return the sizes of a named dimension, or another argument unchanged.

        A call need not have all these sizes.
        """
        dimension, _, companion = argument.name.partition(" with ")
        names = self.all_dimensions().get(dimension)
        if names is None:
            return (argument,)
        condition = f" with {companion}" if companion else ""
        return tuple(replace(argument, name=f"{name}{condition}", required=False) for name in names)

    def all_requirements(self) -> tuple[tuple[str, Requirement], ...]:
        """Return the requirements of the combined recipe; a recipe whose `device` is a GPU requires a GPU."""
        requirements = self.composition.requirements
        is_stated = any(isinstance(need, Cuda) for _, need in requirements)
        return (
            requirements
            if is_stated
            else (*requirements, *(("the GPU", Cuda()) for recipe in self.recipes if "cuda" in recipe.device))
        )

    @property
    def shared_sample(self) -> str:
        """The name of the small model for the combined recipe: the sample of the recipe with the fewest families."""
        stating = [
            recipe for recipe in self.recipes if any("sample" in vars(kind) for kind in own_classes(type(recipe)))
        ]
        stating.sort(key=lambda recipe: (not recipe.families, len(recipe.families), recipe.title))
        return stating[0].sample if stating else self.sample

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        """Return the tolerance of the result for a model of a dtype."""
        return TOLERANCES.get(dtype, TOLERANCES[torch.float32])

    def quality(self) -> Quality | None:
        """Return the bound on the loss of quality that transforms may cause; None if the recipe sets no bound."""
        return None

    def skipped_parts(self, target: str = "", device: torch.device | None = None) -> tuple[Degradation, ...]:
        """Return the parts that are skipped on a device of this machine, or on the GPU architecture `target`."""
        named = [(transform.name, need) for transform in self.all_transforms() for need in transform.requirements]
        needs = (*self.all_requirements(), *named)
        checked = [(part, need, unmet_reason(need, target, device)) for part, need in needs]
        return tuple(Degradation(part, reason, need.fix) for part, need, reason in checked if reason)

    def with_(
        self,
        *,
        transforms: Sequence[Transform] = (),
        executors: Sequence[str | Executor] = (),
        lookasides: Sequence[Lookaside] = (),
        operators: Sequence[Executor] = (),
        **settings: object,
    ) -> Recipe:
        """Return the recipe with these parts and settings of `jit` (`memory_budget=0.5`) added."""
        parts = [as_composable(part) for part in (*transforms, *lookasides)]
        parts += [Plugin(name_of(executor), executors=(executor,)) for executor in executors]
        parts += [Plugin(operator.name, operators=(operator,)) for operator in operators]
        parts += without_parts(settings.pop(WITHOUT, ()))
        parts += [Plugin(f"{name}={value}", settings={name: value}) for name, value in settings.items()]
        return cast(Recipe, compose((self, *parts)))


def without_parts(without: object) -> list[Composable]:
    """Return plug-ins, each of which leaves a part out of a combined recipe. Raises `BadOption`."""
    return [Plugin(f"{WITHOUT}={text}", settings={WITHOUT: (text,)}) for text in left_out_texts(without)]


def own_classes(kind: type[Recipe]) -> tuple[type, ...]:
    """Return a recipe's class and those of its base classes that derive from `Recipe`."""
    return tuple(base for base in kind.__mro__ if base not in Recipe.__mro__)


def recipes_for(family: str | None) -> tuple[str, ...]:
    """Return the names of the recipes for a family of models."""
    modules = [plugins.load("recipes", entry.name) for entry in plugins.listing("recipes") if entry.reason is None]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    fitting = {kind for kind in kinds if issubclass(kind, Recipe) and family in kind.families}
    return tuple(sorted(hyphenate(kind.__name__) for kind in fitting))
