"""Who trains the runs of a table: processes of this machine, and a Ray cluster that loses a worker on the way."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from stories import write_task
from trainings import children_of

from structattn import cli
from structattn.recipes.engines import Labour, hire
from structattn.recipes.errors import UserError

SETTINGS = ["epochs=6", "linear_start=2", "size=4", "batch_size=2", "checkpoint_seconds=0.05"]


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data" / "babi" / "en"
    folder.mkdir(parents=True)
    write_task(folder, count=60)
    return tmp_path / "data"


def command(data, folder, *arguments):
    options = ["--preset", "full", "--tasks", "2", "--seeds", "2", "--folder", folder, "--data-dir", data]
    return [str(one) for one in ("reproduce", "table3", *options, *arguments, "--set", *SETTINGS)]


def reproduce(data, folder, *arguments):
    return cli.main(command(data, folder, *arguments))


def finished(folder):
    """The runs' evaluations and the numbers of their epochs, by name."""
    found = {}
    for path in sorted(folder.glob("task*")):
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        found[path.name] = (
            json.loads((path / "evaluation.json").read_text()),
            [line["epoch"] for line in lines],
        )
    return found


def test_a_table_is_trained_once_by_processes_of_this_machine(data, tmp_path, capsys):
    folder = tmp_path / "table"
    assert reproduce(data, folder, "--workers", "2") == 0
    found = finished(folder)
    assert len(found) == 3
    assert all(epochs == [1, 2, 3, 4, 5, 6] for _, epochs in found.values())
    assert (folder / "table3.md").read_text().count("\n| ") == 4, "heads, rule, the task and the average"
    written = {path: path.stat().st_mtime_ns for path in folder.glob("task*/*")}
    assert reproduce(data, folder) == 0
    assert written == {path: path.stat().st_mtime_ns for path in folder.glob("task*/*")}, (
        "nothing is trained again"
    )
    assert "table3, preset full, 2 seeds" in capsys.readouterr().out
    assert "MemN2N" in (folder / "table3.md").read_text()


def test_who_asks_for_what_is_not_there_is_told(data, tmp_path, capsys):
    with pytest.raises(UserError, match='unknown engine "rai"; did you mean "ray"'):
        hire(Labour("rai"), "qa", tmp_path, [])
    with pytest.raises(UserError, match="--address is for --engine ray"):
        hire(Labour("local", address="here"), "qa", tmp_path, [])
    assert cli.main(["reproduce", "table1", "--tasks", "2"]) == 2
    assert "--tasks means nothing to table1" in capsys.readouterr().err


def test_without_ray_the_answer_is_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install structattn\[ray\]"):
        hire(Labour("ray"), "qa", tmp_path, [])


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_a_ray_worker_is_killed_and_nothing_is_lost(data, tmp_path):
    """Two workers; one is killed while it trains. Every run is finished, once, and equals the one trained locally."""
    folder, local = tmp_path / "ray", tmp_path / "local"
    arguments = [
        sys.executable,
        "-m",
        "structattn.cli",
        *command(data, folder, "--engine", "ray", "--workers", "2"),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        arguments,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    killed = []

    def kill_one_worker():
        while not killed and process.poll() is None:
            training = [path for path in folder.glob("task*") if (path / "checkpoint.safetensors").exists()]
            if training:
                for number, line in children_of(process.pid).items():
                    if line.startswith("ray::train_and_evaluate"):
                        os.kill(number, signal.SIGKILL)
                        killed.append(line)
                        return
            time.sleep(0.02)

    killer = threading.Thread(target=kill_one_worker)
    killer.start()
    _, errors = process.communicate(timeout=300)
    killer.join()
    assert process.returncode == 0, errors
    assert killed, "no worker was caught at work"
    assert reproduce(data, local, "--workers", "2") == 0
    assert finished(folder) == finished(local)
