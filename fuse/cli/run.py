"""``fuse run``: run a model once and look at its answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from fuse.cli.ending import OK, about
from fuse.cli.files import checked_directory, checked_output, write_whole
from fuse.cli.options import (
    data_dir_option,
    dim_option,
    example,
    model_argument,
    seed_option,
    threads_option,
    with_screen,
)
from fuse.cli.screen import Screen
from fuse.errors import InputError


@click.command(
    "run",
    epilog=example(
        "fuse run resnet18",
        "fuse run model.onnx --dim batch=2 --seed 1",
        "fuse run model.onnx --input x=x.npy -o answers.npz",
    ),
)
@model_argument
@click.option(
    "--input", "files", multiple=True, metavar="NAME=FILE", help="An input's array, an .npy file.  [repeatable]"
)
@click.option("--inputs", "archive", metavar="FILE", help="The inputs' arrays by name, an .npz file.")
@dim_option
@seed_option
@click.option("-o", "--output", metavar="OUT", help="Write the answers to OUT, an .npz file.")
@click.option("--output-dir", metavar="DIR", help="Write them to DIR as output_0.npy, output_1.npy and so on.")
@threads_option
@data_dir_option
@with_screen
def command(
    screen: Screen,
    model: str,
    files: tuple[str, ...],
    archive: str | None,
    sizes: dict[str, int],
    seed: int,
    output: str | None,
    output_dir: str | None,
    threads: int | None,
    data_dir: str | None,
) -> int:
    """Run MODEL once on fuse's runtime and show what each output looks like.

    Inputs without a file get random values, the same for the same seed; --dim gives a symbolic dim its size.
    """
    read = [model, archive, *(text.rpartition("=")[2] for text in files)]
    out = None if output is None else checked_output(output, *read)
    directory = None if output_dir is None else checked_directory(output_dir)
    screen.protect(*read, output=out)

    from fuse import api
    from fuse.cli.feeds import complete_feeds, read_feeds
    from fuse.report.terminal import values_table
    from fuse.report.values import value_facts
    from fuse.runtime.interpret import run
    from fuse.runtime.threads import blas_threads

    with screen.progress("run") as progress:
        progress("load")
        loaded = api.load(model, data_dir=data_dir)
        given = read_feeds(loaded, files, archive)
        with about(loaded.source), blas_threads(threads):
            feeds = complete_feeds(loaded, given, sizes, seed)
            progress("run")
            answers = run(loaded, feeds)
    written = _write(answers, out, directory)
    facts = {name: value_facts(value) for name, value in answers.items()}
    fed = {name: value_facts(value)["type"] for name, value in feeds.items()}
    screen.report({"source": loaded.source, "inputs": fed, "outputs": facts, "written": [str(p) for p in written]})
    screen.show(values_table(facts))
    return OK


def _write(answers: Mapping[str, Any], out: Path | None, directory: Path | None) -> list[Path]:
    """Write the answers where they are wanted; returns the files."""
    from fuse.cli.feeds import flat, write_archive, write_array

    written = []
    if out is not None:
        write_whole(out, lambda file: write_archive(file, answers))
        written.append(out)
    if directory is not None:
        try:
            directory.mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(error.strerror or str(error), where=str(directory)) from None
        numbered = {f"output_{number}": value for number, value in enumerate(answers.values())}
        for name, array in flat(numbered).items():
            target = directory / f"{name}.npy"
            write_whole(target, partial(write_array, array=array))
            written.append(target)
    return written
