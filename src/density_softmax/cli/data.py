"""`density-softmax data`: what sets there are, fetching them, and making corrupted ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from density_softmax.cli.terminal import Terminal

app = typer.Typer(
    help="List, download and corrupt data sets.", no_args_is_help=True, rich_markup_mode="markdown"
)
console = Terminal()

Root = Annotated[
    Path | None,
    typer.Option(help="Folder of the sets; else $DENSITY_SOFTMAX_DATA or ~/.cache/density-softmax"),
]


@app.command("list")
def list_(root: Root = None) -> None:
    """List the known sets: source, size, terms, and whether they are here.

    Wherever a set is named, the path of an .npz file or of an image folder works as well.
    """
    from density_softmax.data.catalog import CATALOG
    from density_softmax.data.readers import data_root

    place = data_root(root)
    table = Table(title=f"sets in {place}", box=box.SIMPLE)
    for column in ("name", "here", "download"):
        table.add_column(column, no_wrap=True)
    for column in ("images", "terms", "from"):
        table.add_column(column, overflow="fold")
    for name, known in CATALOG.items():
        size = decimal(known.size) if known.size else "–"
        here = known.presence(place)
        table.add_row(name, here, size, known.images, known.licence, known.home)
    console.print(table)


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="Names from `density-softmax data list`.")],
    root: Root = None,
) -> None:
    """Download data sets from their official homes, check and unpack them.

    Interrupted downloads continue. Without a network, put the file that the error
    message names where it says, and run the command again.
    """
    from density_softmax.data.catalog import entry
    from density_softmax.data.download import fetch as fetch_file
    from density_softmax.data.readers import data_root
    from density_softmax.errors import DataError

    place = data_root(root)
    for name in names:
        known = entry(name)
        if known.by_hand and known.presence(place) != "yes":
            raise DataError(f"{name} cannot be fetched: {known.by_hand} ({place})")
        with _progress(DownloadColumn(), TransferSpeedColumn()) as report:
            for item in known.downloads:
                fetch_file(item, place, report)
        console.print(f"{name}: ready", soft_wrap=True)


@app.command()
def corrupt(
    name: Annotated[str, typer.Argument(help="A known set, or the path of your own images.")],
    out: Annotated[Path, typer.Option(help="Folder for the corrupted set.")],
    kinds: Annotated[
        list[str] | None, typer.Option("--type", help="A type; repeatable. Default: the main 15.")
    ] = None,
    severities: Annotated[
        list[int] | None, typer.Option("--severity", help="1 to 5; repeatable. Default: all.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    image_size: Annotated[
        int, typer.Option(min=8, help="Size to which image files are cropped.")
    ] = 224,
    root: Root = None,
) -> None:
    """Write a corrupted copy of a test set, in the layout of CIFAR-10-C or of ImageNet-C.

    Types that are finished are not made again: a run that was stopped is continued by the same
    command. For example `density-softmax data corrupt cifar10 --out DATA/CIFAR-10-C`.
    """
    from density_softmax.data.catalog import find_images
    from density_softmax.data.corrupted import Corruption, write_corrupted
    from density_softmax.data.corruptions import CORRUPTIONS, SEVERITIES
    from density_softmax.data.readers import data_root

    wanted = Corruption(
        kinds=tuple(kinds or CORRUPTIONS),
        severities=tuple(sorted(set(severities or SEVERITIES))),
        seed=seed,
        image_size=image_size,
    )
    with _progress(MofNCompleteColumn()) as report:
        images = find_images(name, data_root(root)).read_one("corrupt")
        write_corrupted(images, name, out, wanted, report)
    console.print(f"{name}: corrupted set in {out}", soft_wrap=True)


@contextmanager
def _progress(*columns: ProgressColumn) -> Iterator[Callable[[str, int, int], None]]:
    """Bars that appear with the first report about their work."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *columns,
        TimeRemainingColumn(),
        console=console,
    )
    with bar:
        tasks = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        yield report
