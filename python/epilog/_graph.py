"""Which nodes of a graph can be one program: regions, none of which waits for itself by way of another node.

A region ends where a layer of the model ends, at a node that is not understood, and at a barrier: what writes to a tensor, or changes how
what follows is computed. Nothing goes past a barrier in either direction. Tensors that are written to, and what reads them before, are left
to PyTorch.
"""
import operator

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ._positions import Positions
from ._say import IN_PLACE, operation
from ._schema import argument, example
from ._write import NUMBERS, is_plain, layer_of, name_of

CALLS = "call_function", "call_method"
WRITING = frozenset(f for name, f in vars(operator).items() if callable(f) and name.startswith("i") and name[1:] in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "matmul", "concat")) | {operator.setitem, operator.delitem}
ALONE = frozenset((*IN_PLACE, "copy_", "fill_", "zero_", "masked_fill_", "setitem", "__setitem__"))  # which write to their first argument, and read the others
HIDDEN = frozenset(("batch_norm", "instance_norm", "native_batch_norm"))  # which write to what they keep
HARMLESS = frozenset(("_log_api_usage_once", "_assert_async", "_assert", "_check", "_assert_scalar", "_assert_tensor_metadata"))


def written(node):
    """The nodes whose tensors a node may write to."""
    if node.op not in CALLS:
        return []
    name = name_of(node)
    schema = getattr(node.target, "_schema", None)
    first = node.args[:1]
    if node.op == "call_method":
        writes = name.endswith("_") and not name.endswith("__") or name in ("__setitem__", "__iadd__", "__imul__", "__isub__")
    else:
        writes = node.target in WRITING or (name.endswith("_") and not hasattr(operator, name)) or node.kwargs.get("out") is not None or (schema is not None and schema.is_mutable)
    if name in HIDDEN:
        return list(node.all_input_nodes[1:])
    if not (writes or argument(node, "inplace") or argument(node, "max_norm") is not None):  # embeddings that are scaled down where they lie
        return []
    return [n for n in first if isinstance(n, torch.fx.Node)] if name in ALONE else list(node.all_input_nodes)


def in_memory(node):
    """The nodes whose tensors a node reads or writes where they lie: a program's result may lie in another way."""
    return written(node) or (node.all_input_nodes[:1] if name_of(node).startswith("as_strided") else [])


def storage_of(v):
    try:
        return v.untyped_storage()._cdata if isinstance(v, torch.Tensor) else None
    except (RuntimeError, NotImplementedError):
        return None


def storage(node):
    """What tells two tensors that share memory."""
    return storage_of(example(node))


def owners(nodes):
    """The nodes of each memory, in their order: all but the first are views."""
    found = {}
    for n in nodes:
        found.setdefault(storage(n), []).append(n)
    return found


def has_gaps(tensor):
    """Does it leave out memory between its elements, or have some at the same place? Of sizes that elements decide nobody knows."""
    if free_unbacked_symbols(tensor):
        return False
    hint = lambda s: s.node.hint if isinstance(s, torch.SymInt) else s
    packed = 1
    for stride, size in sorted((hint(t), hint(s)) for s, t in zip(tensor.shape, tensor.stride()) if hint(s) != 1):
        if stride != packed:
            return True
        packed *= size
    return False


def way_to(view, same):
    """The nodes by which a view is made of another node with its memory, up to itself: of the first, or of the last that was written to."""
    way = [view]
    while way[0] is not same[0] and not written(way[0]):
        before = [n for n in way[0].all_input_nodes if storage(view) in map(storage_of, parts_of(n))]
        if len(before) != 1:
            return []
        way.insert(0, before[0])
    return way


def parts_of(node):
    return example(node) if isinstance(example(node), (tuple, list)) else [example(node)]


def split_views(graph):
    """Results that are views of an input or of another result, or have gaps in memory, are PyTorch's, made of what they are views of: so they
    share memory as in eager. Returns their nodes, which no program is to have. What else reads the same reads the nodes that were there."""
    output, found = next(n for n in graph.nodes if n.op == "output"), set()
    of, results = owners(graph.nodes), [n for n in output.all_input_nodes if n.op in CALLS and storage(n) is not None]
    for view in results:
        same = of[storage(view)]
        if not has_gaps(example(view)) and not any(n is not view and (n.op not in CALLS or n in results) for n in same):
            continue
        way = way_to(view, same)
        env = {n: n for n in way[:1]}
        for n in way[1:]:
            with graph.inserting_after(n):
                env[n] = graph.node_copy(n, lambda a: env.get(a, a))
            found.add(env[n])
        output.replace_input_with(view, env.get(view, view))
        for n in reversed(way[1:]):
            if not n.users:
                graph.erase_node(n)
    return found


