"""A stand-in for libtaskd: it keeps in a list what the group hook records."""

import time

FIELDS = ("name", "op", "data_type", "group", "peer", "elements", "bytes", "sequence")


class Native:
    is_a_stand_in = True

    def __init__(self, on):
        self.on = on
        self.names = [""]
        self.records = []  # by number of the range, less one
        self.exceptions = {}
        self.kinds = set()

    def name(self, text):
        self.names.append(text)
        return len(self.names) - 1

    def is_on(self, kind):
        return self.on

    def begin_communication(self, *values):
        record = dict(zip(FIELDS, values), begin=time.monotonic_ns(), end=None)
        record["name"], record["group"] = self.names[record["name"]], self.names[record["group"]]
        self.records.append(record)
        return len(self.records)

    def end(self, range_id):
        record = self.records[range_id - 1]
        if record["end"] is not None:
            raise AssertionError("ended twice: %s" % record)
        record["end"] = time.monotonic_ns()

    def hooked(self, kind):
        self.kinds.add(kind)

    def except_(self, kind, reason):
        self.exceptions[kind] = reason


def install(on):
    """Puts the group hook in place, with its kind switched on or off."""
    import torch.distributed.distributed_c10d as module
    from taskd.torch import framework  # noqa: F401  (it registers with torch's compiler, as in a rank)
    from taskd.torch.process_group import wrapper

    native = Native(on)
    wrapper.install(module, native)
    return native
