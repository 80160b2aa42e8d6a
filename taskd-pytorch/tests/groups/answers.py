"""Values that a program gets from many calls of its groups: the same, with the hook and without."""

import copy
import pickle
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d as c10d

import ranks

try:
    from torch.distributed.device_mesh import init_device_mesh
except ImportError:  # torch 2.1 keeps it elsewhere
    init_device_mesh = None

warnings.simplefilter("ignore")


def tried(ask, *args):
    """The answer as text, or the exception."""
    try:
        answer = ask(*args)
    except Exception as error:
        return "%s: %s" % (type(error).__name__, str(error).split("\n")[0].split(" object at 0x")[0])
    return answer.tolist() if isinstance(answer, torch.Tensor) else str(answer).split(" object at 0x")[0]


def of_group(group):
    cpu = torch.device("cpu")
    asked = {
        "get_backend": lambda: dist.get_backend(group),
        "get_backend_config": lambda: dist.get_backend_config(group),
        "name": group.name,
        "rank, size": lambda: (group.rank(), group.size(), dist.get_rank(group), dist.get_world_size(group)),
        "ranks": lambda: dist.get_process_group_ranks(group),
        "class": lambda: (type(group), type(group).__name__, type(group).__module__),
        "text": lambda: repr(group),
        "is one": lambda: isinstance(group, dist.ProcessGroup),
        "type": lambda: (
            type(group) == dist.ProcessGroup,
            type(group) in (int, dist.ProcessGroup),
            dist.ProcessGroup == type(group),
        ),
        "is no other": lambda: (type(group) != dist.ProcessGroup, type(group) == dist.Store, type(group) == type),
        "backend": lambda: type(group._get_backend(cpu)),
        "backend is": lambda: isinstance(group._get_backend(cpu), dist.ProcessGroupGloo),
        "no cuda": lambda: group._get_backend(torch.device("cuda")),
        "backend name": lambda: group._get_backend_name(),
        "backend rank": lambda: group._get_backend(cpu).rank(),
        "devices": lambda: sorted(map(str, group._device_types)),
        "bound": lambda: group.bound_device_id,
        "names": lambda: (group.group_name, group.group_desc),
        "store": lambda: type(group.get_group_store()),
        "hooks": lambda: group._has_hooks(),
        "options": lambda: type(group.options),
        "sequence": lambda: group._get_sequence_number_for_group(),
        "set_timeout": lambda: group.set_timeout(timedelta(seconds=100)),
        "pg_config": lambda: dist.distributed_c10d._get_pg_config(group),
        "tag": lambda: c10d._get_group_tag(group),
        "resolved": lambda: c10d._resolve_process_group(group.group_name) is group,
        "found": lambda: (
            c10d._find_pg_by_ranks_and_tag(c10d._get_group_tag(group), dist.get_process_group_ranks(group)) is group
        ),
        "unboxed": lambda: dist.ProcessGroup.unbox(group.boxed()) is group,
        "pickled": lambda: pickle.dumps(group),
        "copied": lambda: copy.copy(group),
        "deep copied": lambda: copy.deepcopy(group),
        "hashed": lambda: {group: 1}[group],
        "coalescing": lambda: group._start_coalescing(cpu),
        "no method": lambda: group.no_such_method,
        "split": lambda: dist.split_group(group, [[0], [1]]),
        "on completion": lambda: group._register_on_completion_hook(print),
    }
    return {what: tried(ask) for what, ask in asked.items()}


