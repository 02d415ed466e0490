"""Ctrl-C and SIGTERM as a wish: what runs ends at a good place, and saves. So it does when its parent is gone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PARENT = "STRUCTATTN_PARENT"
_SECONDS_BETWEEN_LOOKS = 0.5


def of_this_parent() -> dict[str, str]:
    """The environment of a process that is to stop when this one is gone, however it goes."""
    return {_PARENT: str(os.getpid())}


def stop_with_parent() -> None:
    """Asks this process to stop once the parent that its environment names is gone."""
    parent = os.environ.pop(_PARENT, None)  # what this process starts has another parent

    def watch() -> None:
        while os.getppid() == int(parent or 0):
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        os.kill(os.getpid(), signal.SIGTERM)

    if parent is not None:
        threading.Thread(target=watch, daemon=True).start()


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second SIGINT does what it did before."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask_to_stop(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before[signal.SIGINT])

    for number in before:
        signal.signal(number, ask_to_stop)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
