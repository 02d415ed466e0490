"""structattn data list | make | fetch"""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from structattn.cli.app import DataDir, Settings, app

data = App(name="data", help="List, make and fetch data.")
app.command(data)


@data.command(name="list")
def list_data(*, data_dir: DataDir = None) -> None:
    """Say what is in the data folder."""
    from structattn.recipes.data_folder import DataFolder
    from structattn.recipes.progress import print_table
    from structattn.recipes.recipe import Table

    folder = DataFolder.find(data_dir)
    rows = [
        [part, f"{size / 1e6:.1f} MB" if there else "-", description]
        for part, description, there, size in folder.contents()
    ]
    print_table(Table(f"data folder: {folder.path}", ["part", "size", "what"], rows))


@data.command
def make(
    task: str,
    /,
    *,
    preset: str = "full",
    out: Path | None = None,
    settings: Settings = None,
    data_dir: DataDir = None,
) -> None:
    """Write generated data as text files.

    Parameters
    ----------
    task
        transduction
    out
        The folder to write to; transduction/ in the data folder by default.
    """
    from structattn.recipes.config import override
    from structattn.recipes.data_folder import DataFolder
    from structattn.recipes.errors import UserError
    from structattn.recipes.tasks import preset as read_preset

    if task != "transduction":
        raise UserError(f'the data of "{task}" is not generated; only that of transduction is')
    from structattn.recipes.transduction.data import draw_splits, write_pairs

    target = out or DataFolder.find(data_dir).path / "transduction"
    for name, pairs in draw_splits(override(read_preset(task, preset), settings or []).data).items():
        write_pairs(pairs, target / f"{name}.txt")
        print(f"wrote {target / name}.txt, {len(pairs)} pairs")


@data.command
def fetch(name: str, /, *, url: str | None = None, data_dir: DataDir = None) -> None:
    """Download a corpus from its official address, checked by sha256.

    Parameters
    ----------
    name
        babi, snli or glove
    url
        A mirror to use instead; what it sends must be the same bytes.
    """
    from structattn.recipes.data_folder import DataFolder
    from structattn.recipes.fetching import fetch as fetch_data

    for path in fetch_data(name, DataFolder.find(data_dir), url):
        print(f"wrote {path}")
