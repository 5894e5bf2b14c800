"""The page: tables, figures and how to repeat the runs, in one file that needs no other."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

from density_softmax.report.names import method_name, setting_name, variant_of_data
from density_softmax.report.rendering import as_html
from density_softmax.report.runs import LeftOut, Run, Runs
from density_softmax.report.style import Picture
from density_softmax.report.tables import HOW_TO_READ, Table

__all__ = ["render_page"]

TITLE = "Density-Softmax report"
# Figures are shown larger than printed, in CSS pixels per inch.
PIXELS_PER_INCH = 165


def render_page(
    runs: Runs, tables: Sequence[Table], figures: Mapping[str, Sequence[Picture]]
) -> str:
    """The whole page as HTML: the tables, a section for each kind of figure, and how it was run."""
    sections = {
        "Results": _tables(tables),
        **{title: _gallery(pictures) for title, pictures in figures.items()},
        "How it was run": _provenance(runs.finished),
    }
    sections = {title: content for title, content in sections.items() if content}
    return Template(_asset("page.html")).substitute(
        title=TITLE,
        style=_asset("page.css"),
        script=_asset("page.js"),
        lead=_lead(runs) + _navigation(sections) + _left_out(runs.left_out),
        body="\n".join(_section(title, content) for title, content in sections.items()),
    )


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _lead(runs: Runs) -> str:
    methods = list(dict.fromkeys(method_name(run.method) for run in runs.finished))
    seeds = {run.seed for run in runs.finished}
    recipes = list(dict.fromkeys(run.key[0] for run in runs.finished))
    if not methods:
        return "<p>No finished run.</p>"
    return (
        f"<p>{_count(len(runs.finished), 'run')} of {html.escape(', '.join(methods))} "
        f"with {_count(len(seeds), 'seed')}, recipe {html.escape(', '.join(recipes))}. "
        "Every figure is a row of rows.csv or follows from the predictions of a run. Beside this "
        "page lie tables/ (CSV, LaTeX, text) and figures/ (SVG, PDF, PNG).</p>"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _navigation(titles: Iterable[str]) -> str:
    links = (f'<a href="#{_anchor(title)}">{title}</a>' for title in titles)
    return f"\n<nav>{''.join(links)}</nav>"


def _left_out(left_out: Sequence[LeftOut]) -> str:
    """The runs that are not in the tables, said before the tables."""
    if not left_out:
        return ""
    lines = "\n".join(
        f"<li>{html.escape(f'{each.run.path} ({each.run.label}, seed {each.run.seed})')}: "
        f"{html.escape(each.reason)}</li>"
        for each in left_out
    )
    return f'\n<div class="note"><b>Not shown:</b>\n<ul>\n{lines}\n</ul></div>'


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _section(title: str, content: str) -> str:
    return f'<section id="{_anchor(title)}">\n<h2>{title}</h2>\n{content}\n</section>'


def _tables(tables: Sequence[Table]) -> str:
    """All tables; those with a column for each shift are wide and stay closed."""
    shown = [as_html(table) for table in tables if table.role != "each shift"]
    wide = [table for table in tables if table.role == "each shift"]
    closed = [_details(table.title, as_html(table)) for table in wide]
    reading = f"<p>{html.escape(HOW_TO_READ)} ↑ higher is better, ↓ lower is better.</p>"
    return "\n".join([reading, *shown, *closed]) if tables else ""


def _details(summary: str, content: str) -> str:
    return f"<details><summary>{html.escape(summary)}</summary>\n{content}\n</details>"


def _gallery(pictures: Sequence[Picture]) -> str:
    figures = "\n".join(map(_figure, pictures))
    return f'<div class="gallery">\n{figures}\n</div>' if pictures else ""


def _figure(picture: Picture) -> str:
    source = f"data:image/webp;base64,{base64.b64encode(picture.preview).decode('ascii')}"
    width, title = round(picture.width * PIXELS_PER_INCH), html.escape(picture.title)
    return (
        f'<figure style="width: {width}px">\n<img alt="{title}" src="{source}">\n'
        f"<figcaption><b>{title}.</b> {html.escape(picture.caption)}</figcaption>\n</figure>"
    )


def _provenance(runs: Sequence[Run]) -> str:
    """Commands, machines and complete recipes."""
    if not runs:
        return ""
    commands = html.escape("\n".join(run.command for run in runs))
    return "\n".join(
        [
            f"<h3>Commands</h3>\n<pre>{commands}</pre>",
            "<h3>Environment and hardware</h3>",
            *(_environment(*each) for each in _same(runs, lambda run: run.directory.environment())),
            "<h3>Recipes</h3>",
            *(_recipe(*each) for each in _same(runs, lambda run: dict(run.recipe))),
        ]
    )


def _same(
    runs: Sequence[Run], get: Callable[[Run], dict[str, Any]]
) -> list[tuple[dict[str, Any], list[Run]]]:
    """What the runs have, each value once, with the runs that have it."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(get(run)), []).append(run)
    return [(json.loads(value), members) for value, members in groups.items()]


def _environment(environment: Mapping[str, Any], runs: Sequence[Run]) -> str:
    lines = [("runs", str(len(runs))), *_flat(environment)]
    cells = "\n".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(value)}</td></tr>'
        for name, value in lines
    )
    return f'<div class="scroll"><table class="plain"><tbody>\n{cells}\n</tbody></table></div>'


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        elif isinstance(value, list):
            yield name, ", ".join(map(str, value)) or "none"
        else:
            yield name, str(value)


def _recipe(recipe: Mapping[str, Any], runs: Sequence[Run]) -> str:
    setting = setting_name(runs[0].key[0], variant_of_data(runs[0].variant))
    seeds = ", ".join(str(run.seed) for run in runs)
    content = f"<pre>{html.escape(json.dumps(recipe, indent=2))}</pre>"
    return _details(f"{setting}: {runs[0].label}; seeds {seeds}", content)
