"""Bodies of torch's own distributed tests, which come with its wheel, on ranks with taskd's hooks and without: the same
outcomes.

Of torch's harness only the test's class is used: the ranks are those of the other tests here, which have a supervisor
and record.
"""

import os
import sys
import tempfile
import types
import unittest
from datetime import timedelta

SIZE = 3  # ranks; some bodies want more than two
TIMEOUT_SECONDS = 30
TRIES = 3
FEW = """test_DistributedDataParallelCPU test_all_gather_coalesced_full_group test_all_gather_object_default_pg
test_all_reduce_coalesced_full_group_sum test_barrier_timeout_global test_batch_isend_irecv_gloo test_broadcast_full_group
test_destroy_full_group test_gather_full_group test_gather_object_subgroup test_get_rank_size_group test_isend
test_monitored_barrier_gloo test_reduce_group_sum test_scatter_object_list test_send_recv_any_source""".split()


def harness():
    """torch's module of tests. It wants a package for expected texts, which no body that is run here uses."""
    if "expecttest" not in sys.modules:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase, stand_in.ACCEPT, stand_in.is_a_stand_in = unittest.TestCase, False, True
        sys.modules["expecttest"] = stand_in
    for variable, value in (("BACKEND", "gloo"), ("WORLD_SIZE", str(SIZE)), ("TEMP_DIR", tempfile.gettempdir())):
        os.environ.setdefault(variable, value)
    arguments, sys.argv = sys.argv, sys.argv[:1]  # which it parses
    try:
        from torch.testing._internal.distributed import distributed_test
    finally:
        sys.argv = arguments
    return distributed_test


def names(tests):
    return sorted(name for name in dir(tests.DistributedTest._DistTestBase) if name.startswith("test_"))


def body():
    """What became of the body that BODY names, on this rank."""
    import torch.distributed as dist

    tests = harness()
    name, rank = os.environ["BODY"], int(os.environ["RANK"])
    kind = type("Bodies", (tests.TestDistBackend, tests.DistributedTest._DistTestBase), {})
    test = kind(name)
    test.rank, test.file_name = rank, os.path.join(os.environ["TEMP_DIR"], "store")
    dist.init_process_group(
        "gloo",
        init_method="file://" + test.file_name,
        world_size=SIZE,
        rank=rank,
        timeout=timedelta(seconds=TIMEOUT_SECONDS),
    )
    try:
        getattr(test, name)()
        outcome = "passed"
    except unittest.SkipTest as error:
        outcome = "skipped: %s" % error
    except SystemExit as error:
        outcome = "exit %s" % error.code
    except BaseException as error:
        outcome = type(error).__name__  # its text depends on which rank came first, and names ports
    return {"outcome": outcome}


def outcomes(world, failed, few):
    """By body whether its outcomes are equal, or what they are; and how many passed."""
    tests = harness()
    chosen = [name for name in names(tests) if not few or name in FEW]
    found = {"bodies": len(chosen), "passed": 0, "skipped": 0, "differ": {}}
    for name in chosen:
        with_, without = [], []
        for _ in range(TRIES):  # some have more than one outcome by themselves
            with_.append(run(world, failed, name, {"RECORD": "1"}))
            without.append(run(world, failed, name, {"HOOKS": "0", "TASKD_CONTROL": None}))
            if any(one in without for one in with_):
                break
        else:
            found["differ"][name] = {"with": with_, "without": without}
        found["passed"] += ["passed"] * SIZE in without
        found["skipped"] += all(one.startswith(("skipped", "exit")) for one in without[0])
    return found


def run(world, failed, name, variables):
    with tempfile.TemporaryDirectory() as directory:
        for part in ("barrier", "test_dir"):
            os.mkdir(os.path.join(directory, part))
        try:
            with world(SIZE, body, BODY=name, TEMP_DIR=directory, **variables) as ranks:
                return [one["outcome"] for one in ranks.finish()]
        except failed:
            return ["hangs, or ends by a signal"] * SIZE
