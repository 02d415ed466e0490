"""Hostile input for everything that reads: `make fuzz`, or some readers: python tests/fuzz.py glove conllu.

Hypothesis starts from something valid, repeats, cuts and replaces parts of it, and puts in what readers stumble over.
A reader may refuse with its own error and nothing else; it may not take seconds, nor memory without bound.
"""

import contextlib
import gzip
import json
import resource
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

import torch
from constructions import ask_everything, constructions
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from safetensors.torch import save
from soak import Progress

import structattn
from structattn.recipes.config import build, override, read_toml
from structattn.recipes.entailment import data as entailment
from structattn.recipes.errors import UserError
from structattn.recipes.qa import data as qa
from structattn.recipes.run_folder import RunFolder
from structattn.recipes.sweep import jobs_of, read_sweep
from structattn.recipes.tasks import RECIPES, preset, recipe_class
from structattn.recipes.training import Position
from structattn.recipes.transduction import data as transduction
from structattn.recipes.translation import data as translation
from structattn.recipes.treebank import conllu, is_projective, lifted, parse_conllu, read_treebank
from structattn.recipes.vectors import read_vectors

INPUTS = 100_000
ROUND = 500
"""Inputs that one search of hypothesis makes; the next one has another seed."""
SECONDS = 5
"""Processor time that one input may take."""
BYTES = 2 << 30
"""Memory that a process may take beyond what it has when it begins."""

NASTY = [b"", b"\0", b"\t", b"\t\t", b" ", b"\n", b"\n\n", b"\r\n", b"\r", b"\xff", b"\xc3", b"\xef\xbb\xbf"]
NASTY += [
    b"\xff\xfe",
    b"\xe2\x80\xa8",
    b"\xed\xa0\x80",
    b"\xf0\x9f\xa7\xa0",
    b"\xd9\xa1",
    b"\xc2\xb2",
    b"\x1f\x8b",
]
NASTY += [
    b"-1",
    b"0",
    b"1",
    b"1.0",
    b"1e400",
    b"-1e300",
    b"3e38",
    b"nan",
    b"inf",
    b"-inf",
    b"9" * 5000,
    b"1_0",
    b"0x1",
]
NASTY += [
    b"(",
    b")",
    b"(" * 3000,
    b"[" * 3000,
    b"{" * 3000,
    b'{"a":' * 3000,
    b'"',
    b"'",
    b"\\",
    b"=",
    b"#",
    b"?",
]
NASTY += [
    b"null",
    b"true",
    b"[]",
    b"{}",
    b"a.a.a.a",
    b"a" * 100_000,
    b"../../x",
    b"%s",
    b"$",
    b"<pad>",
    b"\x1b[2J",
]


class Target(NamedTuple):
    """Valid inputs, what reads a file of such bytes (or a drawn value), and the errors that it may answer with."""

    valid: list[bytes]
    read: object
    suffixes: tuple[str, ...] = (".txt",)
    inputs: object = None
    """the strategy, where inputs are no bytes"""
    errors: tuple[type[Exception], ...] = (UserError,)


def near(valid):
    """Bytes near one of these, or far from all."""
    pieces = st.one_of(st.sampled_from(NASTY), st.binary(max_size=8))
    edit = st.tuples(st.floats(0, 1), st.sampled_from([0, 0, 1, 2, 7, 60]), pieces)
    whole = st.sampled_from(valid)
    lines = sorted({line for text in valid for line in text.splitlines(keepends=True)})
    mixed = st.lists(st.one_of(st.sampled_from(lines), st.sampled_from(lines), pieces), max_size=8).map(
        b"".join
    )
    once, often = st.lists(edit, max_size=1), st.lists(edit, max_size=6)
    return st.one_of(*(st.builds(edited, *pair) for pair in ((whole, once), (whole, often), (mixed, once))))


def edited(content, edits):
    """At a place, which is a share of the content, so many bytes go and others come."""
    for place, gone, piece in edits:
        start = round(place * len(content))
        content = content[:start] + piece + content[start + gone :]
    return content


