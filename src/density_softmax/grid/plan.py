"""The cells of a grid: which runs there are to be, and which of them are finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from density_softmax.config import ConfigError, assignment, override, parse_assignment
from density_softmax.errors import UserError
from density_softmax.methods import kinds_of
from density_softmax.methods.base import Group, MethodConfig
from density_softmax.recipes import Recipe, get_recipe
from density_softmax.recipes.ablations import find_variants
from density_softmax.runs.run import Run, shared_root

# What ablations are of.
ABLATED = "density_softmax"

# What --methods calls a group of methods.
GROUPS: dict[str, Group] = {"all": "paper", "posthoc": "posthoc"}

Changes = Mapping[str, Any]  # JSON values by path


@dataclass(frozen=True)
class Cell:
    """One run of a grid.

    Attributes:
        run: the run.
        changes: what was changed in the recipe of its name, also where it computes and reads.
        member: of an ensemble, the number of the member to train; None assembles them.
    """

    run: Run
    changes: Changes
    member: int | None = None

    @property
    def name(self) -> str:
        """What it is called among the cells of its grid."""
        member = "" if self.member is None else f"-member{self.member}"
        return f"{self.run.line}-seed{self.run.seed}{member}"

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the cells that have to be finished before it: the members of its run."""
        members = range(len(self.run.members)) if self.member is None else ()
        return tuple(f"{self.name}-member{number}" for number in members)

    def command(self) -> tuple[str, ...]:
        """What to give to `density-softmax`."""
        run = self.run
        words = ["train", run.recipe.name, "--method", run.kind, "--seed", str(run.seed)]
        words += ["--out", str(run.path), "--root", str(run.root), "--resume"]
        for change in self.changes.items():
            words += ["--set", assignment(*change)]
        if self.member is not None:
            words += ["--member", str(self.member), "--no-evaluate"]
        return tuple(words)

    def is_finished(self) -> bool:
        """Whether its run is on disk, complete; of a finished ensemble all members are."""
        finished = self.run.is_finished()
        return finished or (self.member is not None and self.run.members[self.member].is_trained())


def plan(
    recipe: str,
    methods: Sequence[str],
    num_seeds: int,
    out: Path,
    *,
    changes: Sequence[str] = (),
    ablation: str | None = None,
) -> list[Cell]:
    """The cells of a grid, all methods of one seed after another; members before their ensemble.

    Args:
        recipe: its name.
        methods: the registry keys of the methods.
        num_seeds: seeds 0, 1, ..., N − 1.
        out: the folder of the grid. Its runs share finished stages.
        changes: `path=value` texts: `METHOD.path=value` is for that method alone, any other, such
            as `data.root=DIR`, for every cell.
        ablation: adds variants of Density-Softmax.
    """
    wanted = dict(map(parse_assignment, changes))
    _check_owners(wanted, methods)
    cells: dict[str, Cell] = {}
    for seed in range(num_seeds):
        for method in methods:
            common = _changes_of(method, wanted)
            for variant in _variants(recipe, method, common, ablation):
                made = _joined(common, variant)
                for cell in _run_and_members(_prepare(recipe, method, made), made, seed, out):
                    cells.setdefault(cell.name, cell)  # a variant may be the recipe itself
    return list(cells.values())


def choose_methods(recipe: str, names: str) -> list[str]:
    """The methods that a recipe has settings for.

    Args:
        recipe: its name.
        names: registry keys with commas between; `all` stands for the methods and controls of the
            paper's tables, `posthoc` for their rivals on a network that ERM has trained.
    """
    get_recipe(recipe)
    words = [name.strip() for name in names.split(",") if name.strip()]
    if not words:
        raise UserError(f"--methods '{names}' names none: write all, or names with commas between")
    chosen: dict[str, None] = {}
    for word in words:
        if word in GROUPS:
            chosen |= {kind: None for kind in kinds_of(GROUPS[word]) if _has(recipe, kind)}
        else:
            get_recipe(recipe, word)
            chosen[word] = None
    return list(chosen)


def _has(recipe: str, method: str) -> bool:
    try:
        get_recipe(recipe, method)
    except ConfigError:
        return False
    return True


def _run_and_members(recipe: Recipe, changes: Changes, seed: int, out: Path) -> list[Cell]:
    named = Run(recipe, seed)
    path, root = out / named.line / f"seed{seed}", shared_root(out)
    run = Run(recipe, seed, path, root=root, variant=named.variant)
    return [Cell(run, changes, number) for number in (*range(len(run.members)), None)]


def _variants(recipe: str, method: str, changes: Changes, ablation: str | None) -> list[Changes]:
    """Of the method that is ablated its variants; of any other, which it is compared to, none."""
    if ablation is None or method != ABLATED:
        return [{}]
    return list(find_variants(ablation, _prepare(recipe, method, changes)))


def _changes_of(method: str, changes: Changes) -> dict[str, Any]:
    """The changes that concern a method, as they are written for a single run."""
    found = {}
    for path, value in changes.items():
        owner, _, rest = path.partition(".")
        if owner not in MethodConfig.members:
            found[path] = value
        elif owner == method:
            found[f"method.{rest}"] = value
    return found


def _joined(common: Changes, variant: Changes) -> dict[str, Any]:
    """The changes common to all cells and those of a variant.

    An entry of what the variant sets whole is dropped: another kind may not have it.
    """
    whole = tuple(f"{path}." for path in variant)
    return {p: v for p, v in common.items() if not f"{p}.".startswith(whole)} | dict(variant)


def _check_owners(changes: Changes, methods: Sequence[str]) -> None:
    for path, value in changes.items():
        owner = path.partition(".")[0]
        if owner in MethodConfig.members and owner not in methods:
            raise UserError(
                f"--set {assignment(path, value)}: '{owner}' is not in the grid; "
                "add it to --methods"
            )


def _prepare(recipe: str, method: str, changes: Changes) -> Recipe:
    chosen = get_recipe(recipe, method)
    try:
        return override(chosen, changes)
    except ConfigError as error:
        if not str(error).startswith("method."):
            raise
        raise ConfigError(
            f"{method}: {error} (a change to the settings of one method is written with its "
            f"name: --set {method}.NAME=value)"
        ) from None
