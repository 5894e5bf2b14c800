"""Which tables of results the pages have: their rows, lines and columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import NamedTuple

from density_softmax.methods import MethodConfig, kinds_of
from density_softmax.types import Row

Format = Callable[[float], str]


class Line(NamedTuple):
    """A line of a table: the rows of a method and a variant.

    Attributes:
        label: what the page calls it.
        method: the registry key.
        variant: as in rows; with a star at its end, how the variant begins.
        detects: whether it has a score of its own; another's is not shown twice.
        split: where a column names none.
    """

    label: str
    method: str
    variant: str = "default"
    detects: bool = True
    split: str = ""


class Column(NamedTuple):
    """A column of a table: a metric on a split, and how its numbers are printed.

    Attributes:
        title: what the page calls it.
        split: of its rows; with a star, all splits of this pattern; empty if the line names it.
        metric: of its rows; that of a `difference:` is printed with its interval.
        form: how a number is printed.
        quoted: the recipe of the paper whose published numbers these are, if they are none of ours.
        over: what several splits become, a mean or a median.
    """

    title: str
    split: str
    metric: str
    form: Format
    quoted: str = ""
    over: Callable[[Sequence[float]], float] = fmean


class Table(NamedTuple):
    """A table of a page.

    Attributes:
        rows: the name of a file under docs/results, without ending.
        recipe: of its rows.
        lines: in their order; those without rows are left out, and said to be missing.
        columns: in their order.
        command: makes the rows.
        setting: what was set in all of these runs, `path=value`, and ends their variants.
        seed: the only one that is shown; None shows all. An ablation compares one network.
    """

    rows: str
    recipe: str
    lines: Sequence[Line]
    columns: Sequence[Column]
    command: str
    setting: str = ""
    seed: int | None = None

    def variant_of(self, row: Row) -> str | None:
        """The variant of a row but for the setting; None if it was made in another one."""
        if not self.setting:
            return row.variant
        if not row.variant.endswith(self.setting):
            return None
        return row.variant.removesuffix(self.setting).removesuffix(", ") or "default"


def three(value: float) -> str:
    """Three decimals."""
    return f"{value:.3f}"


def two(value: float) -> str:
    """Two decimals."""
    return f"{value:.2f}"


def whole(value: float) -> str:
    """No decimals."""
    return f"{value:.0f}"


def signed(value: float) -> str:
    """Three decimals with a typographic sign."""
    return f"{value:+.3f}".replace("-", "−")


def share(value: float) -> str:
    """Per cent, with a typographic minus."""
    return f"{round(100 * value):d} %".replace("-", "−")


def kilobytes(value: float) -> str:
    """Thousands of bytes."""
    return "<1" if value < 1000 else f"{value / 1000:,.0f}"


def title(kind: str) -> str:
    """What tables call a method; § marks one that keeps training data."""
    config = MethodConfig.members[kind]
    return f"{config.title} §" if config.stores_data else config.title


CALIBRATION = (
    Column("NLL ↓", "iid", "nll", three),
    Column("ECE ↓", "iid", "ece", three),
    Column("cNLL ↓", "cifar10-c", "cnll", three),
    Column("cECE ↓", "cifar10-c", "cece", three),
)
DETECTION = (
    Column("AUROC CIFAR-100 ↑", "cifar100", "auroc:epistemic", three),
    Column("AUROC SVHN ↑", "svhn", "auroc:epistemic", three),
)
SCOPE = "out of scope"
QUERIES = (
    CALIBRATION[0],
    CALIBRATION[1],
    Column("AUROC ↑", SCOPE, "auroc:epistemic", three),
    Column("AUPR ↑", SCOPE, "aupr:epistemic", three),
    Column("FPR95 ↓", SCOPE, "fpr95:epistemic", three),
)
SHARE = Column("share", "cifar10-c", "oracle_share", share)
STORED = Column("stored, kB", "cost", "stored_bytes", kilobytes)

NETWORK = Line("network as trained", "deterministic")
TEMPERATURE = Line("temperature scaling", "temperature_scaling")
HIGHER = Line(
    "a higher temperature, same budget", "density_softmax", "layers=[], scale=temperature*", False
)
# What a density is replaced by, to see what it does.
BLIND = "scale=temperature*"
PAPER = Line("Density-Softmax, the paper's code", "density_softmax", "density=realnvp*")
OURS = Line("**Density-Softmax, `ds.attach`**", "density_softmax")
FORMS = (
    OURS,
    Line("Density-Softmax, no layers", "density_softmax", "layers=[]"),
    Line("Density-Softmax without class-aware experts", "density_softmax", "classes=false*"),
    HIGHER,
    PAPER,
)
RIVALS = tuple(
    Line(title(kind), kind)
    for kind in kinds_of("posthoc")
    if kind not in ("deterministic", "temperature_scaling")
)
ORACLE = Line("the best temperature of each shifted set", "temperature_scaling", "oracle*")
ALL = (NETWORK, TEMPERATURE, ORACLE, *RIVALS, *FORMS)
SHORT = (NETWORK, TEMPERATURE, Line("Mahalanobis++", "mahalanobis_plus_plus"), OURS)
CALIBRATED = (
    NETWORK,
    TEMPERATURE,
    HIGHER,
    Line(title("laplace"), "laplace"),
    Line(title("density_aware_calibration"), "density_aware_calibration"),
)
ON_QUERIES = ("gen", "knn", "vim", "fdbd", "mahalanobis_plus_plus", "relative_mahalanobis")
DETECTORS = ("max_softmax", "energy", "gen", "vim", "knn", "fdbd", "mahalanobis_plus_plus")

METHODS = tuple(
    Line("**Density-Softmax**" if kind == "density_softmax" else title(kind), kind)
    for kind in kinds_of("paper")
)
TOY = (
    Column("NLL ↓", "iid", "nll", three),
    Column("accuracy ↑", "iid", "accuracy", three),
    Column("ECE ↓", "iid", "ece", three),
    Column("confidence on the cluster ↓", "cluster", "confidence", three),
    Column("AUROC by entropy ↑", "cluster", "auroc:entropy", three),
    Column("by epistemic ↑", "cluster", "auroc:epistemic", three),
)


def labelled(shift: str) -> tuple[Column, ...]:
    """The columns of a test set and of the means over its corruptions."""
    names = {"nll": "NLL ↓", "accuracy": "accuracy ↑", "ece": "ECE ↓"}
    inside = [Column(head, "iid", metric, three) for metric, head in names.items()]
    means = [
        Column(f"c{head[0].upper()}{head[1:]}", shift, f"c{metric}", three)
        for metric, head in names.items()
    ]
    return (*inside, *means)


def detected(*sets: tuple[str, str]) -> tuple[Column, ...]:
    """The columns of OOD sets, given as pairs of title and name."""
    return tuple(
        Column(f"AUROC {head}, {words} ↑", name, f"auroc:{score}", three)
        for head, name in sets
        for score, words in (("entropy", "entropy"), ("epistemic", "own score"))
    )


def shift_of(recipe: str) -> str:
    """The corruptions that a recipe evaluates."""
    return f"{recipe.removesuffix('_small')}-c"


def without_accuracy(recipe: str, ood: Sequence[Column] = ()) -> tuple[Column, ...]:
    """The columns of a recipe but for accuracies."""
    columns = (*labelled(shift_of(recipe)), *ood)
    return tuple(column for column in columns if "accuracy" not in column.metric)


def by_own_score(ood: Sequence[Column]) -> tuple[Column, ...]:
    """Those columns of OOD sets that are by the method's own score, with shorter titles."""
    own = [column for column in ood if column.metric == "auroc:epistemic"]
    return tuple(c._replace(title=c.title.replace(", own score", "")) for c in own)