def collectives(rank, world, group):
    """Every operation once, with what it leaves behind."""
    me = torch.arange(4.0) + 10 * dist.get_rank(group)
    size, mine = dist.get_world_size(group), dist.get_rank(group)
    members = dist.get_process_group_ranks(group)
    first, last = members[0], members[-1]
    each = [torch.zeros(4) for _ in range(size)]
    flat = torch.zeros(4 * size)
    asked = {
        "all_reduce": lambda: dist.all_reduce(t(me), group=group) or out[0],
        "all_reduce max": lambda: dist.all_reduce(t(me), op=dist.ReduceOp.MAX, group=group) or out[0],
        "all_reduce async": lambda: dist.all_reduce(t(me), group=group, async_op=True).wait() and out[0],
        "future": lambda: dist.all_reduce(t(me), group=group, async_op=True).get_future().wait()[0],
        "then": lambda: (
            dist.all_reduce(t(me), group=group, async_op=True).get_future().then(lambda f: f.value()[0] * 2).wait()
        ),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([t(me), me.clone()], group=group) or out[0],
        "broadcast": lambda: dist.broadcast(t(me), last, group=group) or out[0],
        "reduce": lambda: dist.reduce(t(me), first, group=group) or (out[0] if mine == 0 else "not the root"),
        "all_gather": lambda: dist.all_gather(each, me, group=group) or torch.cat(each),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(flat, me, group=group) or flat,
        "all_gather_coalesced": lambda: dist.all_gather_coalesced([each], [me], group=group) or torch.cat(each),
        "gather": lambda: dist.gather(me, each if mine == 0 else None, first, group=group) or torch.cat(each),
        "scatter": lambda: (
            dist.scatter(t(me), [me + i for i in range(size)] if mine == 0 else None, first, group=group) or out[0]
        ),
        "reduce_scatter": lambda: dist.reduce_scatter(t(me), [me + i for i in range(size)], group=group) or out[0],
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(t(me), me.repeat(size), group=group) or out[0],
        "all_to_all_single": lambda: dist.all_to_all_single(flat, me.repeat(size) + mine, group=group) or flat,
        "all_to_all": lambda: dist.all_to_all(each, [me + i for i in range(size)], group=group) or torch.cat(each),
        "barrier": lambda: dist.barrier(group=group),
        "barrier async": lambda: dist.barrier(group=group, async_op=True).wait(),
        "monitored_barrier": lambda: dist.monitored_barrier(
            group=group, timeout=timedelta(seconds=100), wait_all_ranks=True
        ),
        "all_gather_object": lambda: objects(dist.all_gather_object, [None] * size, {"rank": rank}, group),
        "broadcast_object_list": lambda: objects(dist.broadcast_object_list, [rank, "x"], first, group),
        "scatter_object_list": lambda: (
            dist.scatter_object_list(got, list("abcd")[:size] if mine == 0 else None, first, group) or got
        ),
        "gather_object": lambda: dist.gather_object(rank, [None] * size if mine == 0 else None, first, group),
        "functional all_reduce": lambda: functional.all_reduce(me, "sum", group) + 0,
        "functional all_gather": lambda: functional.all_gather_tensor(me, 0, group) + 0,
        "functional reduce_scatter": lambda: functional.reduce_scatter_tensor(me.repeat(size), "sum", 0, group) + 0,
        "functional broadcast": lambda: functional.broadcast(me, 0, group) + 0,
        "functional all_to_all": lambda: functional.all_to_all_single(me.repeat(size), None, None, group) + 0,
        "functional coalesced": lambda: functional.all_reduce_coalesced([me, me + 1], "sum", group)[1] + 0,
        "functional permute": lambda: functional.permute_tensor(me, [(i + 1) % size for i in range(size)], group) + 0,
        "coalescing manager": lambda: coalesced(me, group),
        "coalescing gather": lambda: coalesced_gather(me, size, group),
        "sequence": lambda: group._get_sequence_number_for_group(),
        "wrong shape": lambda: dist.all_gather(each, torch.zeros(3), group=group),
        "wrong type": lambda: dist.all_reduce("no tensor", group=group),
        "wrong root": lambda: dist.broadcast(me, 99, group=group),
        "no such op": lambda: dist.all_reduce(t(me), op=dist.ReduceOp.AVG, group=group),
        "raw": lambda: group.allreduce(t(me)).wait() and out[0],
        "raw, with an operation": lambda: group.allreduce(t(me), dist.ReduceOp.MIN).wait() and out[0],
        "raw, by names": lambda: group.allreduce(tensors=[t(me)], opts=dist.AllreduceOptions()).wait() and out[0],
        "raw, in another order": lambda: (
            group.allreduce(opts=dist.AllreduceOptions(), tensors=[t(me)]).wait() and out[0]
        ),
        "raw, no tensor": lambda: group.allreduce([t(me), "no tensor"]),
        "raw broadcast": lambda: group.broadcast(t(me), 0).wait() and out[0],
        "raw gather": lambda: group.allgather([each], [me]).wait() and torch.cat(each),
        "raw nonsense": lambda: group.allreduce(),
        "work": lambda: work_of(dist.all_reduce(t(me), group=group, async_op=True)),
    }
    out, got = [None], [None]

    def t(tensor):
        out[0] = tensor.clone()
        return out[0]

    return {what: tried(ask) for what, ask in asked.items()}


def objects(collective, things, value, group):
    collective(things, value, group)
    return things


