"""The scaling picture of the documentation; needs matplotlib."""

from __future__ import annotations

from pathlib import Path


def draw(curves: dict[str, dict[int, float]], path: Path) -> None:
    """Time against n, both logarithmic, in units of the shortest: only the growth is a claim."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "structattn"  # the same picture gives the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for kind, curve in curves.items():
        sizes = sorted(curve)
        axes.loglog(sizes, [curve[n] / curve[sizes[0]] for n in sizes], marker="o", label=kind)
    first, last = sizes[0], sizes[-1]
    for power, name in ((1, "n"), (3, "n³")):
        axes.loglog([first, last], [1, (last / first) ** power], color="gray", linestyle=":", linewidth=1)
        end = (last, (last / first) ** power)
        axes.annotate(name, end, textcoords="offset points", xytext=(4, 0), color="gray")
    axes.set(xlabel="length n", ylabel=f"time, in units of n = {first}")
    axes.set_xticks(sizes, labels=map(str, sizes), minor=False)
    axes.minorticks_off()
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