BABI = b"1 Mary went to the hall.\n2 John took the ball.\n3 Where is Mary? \thall\t1\n4 What is it?\tball,hall\t2 1\n"
CONLLU = b"# text = Dogs bark.\n1\tDogs\tdog\tNOUN\tNNS\t_\t2\tnsubj\t_\t_\n1.1\tx\t_\t_\t_\t_\t_\t_\t_\t_\n"
CONLLU += b"2-3\tx\t_\t_\t_\t_\t_\t_\t_\t_\n2\tbark\t_\tVERB\t_\t_\t0\troot\t_\t_\n3\t.\t.\tPUNCT\t_\t_\t2\t_\t_\t_\n\n"
JSONL = b'{"gold_label": "neutral", "sentence1": "A dog.", "sentence2": "It can\'t.", '
JSONL += b'"sentence1_parse": "(ROOT (NP (DT A) (NN dog)))", "sentence2_parse": ""}\n'
TABBED = b"gold_label\tsentence1\tsentence2\tsentence1_parse\nentailment\tA dog runs.\tIt runs.\t(S (NP A) (VP runs))\n"
GLOVE = b"the 0.1 -0.2 3e-1\nof 1 2 3\n. . . -1.5 0.25 4\nthe 9 9 9\n"
PARALLEL = "私 は 犬 を 見 た\ti saw a dog\n猫\ta cat\n".encode()
FORMULA = b"( * ( + 15 7 ) 1 8 )\t( 15 + 7 ) * 1 * 8\n( + 1 2 )\t1 + 2\n"
TOML = [path.read_bytes() for path in sorted(Path(structattn.__file__).parent.glob("recipes/*/*.toml"))]
SWEEP = b'task = "qa"\nseeds = [1, 2]\n[settings]\ntraining.epochs = 70\n[grid]\nsize = [3, 4]\n'
SWEEP += b'"model.kind" = ["unary"]\n'


def read_babi(path):
    for question in qa.read_questions(path):
        assert qa.vocabulary([question])
        assert all(age >= 0 for age in qa.supporting_ages(question))


def read_conllu(path):
    for sentence in read_treebank(path):
        written = conllu(sentence, lifted(sentence.heads))
        (again,) = parse_conllu(written.split("\n"), "written")
        assert is_projective(again.heads)


def read_glove(path):
    vectors = read_vectors(path, {"the", "of"}, first=2)
    assert vectors.table.isfinite().all()
    assert len(vectors.words) == len(vectors.table)


def read_parallel(path):
    for paths in ([path], [path, path]):
        with contextlib.suppress(UserError):
            for pair in translation.read_pairs(paths):
                translation.fits(pair, translation.TranslationData())
    translation.read_pairs([path])


def read_formulas(path):
    for pair in transduction.read_pairs(path):
        assert transduction.prefix(transduction.parse_prefix(pair.source))


def read_settings(path):
    table = read_toml(path)
    for task in RECIPES:
        with contextlib.suppress(UserError):
            build(recipe_class(task).config_class, table, str(path))
    text = path.read_text(encoding="utf-8", errors="replace")
    override(preset("qa", "full"), text.splitlines())


def read_grid(path):
    jobs_of(read_sweep(path), str(path))


def network():
    """A small model and its optimiser, as a run folder has one."""
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.Adam(model.parameters())


