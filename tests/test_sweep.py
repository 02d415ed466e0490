"""Sweeps: a grid read from a file, trained by local processes or by Ray, and what becomes of runs that fail."""

import importlib.util
import json
import os
import re
import resource
import signal
import threading
import time

import pytest
from stories import write_task
from trainings import children_of, command

from structattn import cli
from structattn.recipes.config import build
from structattn.recipes.errors import UserError
from structattn.recipes.sweep import Sweep, jobs_of, read_sweep

GRID = """
task = "qa"
preset = "full"
seeds = [2]

[settings]
training = { epochs = 3, batch_size = 4, checkpoint_seconds = 0.05 }
model.linear_start = 1
size = 4

[grid]
model.kind = ["unary", "memn2n"]
"""


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data" / "babi" / "en"
    folder.mkdir(parents=True)
    write_task(folder, count=40)
    return tmp_path / "data"


def sweep(tmp_path, data, text, *arguments):
    path = tmp_path / "grid.toml"
    path.write_text(text)
    options = ["--folder", tmp_path / "runs", "--workers", 2, "--data-dir", data, *arguments]
    return cli.main(["sweep", str(path), *map(str, options)])


def test_every_point_of_the_grid_is_trained_once(tmp_path, data, capsys):
    assert sweep(tmp_path, data, GRID) == 0
    shown = capsys.readouterr().out
    assert "2 of 2 runs are finished" in shown
    names = [f"kind-{kind}-seed-2" for kind in ("unary", "memn2n")]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()) == sorted(names)
    found = json.loads((tmp_path / "runs" / "grid.json").read_text())
    assert sorted(found["runs"]) == sorted(names)
    assert [row[0] for row in found["rows"]] == names
    assert (tmp_path / "runs" / "grid.csv").read_text().startswith("run,seed,validation,answers,facts\n")
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/*")}
    assert sweep(tmp_path, data, GRID) == 0
    assert written == {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/*")}
    assert sweep(tmp_path, data, GRID.replace("epochs = 3", "epochs = 4")) == 2
    assert "other settings" in capsys.readouterr().err


def test_a_poisoned_run_is_reported_and_the_others_go_on(tmp_path, data, capsys):
    poisoned = GRID.replace("seeds = [2]", "").replace('["unary", "memn2n"]', '["unary"]')
    poisoned += "training.learning_rate = [0.01, 1e38]\n"
    assert sweep(tmp_path, data, poisoned) == 2
    shown = capsys.readouterr()
    assert "1 of 2 runs are finished" in shown.out
    error = shown.err.splitlines()[-1]
    assert error.startswith("structattn: 1 of 2 runs failed")
    assert "epoch 1, batch 2: the loss is" in error
    found = json.loads((tmp_path / "runs" / "grid.json").read_text())
    assert list(found["runs"]) == ["kind-unary-learning_rate-0.01"]
    assert list(found["failed"]) == ["kind-unary-learning_rate-1e+38"]
    assert (tmp_path / "runs" / "kind-unary-learning_rate-1e+38" / "checkpoint.safetensors").exists()


def test_the_finished_runs_of_a_table_are_kept_when_another_one_fails(tmp_path, data, capsys):
    """Of table 3's three models one cannot start: its run folder holds a checkpoint of something else."""
    arguments = ["reproduce", "table3", "--tasks", "2", "--seeds", "1", "--folder", tmp_path / "table"]
    arguments += ["--data-dir", data, "--workers", 1, "--set", "size=4", "epochs=2", "linear_start=1"]
    arguments = list(map(str, arguments))
    damaged = tmp_path / "table" / "task2-memn2n" / "checkpoint.safetensors"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"this is no checkpoint")
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "1 of 3 runs failed" in error
    assert f"{damaged} is damaged" in error
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "table").glob("*/evaluation.json")}
    assert len(kept) == 2
    damaged.unlink()
    assert cli.main(arguments) == 0
    assert kept == {path: path.stat().st_mtime_ns for path in kept}
    assert (tmp_path / "table" / "table3.md").exists()


def test_a_killed_worker_is_replaced(tmp_path, data, capsys):
    """One process of the first run is killed while it trains; the sweep ends as if nothing had been."""
    killed = []

    def kill_one():
        while not killed:
            for number, line in children_of(os.getpid()).items():
                trained = list((tmp_path / "runs").glob("*/checkpoint.safetensors"))
                if trained and f"{trained[0].parent} --resume" in line:
                    os.kill(number, signal.SIGKILL)
                    killed.append(trained[0].parent.name)
                    return
            time.sleep(0.01)

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    small = GRID.replace("seeds = [2]", "").replace("epochs = 3", "epochs = 12")
    assert sweep(tmp_path, data, small) == 0
    assert killed
    assert "2 of 2 runs are finished" in capsys.readouterr().out
    for path in (tmp_path / "runs").glob("kind-*"):
        epochs = [json.loads(line)["epoch"] for line in (path / "metrics.jsonl").read_text().splitlines()]
        assert epochs == list(range(1, 13))


