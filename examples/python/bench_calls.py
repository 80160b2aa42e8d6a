#!/usr/bin/env python3
"""What a mark costs a Python program, in nanoseconds: run by `bench_trace` in a rank, prints one line of JSON."""

import json
import sys
import time

import taskd
from taskd._native import native

USER = 16


def per_call(function, times):
    """The least of five rounds: what else runs here only ever adds."""
    rounds = []
    for _ in range(5):
        begun = time.perf_counter_ns()
        function(times)
        rounds.append((time.perf_counter_ns() - begun) / times)
    return min(rounds)


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


def main():
    times = int(sys.argv[1])
    empty = per_call(loop, times)
    cost = {f.__name__: per_call(f, times) - empty for f in (bare, public, context)}
    print(json.dumps({"native": type(native).__name__, "is_on": native.is_on(USER), **cost}), flush=True)


if __name__ == "__main__":
    main()
