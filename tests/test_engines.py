"""Who trains the runs of a table: processes of this machine, and a Ray cluster that loses a worker on the way."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from inferences import write_entailment
from stories import write_task
from trainings import children_of, wait_for
from trainings import command as command_line

from structattn import cli
from structattn.recipes.engines import Labour, hire
from structattn.recipes.errors import UserError
from structattn.recipes.run_folder import read_tensors

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


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nobody_trains_on_when_the_parent_is_gone(tmp_path, how):
    """The run that it trains takes long, and the next checkpoint is far away: what is saved, it saved to stop."""
    folder = tmp_path / "table"
    settings = ["train_per_depth=2000", "size=8", "checkpoint_seconds=1000"]
    arguments = ["reproduce", "table1", "--workers", 1, "--folder", folder, "--set", *settings]
    with command_line(*arguments) as process:
        wait_for(folder / "none-seed1" / "metrics.jsonl", process)
        training = [number for number, line in children_of(process.pid).items() if " --run " in line]
        process.send_signal(how)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == (-how if how == signal.SIGKILL else 130)
    if how == signal.SIGTERM:
        assert f"stopped; the same command goes on with what is in {folder}" in errors
    deadline = time.monotonic() + 60
    while any(at_work(number) for number in training) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(at_work(number) for number in training)
    assert len(training) == 1
    _, state = read_tensors(folder / "none-seed1" / "checkpoint.safetensors")
    assert state["batch"] > 0, "not the end of an epoch"


def at_work(number):
    """Whether the process is there, and no zombie."""
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes() != b""
    except OSError:
        return False


@pytest.mark.parametrize(
    ("table", "settings", "what"),
    [
        ("table1", ["data.folder=formulas"], "there is no file formulas/train.txt"),
        ("table2", [], "no enja in the data folder {}; set --data-dir or $STRUCTATTN_DATA"),
        ("table3", [], "no babi/en in the data folder {}; run: structattn data fetch babi"),
        ("table4", [], "no snli in the data folder {}; run: structattn data fetch snli"),
    ],
)
def test_data_that_is_missing_is_missed_before_anything_starts(tmp_path, capsys, table, settings, what):
    folder = tmp_path / "table"
    options = ["--folder", folder, "--data-dir", tmp_path, *(["--set", *settings] if settings else [])]
    assert cli.main(["reproduce", table, *map(str, options)]) == 2
    assert capsys.readouterr().err == f"structattn: {what.format(tmp_path)}\n"
    assert not folder.exists()


def test_vectors_or_trees_that_are_missing_are_missed_too(tmp_path, capsys):
    data = write_entailment(tmp_path / "data")
    options = ["reproduce", "table4", "--folder", tmp_path / "table", "--data-dir", data, "--set"]
    assert cli.main([*map(str, options), "vectors=glove.txt"]) == 2
    missing = f"no vectors/glove.txt in the data folder {data}; run: structattn data fetch glove"
    assert missing in capsys.readouterr().err
    assert cli.main([*map(str, options), "vectors=vectors.txt", "model.trees=here"]) == 2
    assert 'there is no file or run "here"' in capsys.readouterr().err
    assert not (tmp_path / "table").exists()


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