def test_a_full_disk_ends_one_run_and_the_others_go_on(tmp_path, data, capsys):
    """The process of one run may write no file beyond 1 kB any more: what a full disk does, without one."""
    found = []

    def fill():
        while not found:
            for number, line in children_of(os.getpid()).items():
                if f"{tmp_path / 'runs' / 'kind-unary'} --resume" in line:
                    resource.prlimit(number, resource.RLIMIT_FSIZE, (1000, 1000))
                    found.append(number)
                    return
            time.sleep(0.01)

    filler = threading.Thread(target=fill, daemon=True)
    filler.start()
    small = GRID.replace("seeds = [2]", "")
    assert sweep(tmp_path, data, small) == 2
    assert found
    shown = capsys.readouterr()
    assert "1 of 2 runs are finished" in shown.out
    assert re.search(r"1 of 2 runs failed; \S+kind-unary: cannot write .*: File too large", shown.err)
    assert list(json.loads((tmp_path / "runs" / "grid.json").read_text())["runs"]) == ["kind-memn2n"]
    assert sweep(tmp_path, data, small) == 0, "there is room again"
    assert len(json.loads((tmp_path / "runs" / "grid.json").read_text())["runs"]) == 2


RATES = GRID.replace("seeds = [2]", "").replace('["unary", "memn2n"]', '["unary"]').replace("= 3", "= 8")
RATES += "training.learning_rate = [0.01, 0.02, 1e38]\n"


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_ray_loses_and_repeats_nothing_where_a_worker_is_killed_and_a_run_is_poisoned(tmp_path, data):
    (tmp_path / "grid.toml").write_text(RATES)
    folder = tmp_path / "ray"
    options = ["--folder", folder, "--engine", "ray", "--workers", 2, "--data-dir", data]
    killed = []
    with command("sweep", tmp_path / "grid.toml", *options) as process:
        while not killed and process.poll() is None:
            for number, line in children_of(process.pid).items():
                at_work = list(folder.glob("*0.0*/checkpoint.safetensors"))
                if at_work and line.startswith("ray::train_and_evaluate"):
                    os.kill(number, signal.SIGKILL)
                    killed.append(number)
                    break
            time.sleep(0.01)
        shown, errors = process.communicate(timeout=300)
    assert killed, errors
    assert process.returncode == 2, errors
    assert "2 of 3 runs are finished" in shown
    assert "epoch 1, batch 2: the loss is" in errors.splitlines()[-1]
    found = json.loads((folder / "grid.json").read_text())
    assert list(found["failed"]) == ["kind-unary-learning_rate-1e+38"]
    assert [row[0] for row in found["rows"]] == list(found["runs"])
    for name in found["runs"]:
        lines = (folder / name / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == list(range(1, 9))
    assert sweep(tmp_path, data, RATES) == 2
    assert json.loads((tmp_path / "runs" / "grid.json").read_text())["runs"] == found["runs"]


def test_keys_are_sections_or_dots_and_seeds_a_number_or_a_list():
    dotted = Sweep("qa", "full", [3, 5], {"model.size": 4}, {"model.kind": ["unary"]})
    nested = Sweep("qa", "full", [3, 5], {"model": {"size": 4}}, {"model": {"kind": ["unary"]}})
    assert jobs_of(dotted, "") == jobs_of(nested, "")
    assert [job.name for job in jobs_of(dotted, "")] == ["kind-unary-seed-3", "kind-unary-seed-5"]
    assert jobs_of(dotted, "")[1].settings == ['model.kind="unary"', "training.seed=5"]
    lists = build(Sweep, {"task": "transduction", "grid": {"train_depths": [[2], [2, 3]]}})
    assert [job.name for job in jobs_of(lists, "")] == ["train_depths-2", "train_depths-2-3"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "names no task"),
        ('task = "qa"', "neither a \\[grid\\] nor seeds"),
        ('task = "qua"\nseeds = 2', 'did you mean "qa"'),
        ('task = "qa"\nseeds = 0', "seeds must be at least 1"),
        ('task = "qa"\nseeds = []', "seeds must be at least 1"),
        ('task = "qa"\nseds = 3', 'unknown key "seds"; did you mean "seeds"'),
        ('task = "qa"\n[grid]\nsize = 3', "grid.size must be a list of values"),
        ('task = "qa"\n[grid]\nsize = []', "grid.size must be a list of values"),
        ('task = "qa"\n[grid]\nsise = [3]', 'did you mean "model.size"'),
        ('task = "qa"\n[grid]\nsize = ["a"]', "model.size must be int"),
        ('task = "qa"\nseeds = 1\n[settings]\nsize = 1979-05-27', "model.size must be int"),
        ('task = "qa"\n[grid]\nsize = [3, 3]', "size-3 and size-3 would be the same run"),
        ('task = "qa"\nseeds = 2\n[grid]\n"training.seed" = [1, 2]', "would be the same run"),
        ('task = "qa"\n[grid', "is not valid TOML"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(tmp_path, text, what):
    path = tmp_path / "grid.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=what):
        jobs_of(read_sweep(path), str(path))
