"""Training on a simulated NPU: a stand-in for libmspti.so generates the records of a real one.

The loop is that of a training that marks its steps, as torch_npu and MindSpore do by mstx. It does not use taskd. With
--flood it only generates marker records, at the requested rate.
"""

import argparse
import ctypes
import json
import os
import time

u32, u64, text = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char_p


def functions(library):
    """Returns the stand-in's functions, with their types."""

    def function(name, result, *arguments):
        found = getattr(library, "standin_" + name)
        found.restype, found.argtypes = result, arguments
        return found

    return {
        "start": function("start", u64, text, text),
        "start_on": function("start_on", u64, text, text, u32, u32),
        "end": function("end", None, u64),
        "end_on": function("end_on", None, u64, u32, u32),
        "kernel": function("kernel", None, text, u32, u32, u64, u64),
        "api": function("api", None, text, u64, u64),
        "copy": function("copy", None, ctypes.c_int, u64, u32, u32, u64, u64),
        "communication": function("communication", None, text, text, ctypes.c_int, u64, u32, u32, u64),
        "ranges": function("ranges", None, text, text, u64, u64),
        "recorded": function("recorded", u64),
        "dropped": function("dropped", u64),
        "calls_from_callbacks": function("calls_from_callbacks", u64),
    }


ALL_REDUCE = json.dumps(
    {"streamId": "8", "count": "1048576", "dataType": "bfp16", "opName": "HcclAllReduce", "groupName": "group_name_0"}
).encode()
DEVICE, COMPUTE, COMMUNICATE = 0, 7, 8


def step(npu, number):
    """One step: the marks of the program, and the simulated activity of its device."""
    whole = npu["start_on"](b"step %d" % number, b"default", DEVICE, COMPUTE)
    loading = npu["start"](b"dataloader", b"default")
    npu["copy"](0, 1 << 20, DEVICE, COMPUTE, 90_000, number)
    npu["end"](loading)
    forward = npu["start_on"](b"forward", b"default", DEVICE, COMPUTE)
    for layer in range(8):
        correlation = number * 100 + layer
        npu["api"](b"aclrtLaunchKernelWithHostArgs", 4_000, correlation)
        npu["kernel"](b"MatMulV2" if layer % 2 else b"LayerNorm", DEVICE, COMPUTE, 200_000, correlation)
    npu["end_on"](forward, DEVICE, COMPUTE)
    reduce = npu["start_on"](ALL_REDUCE, b"communication", DEVICE, COMMUNICATE)
    npu["communication"](b"hcom_allReduce__0", b"group_name_0", 11, 1 << 20, DEVICE, COMMUNICATE, 300_000)
    npu["end_on"](reduce, DEVICE, COMMUNICATE)
    if number % 10 == 0:
        npu["end"](npu["start"](b"save_checkpoint", b"default"))
    npu["end"](npu["start"](b"optimizer", b"mine"))
    npu["end_on"](whole, DEVICE, COMPUTE)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", required=True, help="where a file called stop ends the training")
    parser.add_argument("--flood", type=float, default=0, help="seconds of marker records, and nothing else")
    parser.add_argument("--rate", type=int, default=0, help="marker records a second; 0: as many as can be")
    parser.add_argument(
        "--collectives", action="store_true", help="the flood's ranges have the long texts of collectives"
    )
    options = parser.parse_args()
    npu = functions(ctypes.CDLL(os.environ["TASKD_MSPTI_LIB"]))
    go, stop = (os.path.join(options.dir, name) for name in ("go", "stop"))
    while options.flood and not os.path.exists(go):
        time.sleep(0.01)
    begun, number = time.monotonic(), 0
    while options.flood and time.monotonic() - begun < options.flood:
        name, domain = (ALL_REDUCE, b"communication") if options.collectives else (b"forward", b"default")
        npu["ranges"](name, domain, max(options.rate // 20, 1000), options.rate)
    took = time.monotonic() - begun
    while not os.path.exists(stop):
        if not options.flood:
            number += 1
            print("step", number, time.time_ns(), flush=True)
            step(npu, number)
        time.sleep(0.005)
    counts = {name: npu[name]() for name in ("recorded", "dropped", "calls_from_callbacks")}
    print("stand-in", json.dumps({"seconds": took, **counts}), flush=True)


main()
