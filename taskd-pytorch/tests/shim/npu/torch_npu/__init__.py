"""A stand-in for torch_npu: there is no NPU, no profiler and no stream. It only has the marks, and reports that."""

import sys
import types

import torch

IS_STAND_IN = True


class mstx:
    """`torch.npu.mstx` as far as scripts call it. Like the real one, it returns 0 while no profiler listens."""

    calls = []
    ids = 0  # a profiler that listens numbers the ranges from here
    is_listening = False

    @staticmethod
    def range_start(message, stream=None, domain="default"):
        mstx.calls.append(("start", message, stream, domain))
        mstx.ids += mstx.is_listening
        return mstx.ids if mstx.is_listening else 0

    @staticmethod
    def range_end(range_id, domain="default"):
        mstx.calls.append(("end", range_id, domain))

    @staticmethod
    def mark(message, stream=None, domain="default"):
        mstx.calls.append(("mark", message, stream, domain))


npu = types.ModuleType("torch.npu")
npu.mstx, npu.current_stream = mstx, lambda: "no stream: this is a stand-in"
torch.npu = sys.modules["torch.npu"] = npu
