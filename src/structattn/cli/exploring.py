"""structattn explore"""

from __future__ import annotations

import threading
from pathlib import Path

from structattn.cli.app import DataDir, app


@app.command
def explore(
    *runs: Path,
    port: int | None = None,
    host: str = "127.0.0.1",
    no_browser: bool = False,
    data_dir: DataDir = None,
) -> None:
    """Open a local page to watch marginals: of edited potentials, random scores and trained runs.

    Parameters
    ----------
    runs
        Run folders; none are needed.
    port
        Where the page is; by default the first free one from 7860 on.
    host
        Who may see it: by default this machine only.
    no_browser
        Print the address only.
    """
    from structattn.recipes.running import open_run
    from structattn.show.explorer import build, serve

    page = build([open_run(path, data_dir) for path in runs])
    address = serve(page, host, port, not no_browser)
    print(f"explorer: {address}   (Ctrl-C ends it)", flush=True)
    try:
        threading.Event().wait()
    finally:
        page.close(verbose=False)
