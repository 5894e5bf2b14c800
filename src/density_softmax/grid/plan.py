"""The cells of a grid: which runs there are to be, where they go, and which are finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from density_softmax.benchmark import choose_member, identify, prepare, run_name
from density_softmax.config import ConfigError
from density_softmax.errors import UserError
from density_softmax.handover import first_stage_difference, record_of
from density_softmax.methods.base import MethodConfig
from density_softmax.recipes import Recipe, get_recipe
from density_softmax.recipes.ablations import Variant, find_variants
from density_softmax.runs.run import RunDirectory

__all__ = ["Cell", "choose_methods", "find_donors", "plan"]

# What ablations are of.
ABLATED = "density_softmax"


@dataclass(frozen=True)
class Cell:
    """One run of a grid.

    Attributes:
        recipe: everything but the seed.
        changes: the `path=value` changes that made it of the recipe of its name.
        seed: decides data, weights and batches.
        path: the directory of the run.
        member: of an ensemble, the member to be trained; None is the run that assembles them.
    """

    recipe: Recipe
    changes: tuple[str, ...]
    seed: int
    path: Path
    member: int | None = None

    @property
    def line(self) -> str:
        """Its method and variant, as its directory is called."""
        return self.path.parent.name

    @property
    def name(self) -> str:
        """What it is called among the cells of its grid."""
        part = "" if self.member is None else f"-member{self.member}"
        return f"{self.line}-seed{self.seed}{part}"

    def command(self) -> tuple[str, ...]:
        """What to give to `density-softmax`."""
        words = ["train", self.recipe.name, "--method", self.recipe.method.kind]
        words += ["--seed", str(self.seed), "--out", str(self.path), "--resume"]
        for change in self.changes:
            words += ["--set", change]
        if self.member is not None:
            words += ["--member", str(self.member), "--no-evaluate"]
        return tuple(words)

    def is_finished(self) -> bool:
        """Whether its directory holds this run, complete: what is written last is there.

        Of a finished ensemble all members are finished.
        """
        complete = _is_complete(self.path, self.recipe, self.seed, "rows.csv")
        if self.member is None or complete:
            return complete
        recipe, seed, path = choose_member(self.recipe, self.seed, self.path, self.member)
        return _is_complete(path, recipe, seed, "epochs.csv")

    def settle(self) -> None:
        """Let its finished run look for the data where this grid has them; they may have moved."""
        RunDirectory(self.path).claim(identify(self.recipe, self.seed), resume=True)

    def has_first_stage(self) -> bool:
        """Whether its directory holds this run, and the first stage of it for others."""
        directory = RunDirectory(self.path)
        try:
            return (
                self.path.is_dir()  # spares the rest where nothing has begun: it is asked often
                and directory.holds(identify(self.recipe, self.seed))
                and record_of(directory).has_first_stage()
            )
        except UserError:  # of which the cell itself will tell
            return False

    def shares_first_stage(self, other: Cell) -> bool:
        """Whether its first stage is that of the other."""
        difference = first_stage_difference(self.recipe, self.seed, other.recipe, other.seed)
        return difference is None


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

    A change `METHOD.path=value` is made to the settings of that method alone; any other, such as
    `data.root=DIR`, to every cell. An ablation adds variants of Density-Softmax.
    """
    _check_owners(changes, methods)
    cells: dict[str, Cell] = {}
    for seed in range(num_seeds):
        for method in methods:
            common = _changes_of(method, changes)
            for variant in _variants(recipe, method, common, ablation):
                made = _joined(common, variant)
                for cell in _run_and_members(_prepare(recipe, method, made), made, seed, out):
                    cells.setdefault(cell.name, cell)  # a variant may be the recipe itself
    return list(cells.values())


def find_donors(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """By the name of each cell, those that it can take its first stage over from.

    Of cells that share it, these are the ones that have it already, and those before itself.
    """
    sharing = [cell for cell in cells if cell.recipe.method.first_stage() is not None]
    possible = [cell for cell in sharing if cell.has_first_stage()]
    found: dict[str, list[Cell]] = {cell.name: [] for cell in cells}
    for cell in sharing:
        if cell not in possible:
            found[cell.name] = [other for other in possible if cell.shares_first_stage(other)]
            possible.append(cell)
    return found


def choose_methods(recipe: str, names: str) -> list[str]:
    """The methods that a recipe has settings for: `all`, or those with the given names."""
    get_recipe(recipe)
    if names == "all":
        return [method for method in MethodConfig.members if _has(recipe, method)]
    chosen = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if not chosen:
        raise UserError(f"--methods '{names}' names none: write all, or names with commas between")
    for method in chosen:
        get_recipe(recipe, method)
    return chosen


def _has(recipe: str, method: str) -> bool:
    try:
        get_recipe(recipe, method)
    except ConfigError:
        return False
    return True


def _run_and_members(recipe: Recipe, changes: tuple[str, ...], seed: int, out: Path) -> list[Cell]:
    path = out / run_name(recipe, seed)
    members = range(len(recipe.method.parts()))
    return [Cell(recipe, changes, seed, path, number) for number in (*members, None)]


def _is_complete(path: Path, recipe: Recipe, seed: int, last: str) -> bool:
    return (path / last).is_file() and RunDirectory(path).holds(identify(recipe, seed))


def _variants(
    recipe: str, method: str, changes: tuple[str, ...], ablation: str | None
) -> tuple[Variant, ...]:
    """Of the method that is ablated its variants; of any other, which it is compared to, none."""
    if ablation is None or method != ABLATED:
        return ((),)
    return find_variants(ablation, _prepare(recipe, method, changes))


def _changes_of(method: str, changes: Sequence[str]) -> tuple[str, ...]:
    """The changes that concern a method, as they are written for a single run."""
    found = []
    for change in changes:
        owner, _, rest = change.partition(".")
        if owner not in MethodConfig.members:
            found.append(change)
        elif owner == method:
            found.append(f"method.{rest}")
    return tuple(found)


def _joined(common: Sequence[str], variant: Variant) -> tuple[str, ...]:
    """The changes common to all cells, but for entries of what the variant sets whole, and its own.

    An entry may be one that another kind does not have.
    """
    whole = tuple(f"{change.partition('=')[0]}." for change in variant)
    kept = (each for each in common if not f"{each.partition('=')[0]}.".startswith(whole))
    return (*kept, *variant)


def _check_owners(changes: Sequence[str], methods: Sequence[str]) -> None:
    for change in changes:
        owner = change.partition(".")[0]
        if owner in MethodConfig.members and owner not in methods:
            raise UserError(f"--set {change}: '{owner}' is not in the grid; add it to --methods")


def _prepare(recipe: str, method: str, changes: tuple[str, ...]) -> Recipe:
    try:
        return prepare(recipe, method, changes)
    except ConfigError as error:
        if not str(error).startswith("method."):
            raise
        raise ConfigError(
            f"{method}: {error} (a change to the settings of one method is written with its "
            f"name: --set {method}.NAME=value)"
        ) from None
