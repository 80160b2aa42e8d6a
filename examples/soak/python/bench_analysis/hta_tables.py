"""Prints the tables of HolisticTraceAnalysis for the traces in a directory as one line of JSON, and what they cost.

Usage: hta_tables.py DIRECTORY. The seconds do not contain the imports. The line also has what HTA warned of.
"""

import json
import logging
import resource
import sys
import time
import warnings

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
    idle, _ = analysis.get_idle_time_breakdown(ranks=list(analysis.t.traces), visualize=False)
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
    }
    print(json.dumps(tables, default=lambda number: number.item()))


main()
