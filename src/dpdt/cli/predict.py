"""dpdt predict"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click


@click.command(epilog="Example: dpdt predict runs/first/release digits.csv --out classes.csv")
@click.argument("folder", metavar="RUN|RELEASE", type=click.Path(path_type=Path))
@click.argument("examples", metavar="INPUT", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path),
              help="Write to this file, which must not exist; otherwise to stdout.")  # fmt: skip
@click.option("--probabilities/--no-probabilities", default=True, show_default=True,
              help="A column with the probability of each class.")  # fmt: skip
@click.option("--batch-size", type=click.IntRange(1), default=256, show_default=True,
              help="Examples that are computed at once; fewer take less memory.")  # fmt: skip
def command(
    folder: Path, examples: Path, out: Path | None, probabilities: bool, batch_size: int
) -> None:
    """Say the class of every example in INPUT, as a CSV.

    INPUT is a .csv with a row of numbers for each example, an .npz with an array x or x_test, an
    image, a folder of images, or for texts a .txt with one on each line or a .csv with a column
    text. A model that was trained on a table reads its columns from a .csv or .parquet, by their
    names (docs/files.md). A first line of any other .csv without any number is a header, and its
    column label is passed over.

    Numbers are taken as the data set has them on disk, and scaled as in training: pixels from 0 to
    255, those of digits from 0 to 16, anything else as it was trained on. Values off that scale,
    and images of another size, are refused. docs/predict.md says more.
    """
    from dpdt.releasing.loading import opened
    from dpdt.releasing.predict import predict
    from dpdt.training.progress import counting

    loaded = opened(folder)
    if not loaded.released:
        click.echo(
            f"{folder}: private until it is released; dpdt account {folder} says what a release "
            "would guarantee",
            err=True,
        )
    elif not loaded.certified:
        click.echo(f"{folder}: has no certificate, so nothing is guaranteed of it", err=True)
    predict(
        loaded,
        examples,
        out or sys.stdout.buffer,
        probabilities=probabilities,
        batch_size=batch_size,
        watch=partial(counting, enabled=True),
    )