def run_files():
    """The files of a run folder as they are written, by name."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        run.create(preset("parser", "quick"), "parser", "a command")
        model, optimizer = network()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        run.save_weights(model)
        run.save_checkpoint(model, optimizer, vars(Position(metrics=[{"epoch": 1, "loss": 0.5}])))
        run.write_metrics([{"epoch": 1, "loss": 0.5}])
        run.save_evaluation({"uas": 90.0})
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


RUN_FILES = run_files()


def tensors_of_all_kinds():
    """What a stranger may write: any type, any size, any state, and a checksum or none."""
    kinds = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]
    tensor = st.builds(
        lambda kind, shape: torch.zeros(shape).to(kind),
        st.sampled_from(kinds),
        st.lists(st.integers(0, 3), max_size=3),
    )
    names = st.sampled_from(
        [
            "weight",
            "bias",
            "model.weight",
            "model.bias",
            "optimizer.0.step",
            "optimizer.0.exp_avg",
            "optimizer.x",
            "",
        ]
    )
    json_values = st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["", "a", "0.step"])),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(["epoch", "optimizer", "param_groups", "numbers", "0.step", "x"]), inner
            ),
        ),
        max_leaves=8,
    )
    header = st.dictionaries(st.sampled_from(["structattn", "sha256", "x"]), json_values.map(json.dumps))
    return st.builds(save, st.dictionaries(names, tensor), header)


def folders():
    """The name of a file of a run folder, and what is in it."""
    texts = [st.tuples(st.just(name), near([content])) for name, content in RUN_FILES.items()]
    tensors = st.sampled_from(["model.safetensors", "checkpoint.safetensors"])
    return st.one_of(*texts, st.tuples(tensors, tensors_of_all_kinds()))


def read_run(folder, drawn):
    """Everything that the commands read from a run folder, with this file in the place of the right one."""
    for name, content in [*RUN_FILES.items(), drawn]:
        (folder / name).write_bytes(content)
    run = RunFolder(folder)
    model, optimizer = network()
    state = {}

    def load_checkpoint():
        state.update(run.load_checkpoint(model, optimizer) or {})
        build(Position, state, "the checkpoint")

    questions = (run.metrics, run.evaluation, load_checkpoint, lambda: run.load_weights(model))
    for question in (*questions, lambda: run.config(recipe_class(run.task()).config_class)):
        with contextlib.suppress(UserError):
            question()


TARGETS = {
    "babi": Target([BABI], read_babi),
    "conllu": Target([CONLLU], read_conllu, (".conllu", ".conllu.gz")),
    "jsonl": Target([JSONL], entailment.read_pairs, (".jsonl", ".jsonl.gz")),
    "tabbed": Target([TABBED], entailment.read_pairs, (".txt", ".txt.gz")),
    "glove": Target([GLOVE], read_glove, (".txt", ".txt.gz", ".zip")),
    "parallel": Target([PARALLEL], read_parallel),
    "formulas": Target([FORMULA], read_formulas),
    "toml": Target(TOML, read_settings, (".toml",)),
    "sweep": Target([SWEEP], read_grid, (".toml",)),
    "run": Target([], read_run, ("",), folders()),
    "core": Target([], ask_everything, ("",), constructions(), (ValueError, TypeError)),
}


def packed(content, suffix, damaged):
    """As the suffix says; a damaged archive is one byte short of its middle."""
    if suffix.endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    elif suffix == ".zip":
        with tempfile.SpooledTemporaryFile() as file:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("vectors.txt", content)
            file.seek(0)
            content = file.read()
    middle = len(content) // 2
    return content[:middle] + content[middle + 1 :] if damaged else content


def drawn_inputs(target):
    """A suffix and what is written, or (".", a drawn value)."""
    if target.inputs is not None:
        return st.tuples(st.just(""), target.inputs)
    packing = st.sampled_from(
        [(suffix, damaged) for suffix in target.suffixes for damaged in (False, False, False, True)]
    )
    return st.builds(lambda content, how: (how[0], packed(content, *how)), near(target.valid), packing)


@contextlib.contextmanager
def bounds(memory=BYTES):
    """An error for whoever computes for seconds, or takes memory without end."""

    def too_long(*_):
        raise AssertionError(f"no answer after {SECONDS} s of processor time")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGVTALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, before[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def fuzz(name, inputs, first_seed=0, progress=None):
    """So many inputs for a reader; raises what the reader should not have, for the smallest input that does it."""
    target, folder = TARGETS[name], Path(tempfile.mkdtemp())
    answers = {"read": 0, "refused": 0}

    def search(drawn):
        suffix, content = drawn
        given_to_reader = (folder, content)
        if target.inputs is None:
            path = folder / f"input{suffix}"
            path.write_bytes(content)
            given_to_reader = (path,)
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        try:
            target.read(*given_to_reader)
            answers["read"] += 1
        except target.errors:
            answers["refused"] += 1
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if progress is not None:
            progress.add(1)

    try:
        with bounds():
            for start in range(0, inputs, ROUND):
                count = min(ROUND, inputs - start)
                quiet = settings(
                    max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck)
                )
                seed(first_seed + start)(quiet(given(drawn_inputs(target))(search)))()
    finally:
        shutil.rmtree(folder)
    return answers


def main(names):
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        return f"unknown reader {unknown[0]!r}; there is {', '.join(TARGETS)}"
    chosen = names or list(TARGETS)
    progress = Progress("inputs", INPUTS, print)
    began = time.time_ns() // 1_000_000
    totals = {name: fuzz(name, -(-INPUTS // len(chosen)), began, progress) for name in chosen}
    for name, answers in totals.items():
        print(f"  {name:10}{answers['read']:8,} read {answers['refused']:8,} refused")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    progress.close(f"no other error, none took {SECONDS} s; at most {peak:.0f} MB of memory; seed {began}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