def coalesced(me, group):
    tensors = [me.clone(), me + 1]
    with c10d._coalescing_manager(group):
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    return torch.cat(tensors)


def coalesced_gather(me, size, group):
    outputs = [torch.zeros(4 * size), torch.zeros(4 * size)]
    with c10d._coalescing_manager(group, async_ops=True) as manager:
        for output in outputs:
            dist.all_gather_into_tensor(output, me, group=group)
    manager.wait()
    return torch.cat(outputs)


def work_of(work):
    done = work.wait()
    return done, type(work), work.is_completed(), work.is_success(), work.result(), isinstance(work, dist.Work)


def between_two(rank, world):
    tensor, right, left = torch.full((3,), float(rank)), (rank + 1) % world, (rank - 1) % world
    got = torch.zeros(3)
    answers = {}
    ops = [dist.P2POp(dist.isend, tensor, right), dist.P2POp(dist.irecv, got, left)]
    works = dist.batch_isend_irecv(ops)
    answers["batch"] = [str(type(work)) for work in works] + [work.wait() for work in works] + got.tolist()
    if rank % 2 == 0:
        dist.send(tensor, right, tag=5)
        answers["from"] = dist.recv(got, tag=6)
    else:
        answers["from"] = dist.recv(got, tag=5)
        dist.send(tensor, left, tag=6)
    answers["got"] = got.tolist()
    work = dist.isend(tensor, right)
    received = dist.irecv(got, left)
    answers["irecv"] = [work.is_completed(), received.wait(), work.wait(), received.is_completed(), work.is_completed()]
    answers["source"] = tried(received._source_rank)
    answers["to oneself"] = tried(dist.send, tensor, rank)
    answers["objects"] = tried(passed_objects, rank, right, left)
    return answers


def passed_objects(rank, right, left):
    things = [None]
    if rank % 2 == 0:
        dist.send_object_list([{"from": rank}], right)
        dist.recv_object_list(things, left)
    else:
        dist.recv_object_list(things, left)
        dist.send_object_list([{"from": rank}], right)
    return things


def groups(rank, world):
    """Groups of all makes, and their ends."""
    half = [dist.new_group([0, 1]), dist.new_group(range(2, world))][rank // 2]
    local, _ = dist.new_subgroups(group_size=2)
    alone = dist.new_group([rank], use_local_synchronization=True)
    answers = {"world": of_group(dist.group.WORLD), "default": c10d._get_default_group() is dist.group.WORLD}
    named = {"half": half, "local": local, "alone": alone}
    if init_device_mesh:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        named["outer"], named["inner"] = mesh.get_group("outer"), mesh["inner"].get_group()
        answers["mesh"] = str(mesh), mesh.get_coordinate(), mesh.get_local_rank("inner"), tried(pickle.dumps, mesh)[:40]
    for name, group in named.items():
        answers[name] = of_group(group)
        answers[name + " collectives"] = collectives(rank, world, group)
    answers["world collectives"] = collectives(rank, world, dist.group.WORLD)
    first = dist.new_group([0])  # of which most are no members
    answers["no member"] = tried(dist.all_reduce, torch.ones(1), dist.ReduceOp.SUM, first), tried(dist.get_rank, first)
    answers["between two"] = between_two(rank, world)
    answers["count"] = (
        dist.get_pg_count() if hasattr(dist, "get_pg_count") else 0,
        sorted(map(str, c10d._world.pg_names.values())),
    )
    answers["backends"] = sorted(map(str, c10d._world.pg_backend_config.values()))
    answers["tags"] = {str(tag): len(all_of) for tag, all_of in sorted(c10d._world.tags_to_pg.items())}
    dist.destroy_process_group(half)
    answers["destroyed"] = tried(dist.get_backend, half), tried(dist.all_reduce, torch.ones(1), dist.ReduceOp.SUM, half)
    dist.barrier()
    dist.destroy_process_group()
    answers["over"] = dist.is_initialized(), tried(dist.all_reduce, torch.ones(1))
    return answers


def main(rank, world, native):
    answers = groups(rank, world)
    if native is not None:
        unended = [record for record in native.records if record["end"] is None]
        return {"answers": answers, "records": len(native.records), "unended": unended, "exceptions": native.exceptions}
    return {"answers": answers}


if __name__ == "__main__":
    ranks.report({hook: ranks.run(main, 4, hook) for hook in (ranks.OFF, ranks.QUIET, ranks.ON)})
