"""The command line as a user meets it: training, killing, resuming, evaluating, errors in one line."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from trainings import LONGER, SETTINGS, SMALL, command, run, same, wait_for, weights


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "structured"
    assert run("train", "transduction", "--attention", "structured", "--run", folder, *SMALL) == 0
    return folder


def test_a_run_folder_explains_itself(trained):
    config = (trained / "config.toml").read_text()
    assert config.startswith("# structattn ")
    assert 'task = "transduction"' in config
    assert "size = 8" in config
    environment = json.loads((trained / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    metrics = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in metrics] == [1, 2, 3]
    keys = {"epoch", "loss", "valid_loss", "valid_prefix", "learning_rate", "examples_per_second"}
    assert set(metrics[0]) == keys
    assert metrics[2]["loss"] < metrics[0]["loss"]
    assert metrics[2]["learning_rate"] == 1.0


def test_a_seed_decides_everything(trained, tmp_path):
    for seed in (1, 2):
        assert run("train", "transduction", "--run", tmp_path / str(seed), "--seed", seed, *SMALL) == 0
    assert same(weights(tmp_path / "1"), weights(trained))
    assert not same(weights(tmp_path / "2"), weights(trained))


def test_evaluate_prints_and_keeps_the_numbers(trained, tmp_path, capsys):
    assert run("evaluate", trained, "--json", tmp_path / "numbers.json") == 0
    shown = capsys.readouterr().out
    assert "correct before the first failure" in shown
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers == json.loads((trained / "evaluation.json").read_text())
    assert numbers["depths"]["3"]["count"] == 4


def test_evaluate_takes_files_and_folders_of_its_format(trained, tmp_path, capsys):
    made = tmp_path / "formulas"
    assert run("data", "make", "transduction", "--out", made, "--set", *SETTINGS[:3], *SETTINGS[-1:]) == 0
    (trained / "evaluation.json").unlink(missing_ok=True)
    assert run("evaluate", trained, "--data", made, "--json", tmp_path / "a.json") == 0
    assert run("evaluate", trained, "--data", made / "test.txt", "--json", tmp_path / "b.json") == 0
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()
    assert json.loads((tmp_path / "a.json").read_text())["all"]["count"] == 8
    assert not (trained / "evaluation.json").exists(), (
        "only the recipe's own test set is the run's evaluation"
    )
    capsys.readouterr()
    assert run("evaluate", trained, "--data", tmp_path / "nothing") == 2
    assert "there is no" in capsys.readouterr().err


def test_predict_from_arguments_and_from_standard_input(trained, monkeypatch, capsys):
    assert run("predict", trained, "(+ 1 2)", "( * 3 4 )") == 0
    from_arguments = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("(+ 1 2)\n( * 3 4 )\n"))
    assert run("predict", trained) == 0
    assert capsys.readouterr().out == from_arguments
    assert from_arguments.count("\n") == 2
    assert run("predict", trained, "(+ 1") == 2
    assert "not closed" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["heat.svg", "heat.png", "heat.pdf"])
def test_plot_writes_the_picture(trained, tmp_path, name):
    assert run("plot", trained, "--beside", trained, "--out", tmp_path / name) == 0
    assert (tmp_path / name).stat().st_size > 1000


def test_plot_writes_arcs_and_refuses_other_formats(trained, tmp_path, capsys):
    assert run("plot", trained, "(+ 1 2)", "--arcs", "--out", tmp_path / "arcs.svg") == 0
    assert "<path" in (tmp_path / "arcs.svg").read_text()
    capsys.readouterr()
    assert run("plot", trained, "--out", tmp_path / "heat.jpg") == 2
    assert run("plot", trained, "--out", tmp_path / "no" / "heat.svg") == 2
    errors = capsys.readouterr().err.splitlines()
    assert 'no picture format "jpg"' in errors[0]
    assert "there is no folder" in errors[1]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    assert run("train", "transduction", "--run", folder, *LONGER) == 0
    return weights(folder)


@pytest.mark.parametrize("delay", [0.1, 0.5])
def test_a_killed_run_resumes_to_the_very_same_weights(tmp_path, unbroken, delay):
    folder = tmp_path / "killed"
    with command("train", "transduction", "--run", folder, *LONGER) as process:
        wait_for(folder / "checkpoint.safetensors", process)
        time.sleep(delay)
        process.kill()
    assert run("train", "transduction", "--run", folder, "--resume", "--threads", 1, "--quiet") == 0
    assert same(weights(folder), unbroken)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 6
    assert run("train", "transduction", "--run", folder, "--resume", "--threads", 1, "--quiet") == 0
    assert same(weights(folder), unbroken), "a finished run has nothing left to do"


def test_control_c_saves_and_says_how_to_go_on(tmp_path, unbroken):
    folder = tmp_path / "stopped"
    shown = [argument for argument in LONGER if argument != "--quiet"]
    with command("train", "transduction", "--run", folder, *shown, "epochs=100") as process:
        wait_for(folder / "checkpoint.safetensors", process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
    assert f"stopped and saved; next: structattn train transduction --run {folder} --resume" in errors
    assert "Traceback" not in errors


def test_two_processes_equal_one(tmp_path):
    # 40 examples in batches of 13 leave one example for the last, and nothing for the second process.
    settings = [*SMALL, "training.batch_size=13", "epochs=2"]
    assert run("train", "transduction", "--run", tmp_path / "one", *settings) == 0
    with command("train", "transduction", "--run", tmp_path / "two", "--devices", 2, *settings) as process:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-5)
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_a_loss_that_is_not_a_number_stops_and_says_where(tmp_path, capsys):
    settings = [*SMALL, "learning_rate=1e38", "gradient_norm=0"]
    assert run("train", "transduction", "--run", tmp_path / "run", *settings) == 2
    message = capsys.readouterr().err
    assert re.search(r"epoch \d+, batch \d+: the loss is", message)
    assert message.count("\n") == 1


def test_reproduce_makes_the_table_and_goes_on_where_it_stopped(tmp_path, capsys):
    folder = tmp_path / "table"
    arguments = ["reproduce", "table1", "--folder", folder, "--workers", 2, "--set", *SETTINGS, "epochs=1"]
    assert run(*arguments) == 0
    assert "paper" in capsys.readouterr().out
    assert "| 2 |" in (folder / "table1.md").read_text()
    assert (folder / "table1.csv").read_text().startswith("depth,none,paper,simple,paper,structured,paper\n")
    assert set(json.loads((folder / "table1.json").read_text())["runs"]) == {
        "none-seed1",
        "simple-seed1",
        "structured-seed1",
    }
    before = (folder / "none-seed1" / "evaluation.json").stat().st_mtime_ns
    assert run(*arguments) == 0
    assert (folder / "none-seed1" / "evaluation.json").stat().st_mtime_ns == before
    assert run(*arguments, "epochs=2") == 2
    assert "other settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["trian"], 'Did you mean "train"'),
        (["train", "transductoin"], 'did you mean "transduction"'),
        (["train", "transduction", "--attention", "simpel"], 'did you mean "simple"'),
        (["train", "transduction", "--preset", "ful"], 'did you mean "full"'),
        (["train", "transduction", "--set", "epoch=3"], 'did you mean "training.epochs"'),
        (["train", "transduction", "--set", "epochs=many"], "training.epochs must be int"),
        (["train", "transduction", "--sed", "1"], "Did you mean --seed"),
        (["train", "transduction", "--seed", "x"], "x"),
        (["reproduce", "tabel1"], 'did you mean "table1"'),
        (["evaluate", "nowhere"], "nowhere is no run folder"),
        (["data", "fetch", "snly"], 'did you mean "snli"'),
        (["data", "make", "qa"], "is not generated"),
        (["data", "list", "--data-dir", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_mistakes_are_one_line_with_what_is_near(tmp_path, monkeypatch, capsys, arguments, what):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    errors = capsys.readouterr().err
    assert what in errors
    assert errors.startswith("structattn: ")
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_existing_runs_are_not_overwritten(trained, capsys):
    assert run("train", "transduction", "--run", trained, *SMALL) == 2
    assert "--resume" in capsys.readouterr().err
    assert run("train", "transduction", "--run", trained, "--resume", "--set", "size=9") == 2
    assert "keeps its configuration" in capsys.readouterr().err
    assert run("train", "transduction", "--run", trained, "--resume", "--quiet", "--set", "size=8") == 0


def test_near_runs_are_named(trained, capsys):
    assert run("evaluate", trained.with_name("structurd")) == 2
    assert 'did you mean "structured"' in capsys.readouterr().err


def test_debug_shows_where_it_came_from(tmp_path):
    with pytest.raises(Exception, match="no run folder"):
        run("evaluate", tmp_path, "--debug")


def test_a_missing_package_names_the_extra(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("plot", trained, "--out", tmp_path / "heat.svg") == 2
    assert "pip install structattn[recipes]" in capsys.readouterr().err


def test_info_and_data_list(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("STRUCTATTN_DATA", str(tmp_path))
    assert run("info") == 0
    assert "kernels" in capsys.readouterr().out
    assert run("data", "list") == 0
    assert "babi/en" in capsys.readouterr().out


def test_help_does_not_import_torch():
    program = """
        import sys
        from structattn.cli import main
        assert main(["--help"]) == 0
        assert main(["train", "--help"]) == 0
        assert not {"torch", "rich.progress", "matplotlib", "lightning_fabric"} & set(sys.modules)
    """
    program = "\n".join(line.strip() for line in program.splitlines())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.check_output([sys.executable, "-c", program], text=True, env=environment)
    assert "reproduce" in shown
    assert "--attention" in shown
