"""`structattn bench`: what structured attention costs, against softmax and against other libraries.

problems.py       potentials, and the step that is timed
verification.py   no speed without a right result
timing.py         interleaved rounds, minima
findings.py       numbers and their goals
workloads.py      chains and trees against softmax and other libraries
layers.py         attention layers against the softmax layers that they replace
studies.py        growth, threads, memory, small and mixed batches, the price of a call
peers.py          other libraries; jax_peers.py: those in JAX
report.py         tables, JSON, documentation
picture.py        the scaling picture
command.py        all of it by name
"""

from structattn.benchmarks.command import main

__all__ = ["main"]