class Regions:
    """left: nodes that no program has, and why. positions: what follows from where it stands. found(): lists of nodes."""

    def __init__(self, graph, views=()):
        self.nodes, self.views, self.left = list(graph.nodes), views, {}
        self.order = {n: i for i, n in enumerate(self.nodes)}
        self.grad = torch.is_grad_enabled()
        self.owners = owners(self.nodes)
        self.barriers = {n for n in self.nodes if self.is_barrier(n)}
        self.epochs, epoch, quiet = {}, 0, False
        for n in self.nodes:
            self.epochs[n] = epoch
            epoch += n in self.barriers
            if name_of(n) == "_set_grad_enabled":
                quiet = self.grad and not n.args[0]
            why = self.why_not(n, quiet)
            if why and n.op in CALLS:
                self.leave(n, why)
        places = {storage(t) for n in self.nodes for t in written(n)}
        self.positions = Positions(graph, {n for p in places for n in self.owners.get(p, ())} if None not in places else set(self.nodes))
        for n in self.positions.known:
            self.left[n] = "written where it is read, by its positions"

    def is_barrier(self, node):
        if node.op not in CALLS or name_of(node) in HARMLESS:
            return False
        targets = written(node)
        if targets:
            return not (name_of(node) in IN_PLACE and self.is_dead(node, targets[0]))
        return not isinstance(example(node), (torch.Tensor, tuple, list, *NUMBERS))

    def is_dead(self, node, target):
        """Is the tensor that is written to read by nobody else from here on?"""
        same = self.owners.get(storage(target), []) if storage(target) is not None else None
        if same is None or any(n.op not in CALLS for n in same):
            return False
        at = self.order[node]
        return not any(self.order[u] > at for n in same if self.order[n] < at for u in n.users)

    def leave(self, node, why):
        """The node is left to PyTorch. So is what shares memory with a tensor that it writes to, or reads that before."""
        self.left.setdefault(node, why)
        for target in in_memory(node):
            for n in self.owners.get(storage(target), [target]) if storage(target) is not None else [target]:
                for u in (n, *n.users):
                    if u.op in CALLS and (u is n or self.order[u] <= self.order[node]):
                        self.left.setdefault(u, "a tensor that is written in place" if written(node) else "an operation that reads the memory layout")

    def why_not(self, node, quiet):
        if node.op not in CALLS:
            return "no operation"
        v = example(node)
        if node in self.barriers:
            return "in place" if written(node) else "not an operation on tensors"
        if node in self.views:
            return "a result that is a view"
        if operation(node) is None:
            return f"unknown: {name_of(node)}"
        parts = [t for t in parts_of(node) if t is not None]
        if not parts or not all(is_plain(t) for t in parts):
            kinds = sorted({str(t.dtype).removeprefix("torch.") if isinstance(t, torch.Tensor) else type(t).__name__ for t in parts})
            return f"a result of type {', '.join(kinds)}"
        return "no gradients here" if quiet else None

    def is_good(self, node):
        return node.op in CALLS and node not in self.left

    def found(self):
        levels, keys = self.levels()
        root = {n: n for n in self.nodes}

        def top(n):
            while root[n] is not n:
                n = root[n]
            return n
        for n in self.nodes:
            for p in n.all_input_nodes:
                if self.is_good(n) and self.is_good(p) and (levels[n], keys[n]) == (levels[p], keys[p]):
                    root[top(n)] = top(p)
        together = {}
        for n in self.nodes:
            if self.is_good(n):
                together.setdefault(top(n), []).append(n)
        return list(together.values())

    def levels(self):
        """A number for each node that is larger than that of whatever it comes after by way of another region or node, and as large as that of
        what it is for allows."""
        levels, keys = {}, {n: (self.epochs[n], layer_of(n)[0]) for n in self.nodes}
        for n in self.nodes:
            good = self.is_good(n)
            levels[n] = max([levels[p] + (good and p.op in CALLS and (not self.is_good(p) or keys[p] != keys[n]))
                             for p in n.all_input_nodes if not isinstance(example(p), NUMBERS)] or [0])
        for n in reversed(self.nodes):
            if self.is_good(n) and n.users and not any(u.op == "output" for u in n.users):
                levels[n] = max(levels[n], min(levels[u] - (self.is_good(u) and keys[u] != keys[n]) for u in n.users))
        return levels, keys
