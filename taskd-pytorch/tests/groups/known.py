"""What the installed torch has that this package does not know of: methods of process groups and their backends, and
public functions of torch.distributed. And whether all of its collective operations are recorded, each under its own."""

import inspect
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import ranks
from taskd.torch.process_group.operations import CALLS
from taskd.torch.process_group.wrapper import MAKERS, OWN

warnings.simplefilter("ignore")

# Methods that are no operation between ranks, or none that a hook has to know of: questions, settings, and what ends a
# group.
METHODS = set(
    """CUSTOM GLOO MPI NCCL UCC UNDEFINED XCCL NONE HCCL
    _add_ephemeral_timeout _backend_id _device_types _enable_collectives_timing _end_coalescing _get_backend _get_backend_name
    _get_sequence_number_for_group _has_hooks _register_backend _register_on_completion_hook _set_default_backend _set_group_desc
    _set_group_name _set_group_uid _set_sequence_number_for_group _start_coalescing _wait_for_pending_works abort bound_device_id
    get_backend get_group_store get_reconfigure_handle group_desc group_name name options register_abort_hook register_post_hook
    register_pre_hook set_timeout shutdown supports_abort_hooks supports_completion_hooks supports_reconfigure supports_window
    unregister_abort_hook unregister_post_hook unregister_pre_hook use_pg_for_symm_mem_rendezvous setUsePgForSymmMemRendezvous
    Device _Options _end_time_estimate _set_default_timeout _start_time_estimate _supports_time_estimate allocate_tensor create_default_device
    create_device eager_connect_single_device get_error mem_allocator memory_stats resume suspend supports_coalescing supports_shrinking
    supports_splitting supports_tensor_alloc supports_time_estimate""".split()
)
# Operations that are not recorded: one-sided windows and what changes a group's members, which gloo has not; and a
# sparse sum, which only a backend is asked for, by its group's `allreduce`.
UNRECORDED = {"new_window", "reconfigure", "merge", "shrink", "split", "allreduce_sparse"}

# Public functions that are no operation between ranks.
FUNCTIONS = set(
    """breakpoint destroy_process_group get_backend get_backend_config get_backend_impl get_debug_level get_default_backend_for_device
    get_global_rank get_group_rank get_node_local_rank get_pg_count get_process_group_ranks get_rank get_world_size init_device_mesh
    init_process_group is_available is_backend_available is_gloo_available is_initialized is_mpi_available is_nccl_available
    is_torchelastic_launched is_ucc_available is_xccl_available new_group new_subgroups new_subgroups_by_enumeration record_comm
    register_rendezvous_handler rendezvous set_debug_level set_debug_level_from_env set_timeout shrink_group split_group
    supports_complex get_pg_config""".split()
)


def calls(rank):
    """By public function that is one, a call of it."""
    me, peer = torch.arange(4.0), 1 - rank
    each, flat, root = [torch.zeros(4), torch.zeros(4)], torch.zeros(8), rank == 0
    found = {
        "all_gather": lambda: dist.all_gather(each, me),
        "all_gather_coalesced": lambda: dist.all_gather_coalesced([each], [me]),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(flat, me),
        "all_gather_object": lambda: dist.all_gather_object([None, None], rank),
        "all_gather_single": lambda: dist.all_gather_single(flat, me),
        "all_reduce": lambda: dist.all_reduce(me),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([me]),
        "all_to_all": lambda: dist.all_to_all(each, [me, me]),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.zeros(8), torch.ones(8)),
        "barrier": dist.barrier,
        "batch_isend_irecv": lambda: [
            one.wait()
            for one in dist.batch_isend_irecv([dist.P2POp(dist.isend, me, peer), dist.P2POp(dist.irecv, each[0], peer)])
        ],
        "broadcast": lambda: dist.broadcast(me, 0),
        "broadcast_object_list": lambda: dist.broadcast_object_list([rank], 0),
        "gather": lambda: dist.gather(me, each if root else None, 0),
        "gather_into_tensor": lambda: dist.gather_into_tensor(me, flat if root else None, 0),
        "gather_object": lambda: dist.gather_object(rank, [None, None] if root else None, 0),
        "gather_single": lambda: dist.gather_single(me, flat if root else None, 0),
        "irecv": lambda: dist.irecv(me, 0).wait() if rank else dist.isend(me, 1).wait(),
        "isend": lambda: dist.irecv(me, 0).wait() if rank else dist.isend(me, 1).wait(),
        "monitored_barrier": lambda: dist.monitored_barrier(timeout=timedelta(seconds=100)),
        "recv": lambda: dist.recv(me, 0) if rank else dist.send(me, 1),
        "recv_object_list": lambda: dist.recv_object_list([None], 0) if rank else dist.send_object_list([1], 1),
        "reduce": lambda: dist.reduce(me, 0),
        "reduce_scatter": lambda: dist.reduce_scatter(me, [me, me]),
        "reduce_scatter_single": lambda: dist.reduce_scatter_single(me, torch.ones(8)),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(me, torch.ones(8)),
        "scatter": lambda: dist.scatter(me, each if root else None, 0),
        "scatter_object_list": lambda: dist.scatter_object_list([None], [1, 2] if root else None, 0),
        "send": lambda: dist.recv(me, 0) if rank else dist.send(me, 1),
        "send_object_list": lambda: dist.recv_object_list([None], 0) if rank else dist.send_object_list([1], 1),
    }
    return {name: call for name, call in found.items() if hasattr(dist, name)}


def main(rank, world, native):
    recorded = {}
    for name, call in calls(rank).items():
        before = len(native.records)
        try:
            call()
            failure = None
        except (RuntimeError, NotImplementedError, ValueError) as error:  # gloo has it not
            failure = str(error).split("\n")[0]
        recorded[name] = {"operations": [one["name"] for one in native.records[before:]], "failure": failure}
    functions = [name for name in dir(dist) if name[0].islower() and is_function(getattr(dist, name))]
    return {
        "recorded": recorded,
        "unknown functions": sorted(set(functions) - set(recorded) - FUNCTIONS),
        "unknown methods": unknown(dist.ProcessGroup) + unknown(c10d.Backend) + unknown(dist.ProcessGroupGloo),
        "exceptions": native.exceptions,
    }


def is_function(what):
    return callable(what) and not inspect.isclass(what) and not inspect.ismodule(what)


def unknown(kind):
    known = set(CALLS) | MAKERS | OWN | METHODS | UNRECORDED
    return sorted(
        "%s.%s" % (kind.__name__, name) for name in dir(kind) if not name.startswith("__") and name not in known
    )


if __name__ == "__main__":
    ranks.report(ranks.run(main, 2, ranks.ON))
