"""A page for every method: its docstring, its stages as they are, its settings in every recipe."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from density_softmax.config import to_dict
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.methods.posthoc import FeatureMethod
from density_softmax.recipes import RECIPES, get_recipe
from density_softmax.report.paper import paper_value
from density_softmax.training import Stage, Train

# In the order of tables.
METHODS = dict(sorted(MethodConfig.members.items(), key=lambda entry: entry[1].rank))

# What the paper reports: heads, splits (* is the recipe), metrics, and how they are written.
PAPER = (
    ("NLL", "iid", "nll", ".3f"),
    ("accuracy", "iid", "accuracy", ".3f"),
    ("ECE", "iid", "ece", ".3f"),
    ("cNLL", "*-c", "cnll", ".2f"),
    ("cAcc", "*-c", "caccuracy", ".3f"),
    ("cECE", "*-c", "cece", ".3f"),
)

# What a method may define, in words.
DEFINES = {"probs": "probabilities", "score": "a score of what is unknown"}

# Tables whose first column are registry keys: there they become links to the cards.
WITH_LINKS = ("methods.md", "choosing.md")


def on_config(config: MkDocsConfig) -> None:
    """Put the cards into the navigation, behind the overview of the methods."""
    assert config.nav is not None
    entries = next(entry["Methods"] for entry in config.nav if "Methods" in entry)
    entries += [{each.title: f"methods/{key}.md"} for key, each in METHODS.items()]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add a page per method."""
    for key in METHODS:
        files.append(File.generated(config, f"methods/{key}.md", content=card(key)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link registry keys at the beginning of table rows to their cards."""
    if page.file.src_uri not in WITH_LINKS:
        return markdown
    keys = "|".join(METHODS)
    return re.sub(rf"^\| `({keys})` \|", r"| [`\1`](methods/\1.md) |", markdown, flags=re.M)


def card(key: str) -> str:
    """The page of a method."""
    method = untrained(key)
    kind = type(method)
    path = f"{kind.__module__}.{kind.__qualname__}"
    prediction = kind.predict_features if issubclass(kind, FeatureMethod) else kind.forward
    exports = "no: it draws random numbers" if method.draws_samples else "yes"
    facts = [
        ("registry key", f"`{key}`"),
        ("class", f"`density_softmax.{kind.__name__}`"),
        ("file", f"`src/{kind.__module__.replace('.', '/')}.py`"),
        ("exports to ONNX", exports),
        ("defines of its own", " and ".join(DEFINES[name] for name in METHODS[key].defines)),
        ("keeps training data", "yes" if METHODS[key].stores_data else "no"),
    ]
    return "\n\n".join(
        [
            f"# {METHODS[key].title}",
            "\n".join(f"- {name}: {value}" for name, value in facts),
            docstring(path),
            "## Settings",
            docstring(f"{path}.Config"),
            "## Stages",
            summary(kind.stages),
            table(
                ("stage", "what it does", "reads", "of the split"), map(stage_row, named(method))
            ),
            f"Prediction: {summary(prediction)}",
            "## In the recipes",
            "A name is an entry of `method` in a recipe; `–` where there is no such entry. What is "
            "the same everywhere inside a part, such as an optimizer, is left out.",
            table(("name", "default", *RECIPES), recipe_rows(key)),
            *paper_section(key),
        ]
    )


def untrained(key: str) -> Method:
    """The method with its default settings on the toy network."""
    encoder = get_recipe("toy", key).encoder.build((2,))
    return METHODS[key]().build(encoder, 2, torch.zeros(4, 2))


def docstring(path: str) -> str:
    """What mkdocstrings replaces by the docstring of `path`, and nothing else."""
    options = ("show_root_heading: false", "show_root_toc_entry: false", "show_signature: false")
    return "\n".join([f"::: {path}", "    options:", *(f"      {option}" for option in options)])


def summary(function: Any) -> str:
    """The first paragraph of a docstring."""
    return (inspect.getdoc(function) or "").partition("\n\n")[0]


def named(method: Method) -> Iterator[tuple[str, Stage]]:
    """The stages of a method; those of members that are alike once."""
    if method.ensemble():
        first = method.ensemble()[0].stages()
        yield from ((f"{stage.name}, of every member", stage) for stage in first)
    else:
        yield from ((stage.name, stage) for stage in method.stages())


def stage_row(entry: tuple[str, Stage]) -> tuple[str, ...]:
    """A line of the table of stages."""
    name, stage = entry
    what = "gradient descent" if isinstance(stage, Train) else "one pass without gradients"
    return name, what, stage.on, {"train": "train", "heldout": "held out"}[stage.split]


def recipe_rows(key: str) -> Iterator[tuple[str, ...]]:
    """A line per entry, with its default and its value in every recipe."""
    default = dict(leaves(to_dict(METHODS[key]())))
    found = [dict(leaves(to_dict(get_recipe(recipe, key).method))) for recipe in RECIPES]
    paths = {path: None for settings in (default, *found) for path in settings}
    parts = list(dict.fromkeys(path.partition(".")[0] for path in paths))
    for path in sorted(paths, key=lambda path: (parts.index(path.partition(".")[0]), path)):
        values = [settings.get(path, "–") for settings in (default, *found)]
        if "." not in path or len({*values} - {"–"}) > 1:
            yield f"`{path}`", *values


def paper_section(key: str) -> tuple[str, ...]:
    """What the paper reports of the method, if it does."""
    rows = [(f"`{recipe}`", *paper_cells(recipe, key)) for recipe in RECIPES]
    rows = [cells for cells in rows if set(cells[1:]) != {"–"}]
    if not rows:
        return ()
    heads = ("recipe", *(head for head, *_ in PAPER))
    return "## What the paper reports", "Bui & Liu's figures, not ours.", table(heads, rows)


def paper_cells(recipe: str, key: str) -> Iterator[str]:
    """The paper's figures for a recipe."""
    for _, split, metric, form in PAPER:
        value = paper_value(recipe, key, metric, split.replace("*", recipe))
        yield "–" if value is None else format(value, form)


def leaves(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """The entries of nested dictionaries; a `kind` stands at the path of its owner."""
    for name, value in values.items():
        here = path if name == "kind" else f"{path}.{name}".lstrip(".")
        if isinstance(value, dict):
            yield from leaves(value, here)
        elif here:
            yield here, written(value)


def written(value: Any) -> str:
    """A value as one would write it on the command line."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = tuple(head)
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
