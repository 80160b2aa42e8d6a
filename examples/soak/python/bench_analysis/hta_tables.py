"""Prints the tables of HolisticTraceAnalysis for the traces in a directory as one line of JSON, and what they cost.

Usage: hta_tables.py DIRECTORY. The seconds do not contain the imports.
"""

import json
import resource
import sys
import time

from hta.trace_analysis import TraceAnalysis


def usage() -> tuple[float, int]:
    """Return CPU seconds and the peak memory in KiB of the largest process."""
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in parts), max(part.ru_maxrss for part in parts)


def main() -> None:
    """Load the traces and compute the tables."""
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
        "temporal": temporal.to_dict("records"),
        "overlap": overlap.to_dict("records"),
        "types": types.to_dict("records"),
        "kernels": kernels.to_dict("records"),
        "idle": idle[["rank", "stream", "idle_category", "idle_time"]].to_dict("records"),
    }
    print(json.dumps(tables, default=lambda number: number.item()))


main()