def differences(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The differences from Density-Softmax in some columns."""
    return tuple(c._replace(metric=f"difference:{c.metric}", form=signed) for c in columns)


def undone(shift: str) -> tuple[Column, ...]:
    """The columns that tell calibration from the network's own errors."""
    names = {"cnll": "cNLL ↓", "ccalibrated_nll": "with the best temperature of each set ↓"}
    names |= {"cundone_nll": "left undone ↓"}
    return tuple(Column(head, shift, metric, three) for metric, head in names.items())


def is_itself(table: Table, line: Line) -> bool:
    """Whether a table has differences from this very line."""
    compared = any(column.metric.startswith("difference:") for column in table.columns)
    return compared and (line.method, line.variant) == ("density_softmax", "default")


def beside_paper(recipe: str) -> tuple[Column, ...]:
    """Ours and the paper's numbers in turn."""
    quoted = recipe.removesuffix("_small")
    return tuple(
        each
        for column in labelled(shift_of(recipe))
        for each in (column, column._replace(title="paper", quoted=quoted))
    )


PENALTIES = (
    Line("none", "density_softmax", "penalty=none"),
    Line("1e-4, the recipe", "density_softmax"),
    *(
        Line(f"{weight:g}", "density_softmax", f"penalty.weight={weight}")
        for weight in (0.001, 0.01, 0.1, 1.0)
    ),
)
PARTS = (
    Line("all: penalty and density, no head stage (the recipe)", "density_softmax"),
    Line("without the penalty", "density_softmax", "penalty=none"),
    Line("without the density: a temperature with the same budget", "density_softmax", BLIND),
    Line("without either", "density_softmax", f"penalty=none, {BLIND}"),
    Line("with the head stage", "density_softmax", "head=*"),
)
FLOW = (
    "density=realnvp, density.standardize=false, layers=[], classes=false, energy=false, scale={}*"
)
FORM = (
    Line("ours: `quantile`, layers, last features, classes and energy", "density_softmax"),
    Line("one temperature, as high as the same budget allows", "density_softmax", BLIND),
    Line("one temperature, the best", "constant_temperature"),
    Line(
        "the paper's code: `range`, RealNVP, head stage",
        "density_softmax",
        FLOW.format("range, head="),
    ),
    Line(
        "the same with its mean factor for all inputs",
        "density_softmax",
        FLOW.format("range, scale.averaged=true"),
    ),
    Line("the paper's text: `max`, RealNVP, head stage", "density_softmax", FLOW.format("max")),
)
# Those that the pages compare first; the others stand in the record.
FIRST = ("deterministic", "temperature_scaling", "sngp", "ddu", "deep_ensemble", "density_softmax")
SIX = tuple(line for line in METHODS if line.method in FIRST)
SEEDS = "density-softmax benchmark {} --methods all --seeds 3"
OVALS = "data.shape=two_ovals"
# In all runs of the small CIFAR recipes: half the time on a CPU that computes in bfloat16.
HALF = "engine.precision=bf16-mixed"
IN_HALF = f"{SEEDS} --set {HALF}"
# What has been run in float32 as well.
IN_FULL = {
    "cifar10_small": ("deterministic", "sngp", "ddu", "deep_ensemble", "density_softmax"),
    "cifar100_small": ("deterministic", "ddu", "density_softmax"),
}
SMALL = {
    "cifar10_small": detected(("SVHN", "svhn"), ("CIFAR-100", "cifar100")),
    "cifar100_small": detected(("SVHN", "svhn"), ("CIFAR-10", "cifar10")),
}
CHOSEN = {
    "one temperature, the best": "one temperature, 0.0",
    "one temperature, as high as 1.25 % of the NLL allow": "one temperature, 0.0125",
    "one temperature, as high as 3 % allow": "one temperature, 0.03",
    "quantile .1, budget 3 %, the default of `attach`": "stem + group1, 0.1, 0.03",
    "quantile .1, budget 1.25 %": "stem + group1, 0.1, 0.0125",
    "quantile .5, budget 3 %": "stem + group1, 0.5, 0.03",
    "quantile .5, budget 1.25 %": "stem + group1, 0.5, 0.0125",
    "quantile .9, budget 3 %": "stem + group1, 0.9, 0.03",
    "**quantile .9, budget 1.25 %**": "stem + group1, 0.9, 0.0125",
}
HELD_OUT = (
    Column("NLL ↓", "heldout", "nll", three),
    Column("ECE ↓", "heldout", "ece", three),
    Column("NLL, four corruptions ↓", "heldout", "cnll", three),
    Column("ECE, four corruptions ↓", "heldout", "cece", three),
)
HELD_OUT_SHIFTS = (
    "python benchmarks/held_out_shifts.py RUN --quantiles 0.1 0.5 0.9 --budgets 0.0125 0.03"
)
ABLATED = f"density-softmax benchmark cifar10_small --ablation {{}} --set {HALF}"
GRIDS = {
    **{
        f"{recipe}-chosen": Table(
            "held_out_shifts",
            recipe,
            tuple(Line(label, method, variant) for label, variant in CHOSEN.items()),
            HELD_OUT,
            HELD_OUT_SHIFTS,
        )
        for recipe, method in (
            ("cifar10_small", "density_softmax"),
            ("cifar100_small", "deterministic"),
        )
    },
    "toy": Table("toy", "toy", METHODS, TOY, SEEDS.format("toy")),
    "toy-ovals": Table(
        "toy_ovals",
        "toy",
        METHODS,
        TOY,
        f"density-softmax benchmark toy --methods all --set {OVALS}",
        OVALS,
    ),
    "digits": Table("digits", "digits", METHODS, labelled("digits-c"), SEEDS.format("digits")),
    "digits-differences": Table(
        "digits",
        "digits",
        METHODS,
        differences(without_accuracy("digits")),
        SEEDS.format("digits"),
    ),
    **{
        name: Table(
            name, name, METHODS, (*labelled(shift_of(name)), *ood), IN_HALF.format(name), HALF
        )
        for name, ood in SMALL.items()
    },
    **{
        f"{name}-differences": Table(
            name,
            name,
            METHODS,
            differences(without_accuracy(name, ood)),
            IN_HALF.format(name),
            HALF,
        )
        for name, ood in SMALL.items()
    },
    **{
        f"{name}-paper": Table(name, name, METHODS, beside_paper(name), IN_HALF.format(name), HALF)
        for name in SMALL
    },
    **{
        f"{name}-short": Table(
            name, name, SIX, without_accuracy(name, by_own_score(ood)), IN_HALF.format(name), HALF
        )
        for name, ood in SMALL.items()
    },
    **{
        f"{name}-calibrated": Table(
            f"{name}_calibrated",
            name,
            METHODS,
            undone(shift_of(name)),
            f"python benchmarks/calibrated_nll.py runs/{name}",
            HALF,
        )
        for name in SMALL
    },
    **{
        f"cifar10_small-{ablation}": Table(
            "cifar10_small",
            "cifar10_small",
            lines,
            (*labelled("cifar10-c"), *SMALL["cifar10_small"]),
            ABLATED.format(ablation),
            HALF,
            seed=0,
        )
        for ablation, lines in (("lambda", PENALTIES), ("components", PARTS), ("forms", FORM))
    },
    **{
        f"{name}-precision": Table(
            name,
            name,
            tuple(
                line._replace(label=f"{line.label}, {words}", variant=variant)
                for line in METHODS
                if line.method in IN_FULL[name]
                for words, variant in (("float32", "default"), ("bfloat16", HALF))
            ),
            without_accuracy(name, by_own_score(ood)),
            SEEDS.format(name).replace("3", f"1 [--set {HALF}]"),
            seed=0,
        )
        for name, ood in SMALL.items()
    },
}

# Of benchmarks/tables.py: what the page calls its models, by their titles there.
CLASSIFIERS = {
    "DensitySoftmaxClassifier": "**Density-Softmax**",
    "its network, temperature scaling": "its network alone",
    "its network, the best temperature of each test set": "its network, oracle temperature",
    "MLPClassifier": "MLP",
    "CalibratedClassifierCV": "MLP, calibrated",
}
BOOSTING = {
    "boosting, attached": "**one, attached**",
    "boosting, CalibratedClassifierCV on the same rows": "one, `CalibratedClassifierCV`",
    "boosting x 5, CalibratedClassifierCV": "five, `CalibratedClassifierCV`",
    "boosting": "as it is",
}
SKLEARN = "OMP_NUM_THREADS=1 python benchmarks/tables.py --seeds 1"
REAL = ("breast_cancer", "credit_data", "digits", "flchain", "iris", "OJ", "storms", "wine")
SECONDS = Column("CPU s of `fit`", "cost", "cpu_seconds", two)
ON_TABLES = (
    Column("NLL", "iid", "nll", three),
    Column("NLL, shift", "shift", "nll", three),
    Column("ECE, shift", "shift", "ece", three),
    Column("NLL, drift", "drift", "nll", three),
    Column("ECE, drift", "drift", "ece", three),
)


def on_tables(rows: str, models: dict[str, str], command: str) -> dict[str, Table]:
    """The tables of one comparison: every real table, and the medians of ratios."""
    recipe = rows.replace("_", "/")
    each = [
        Line(f"{name}: {label}", title, f"table={name}")
        for name in REAL
        for title, label in models.items()
    ]
    medians = [Line(label, title, "median ratio") for title, label in models.items()]
    ratios = [column._replace(form=two) for column in (SECONDS, *ON_TABLES)]
    return {
        rows: Table(rows, recipe, each, (SECONDS, *ON_TABLES), command),
        f"{rows}-medians": Table(rows, recipe, medians, ratios, command),
    }


BY_SEVERITY = tuple(
    Column(f"{name}, {words} ↓", split, metric, three)
    for metric, name in (("nll", "NLL"), ("ece", "ECE"))
    for words, split in ({"clean": "iid"} | {str(n): f"cifar10-c/*/{n}" for n in (1, 3, 5)}).items()
)
POSTHOC = "python benchmarks/posthoc_cifar10.py --data DIR --threads 1 --severities 1 3 5"

# Of benchmarks/decisions_data.py.
SETS = (
    Column("coverage", "", "coverage:lac", three),
    Column("labels ↓", "", "set_size:lac", two),
    Column("APS", "", "coverage:aps", three),
    Column("labels ↓", "", "set_size:aps", two),
    Column("`refit`", "", "coverage:refit", three),
    Column("labels ↓", "", "set_size:refit", two),
)
ACTIONS = (
    Column("errors ↓", "", "error", three),
    Column("answered ↑", "", "share:answer", two),
    Column("unknown", "", "share:unknown", two),
    Column("accuracy", "", "accuracy", three),
    Column("estimated", "", "estimated_accuracy", three),
    Column("alarm ↓", "", "inputs_to_alarm", whole, over=median),
    Column("windowed ↓", "", "inputs_to_alarm:ks", whole, over=median),
)
DECIDED = {
    "softmax": "deterministic",
    "temperature": "temperature_scaling",
    "**Density-Softmax**": "density_softmax",
}
SHIFTED = {"clean": "iid"} | {f"severity {n}": f"cifar10-c/*/{n}" for n in (1, 3, 5)}
DECISIONS = {
    name: Table(
        "decisions_cifar10",
        "decisions_cifar10/resnet20",
        tuple(
            Line(f"{words}: {label}", method, "", split=split)
            for words, split in splits.items()
            for label, method in DECIDED.items()
        ),
        columns,
        "python benchmarks/decisions_data.py cifar10 --data DIR "
        "--weights cifar10_resnet20.safetensors --repeats 5",
    )
    for name, splits, columns in (
        ("decisions-sets", SHIFTED, SETS),
        ("decisions-actions", SHIFTED | {"SVHN": "svhn"}, ACTIONS),
    )
}

TABLES = {
    **DECISIONS,
    **on_tables("tables", CLASSIFIERS, SKLEARN),
    **on_tables("tables_boosting", BOOSTING, f"{SKLEARN} --attach boosting"),
    "home": Table(
        "posthoc_cifar10",
        "posthoc_cifar10/resnet20",
        (NETWORK, TEMPERATURE, OURS),
        (CALIBRATION[0], CALIBRATION[3], *DETECTION),
        POSTHOC,
    ),
    "readme": Table(
        "posthoc_cifar10", "posthoc_cifar10/resnet20", SHORT, (*CALIBRATION, *DETECTION), POSTHOC
    ),
    **{
        f"calibration-{network}": Table(
            "posthoc_cifar10",
            f"posthoc_cifar10/{network}",
            (*CALIBRATED, PAPER, OURS, ORACLE),
            (*CALIBRATION, SHARE),
            POSTHOC,
        )
        for network in ("resnet20", "resnet32")
    },
    **{
        f"detection-{network}": Table(
            "posthoc_cifar10",
            f"posthoc_cifar10/{network}",
            (*(Line(title(kind), kind) for kind in DETECTORS), *FORMS[1:3], OURS),
            (*DETECTION, STORED),
            POSTHOC,
        )
        for network in ("resnet20", "resnet32")
    },
    **{
        f"posthoc-{network}": Table(
            "posthoc_cifar10",
            f"posthoc_cifar10/{network}",
            ALL,
            (*CALIBRATION, SHARE, *DETECTION, STORED),
            POSTHOC,
        )
        for network in ("resnet20", "resnet32")
    },
    **{
        f"severities-{network}": Table(
            "posthoc_cifar10",
            f"posthoc_cifar10/{network}",
            (NETWORK, TEMPERATURE, HIGHER, PAPER, OURS),
            BY_SEVERITY,
            POSTHOC,
        )
        for network in ("resnet20", "resnet32")
    },
    **{
        f"clinc-{head}": Table(
            "posthoc_clinc",
            f"posthoc_clinc/{head}",
            (TEMPERATURE, *(Line(title(kind), kind) for kind in ON_QUERIES), OURS),
            QUERIES,
            f"python benchmarks/posthoc_clinc.py --data clinc150.json{options}",
        )
        for head, options in (("linear", ""), ("hidden", " --hidden 512"))
    },
    **GRIDS,
}
