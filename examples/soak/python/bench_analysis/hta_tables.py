"""Prints the tables of HolisticTraceAnalysis for the traces in a directory as one line of JSON, and what they cost.

Usage: hta_tables.py DIRECTORY. The seconds do not contain the imports. The line also has what HTA warned of.
"""

import contextlib
import functools
import json
import logging
import math
import resource
import sys
import time
import warnings
from collections.abc import Iterator

import pandas as pd
from hta.analyzers.cuda_kernel_analysis import CudaKernelAnalysis
from hta.trace_analysis import TraceAnalysis


def usage() -> tuple[float, int]:
    """Return CPU seconds and the peak memory in KiB of the largest process."""
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in parts), max(part.ru_maxrss for part in parts)


class Warned(logging.Handler):
    """Collects what is logged as a warning in this process: HTA reads the files in others, and these are not heard."""

    # Progress, which HTA logs as warnings.
    PROGRESS = ("leaving ", "Parsed ", "Overall parsing ")

    def __init__(self) -> None:
        """Listen to all loggers that exist: some do not pass their records on."""
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        for name in [None, *logging.root.manager.loggerDict]:
            logger = logging.getLogger(name)
            if name is None or not logger.propagate:
                logger.addHandler(self)
        warnings.showwarning = lambda message, *_, **__: self.texts.append(str(message))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text."""
        if not record.getMessage().startswith(self.PROGRESS):
            self.texts.append(record.getMessage())


@contextlib.contextmanager
def stable_sort() -> Iterator[None]:
    """Let pandas sort stably: HTA's queues and bandwidths depend on the order of equal times."""
    original = pd.DataFrame.sort_values
    pd.DataFrame.sort_values = functools.partialmethod(original, kind="stable")
    try:
        yield
    finally:
        pd.DataFrame.sort_values = original


def described(values: pd.Series) -> dict[str, float]:
    """Return what `describe` yields."""
    return values.describe().to_dict()


def launches(analysis: TraceAnalysis, ranks: list[int]) -> list[dict]:
    """Return statistics of the table of launches, and what HTA draws of it: the rows by its three conditions."""
    rows = []
    for rank, table in analysis.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False).items():
        call, kernel, delay = (table[name] for name in ("cpu_duration", "gpu_duration", "launch_delay"))
        rows.append(
            {
                "rank": rank,
                "cpu_duration": described(call),
                "gpu_duration": described(kernel),
                "launch_delay": described(delay),
                "short": int(((call <= 50) & (kernel < call)).sum()),
                "slow": int((call > 50).sum()),
                "late": int((delay > 100).sum()),
            }
        )
    return rows


def flat(table: pd.DataFrame | None) -> list[dict]:
    """Return the rows of a summary, with the columns of its one figure."""
    if table is None:
        return []
    table = table.copy()
    table.columns = [column[-1] for column in table.columns]
    return table.reset_index().to_dict("records")


def counters(analysis: TraceAnalysis, ranks: list[int]) -> dict:
    """Return the queues, the time of full queues, and the bandwidth of copies."""
    try:
        series = analysis.get_queue_length_time_series(ranks)
        queues = flat(analysis.get_queue_length_summary_from_time_series(series))
        full = []
        for rank, table in series.items():
            for _, one in table.groupby("stream"):  # HTA's own table of all streams has only the last one
                blocked = analysis.get_time_spent_blocked_on_full_queue({rank: one})
                full += blocked.to_dict("records")
    except AssertionError:
        queues = full = None  # HTA's own check fails
    return {"queues": queues, "full": full, "bandwidth": flat(analysis.get_memory_bw_summary(ranks))}


def annotations(analysis: TraceAnalysis) -> list[dict]:
    """Return the annotations of the device and of the host."""
    rows = []
    for is_on_device, category in ((True, "gpu_user_annotation"), (False, "user_annotation")):
        if category not in analysis.t.symbol_table.sym_index:
            continue  # HTA has no table, and warns of it
        table = analysis.get_gpu_user_annotation_breakdown(use_gpu_annotation=is_on_device, visualize=False)
        rows += [{"is_on_device": is_on_device, **row} for row in table.to_dict("records")]
    return rows


def operators(analysis: TraceAnalysis, ranks: list[int]) -> list[dict] | None:
    """Return the kernels of each ATen operator; null if HTA fails, as it does without one or with a CUDA graph."""
    CudaKernelAnalysis.visualize_aten_op_kernels_and_overhead = classmethod(lambda *_: None)
    try:
        tables = analysis.get_aten_op_kernels_and_delay(ranks=ranks)
    except (KeyError, ValueError):
        return None
    return [{"rank": rank, **row} for rank, table in tables.items() for row in table.to_dict("records")]


def finite(value: object) -> object:
    """Return the value with null for figures that are not numbers, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main() -> None:
    """Load the traces and compute the tables."""
    warned = Warned()
    before, _ = usage()
    began = time.perf_counter()
    analysis = TraceAnalysis(trace_dir=sys.argv[1])
    temporal = analysis.get_temporal_breakdown(visualize=False)
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    types, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
    wall = time.perf_counter() - began
    cpu, peak_kib = usage()
    # Not part of the cost: the benchmark of earlier versions did not ask for it.
    ranks = list(analysis.t.traces)
    idle, _ = analysis.get_idle_time_breakdown(ranks=ranks, visualize=False)
    own = counters(analysis, ranks)
    with stable_sort():
        stable = counters(analysis, ranks)
    tables = {
        "wall_s": wall,
        "cpu_s": cpu - before,
        "peak_kib": peak_kib,
        "warnings": warned.texts,
        "temporal": temporal.to_dict("records"),
        "overlap": overlap.to_dict("records"),
        "types": types.to_dict("records"),
        "kernels": kernels.to_dict("records"),
        "idle": idle[["rank", "stream", "idle_category", "idle_time"]].to_dict("records"),
        "launches": launches(analysis, ranks),
        "counters": own,
        "counters_stable": stable,
        "annotations": annotations(analysis),
        "operators": operators(analysis, ranks),
    }
    print(json.dumps(finite(tables)))


main()
