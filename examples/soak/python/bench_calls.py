#!/usr/bin/env python3
"""Cost of a mark in a Python program, in nanoseconds, for each round: run by `bench_trace` in a rank, prints one line
of JSON.

    bench_calls.py ROUNDS TIMES
"""

import ctypes
import json
import sys
import time

import taskd
from taskd._native import native

USER = 16
ON, OFF = 2**64 - 1, 0


def loop(times):
    for _ in range(times):
        pass


def bare(times):
    begin, end, code = native.begin, native.end, USER | native.name("bench") << 32
    for _ in range(times):
        end(begin(code))


def public(times):
    start, end = taskd.range_start, taskd.range_end
    for _ in range(times):
        end(start("bench"))


def context(times):
    for _ in range(times):
        with taskd.range("bench"):
            pass


def per_call(function, times):
    begun = time.perf_counter_ns()
    function(times)
    return (time.perf_counter_ns() - begun) / times


def main():
    rounds, times = int(sys.argv[1]), int(sys.argv[2])
    switches = ctypes.c_uint64.from_address(native.switches_address())
    measured = [("bare", bare, ON), ("public", public, ON), ("context", context, ON), ("off", public, OFF)]
    taken = {name: [] for name, _, _ in measured}
    for _ in range(rounds):
        empty = per_call(loop, times)
        for name, function, state in measured:
            switches.value = state
            taken[name].append(per_call(function, times) - empty)
    switches.value = ON
    print(json.dumps({"native": getattr(native, "__name__", type(native).__name__), **taken}), flush=True)


if __name__ == "__main__":
    main()
