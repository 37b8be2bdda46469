"""torch.compile(model, backend="epilog"): regions of a graph as programs, the rest by Inductor.

The graph is dynamo's, before autograd: what a program is, it is with its derived backward. A node that the language cannot say is left
where it is, and told of in the report.
"""
import collections
import logging
import operator
import os
import re
import traceback

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ._graph import CALLS, Regions, split_views
from ._library import EpilogError
from ._loss import split_losses
from ._say import HEAVY, VIEWS, operation
from ._schema import argument, example
from ._write import NARROW, Failed, Mistaken, Program, Refused, layer_of, name_of

log = logging.getLogger("epilog")
CLIFF = 2  # times what PyTorch moves, operation by operation: a plan beyond that is one that fell apart
PARTS = r"^part \d+ of \d+, (.*)$"  # lines of a plan's description
SMALL = 1 << 24  # bytes that are not worth a look
recent = collections.deque(maxlen=32)  # kernels that equal layers, and the first run, find: nobody else has them until then


class Graph:
    """What became of one graph: its nodes, the programs, and the nodes that were left, each with a reason."""

    def __init__(self, nodes, programs, left):
        self.nodes, self.left = len(nodes), collections.Counter(f"{name_of(n)}: {w}" if name_of(n) not in w else w for n, w in left.items())
        self.programs, self.inside = programs, sum(len(p.nodes) for p in programs)
        within = {n for p in programs for n in p.nodes}
        self.flops, self.flops_inside = sum(map(flops, nodes)), sum(flops(n) for n in nodes if n in within)
        self.layers = [", ".join(sorted({layer_of(n)[0] or "" for n in p.nodes} - {""})) for p in programs]

    def __str__(self):
        share = f", {self.flops_inside / self.flops:.1%} of the flops" if self.flops else ""
        lines = [f"{self.nodes} operations, {self.inside} of them in {len(self.programs)} programs{share}"]
        same = collections.defaultdict(list)
        for program, layer in zip(self.programs, self.layers):
            same[program.text].append((program, layer))
        for text, found in same.items():
            where = "; ".join(layer for _, layer in found if layer)
            lines.append(f"\n{len(found[0][0].nodes)} operations{' of ' + where if where else ''}:\n{text.rstrip()}")
            lines += [f"{way}: {kernels(plan)}" for way, plan in zip(("forward", "backward"), found[0][0].planned())]
        lines += ["", "left to PyTorch:"] + [f"{count:5} {why}" for why, count in self.left.most_common()]
        return "\n".join(lines)


def kernels(plan):
    """What a plan is, in a line."""
    text = plan.kernel.describe()
    kinds = re.findall(PARTS, text, re.M)
    return f"{len(kinds)} kernels ({', '.join(kinds)}), {moved(plan) / 1e6:.3g} MB moved" if kinds else "1 kernel"


class Report:
    """The graphs that a model became."""

    def __init__(self):
        self.graphs = []

    def __str__(self):
        return "\n\n".join(f"graph {i + 1}: {g}" for i, g in enumerate(self.graphs)) or "no graph"


def sizes(tensor):
    """Those that open ones have at first."""
    return torch.Size([s if isinstance(s, int) else s.node.hint for s in tensor.shape])


def flops(node):
    """Multiplications and additions of a product; 0 where a size is not known."""
    given = [*node.args, *node.kwargs.values()]
    given = [example(a) for a in given if isinstance(a, torch.fx.Node) and isinstance(example(a), torch.Tensor)]
    made, name = example(node), operation(node) or name_of(node)
    if not isinstance(made, torch.Tensor) or any(free_unbacked_symbols(t) for t in (made, *given)):
        return 0
    if name in ("linear", "matmul", "bmm") or "grouped_mm" in name:
        return 2 * sizes(made).numel() * sizes(given[0])[-1]
    if name in ("addmm", "baddbmm"):
        return 2 * sizes(made).numel() * sizes(given[1])[-1]
    if name == "scaled_dot_product_attention":
        return 4 * sizes(given[0]).numel() * sizes(given[1])[-2]
    if name in ("conv1d", "conv2d", "conv3d"):
        return 2 * sizes(made).numel() * sizes(given[1])[1:].numel()
    return 0


def is_worth_it(nodes):
    """Is there more in a region than a few steps by element?"""
    names = [operation(n) for n in nodes]
    return any(n in HEAVY for n in names) or sum(n not in VIEWS for n in names) > 2


def programs_of(regions):
    """The regions' programs. A node that turns out not to be said is left, and what is around it looked at again."""
    known = {}
    while True:
        found, again = [], False
        for nodes in regions.found():
            key = tuple(nodes)
            try:
                if not is_worth_it(nodes):
                    raise Failed(None, "too little work for a program")
                if key not in known:
                    known[key] = program_of(nodes, regions.positions)
                found.append(known[key])
            except Failed as failed:
                again = True
                if isinstance(failed, Mistaken):
                    complain(failed.__cause__, failed.node.format_node() if failed.node else f"{len(nodes)} operations")
                for n in [failed.node] if failed.node in nodes else nodes:
                    regions.leave(n, failed.why)
        if not again:
            return found


def complain(why, what):
    """Of a mistake of the backend's own: plain torch.compile would not have raised it. EPILOG_BACKEND_STRICT=1 does."""
    if os.environ.get("EPILOG_BACKEND_STRICT", "0") not in ("", "0"):
        raise why
    place = traceback.extract_tb(why.__traceback__)[-1]
    log.warning("epilog left a part of the model to PyTorch because of its own bug: %s. Results are right, but slower. Please report it with "
                "the model and this line: %s: %s (%s:%s). EPILOG_BACKEND_STRICT=1 raises it.", what, type(why).__name__, why, os.path.basename(place.filename), place.lineno)


def program_of(nodes, positions):
    """The program of a region. A part of a weight may have an axis that no tensor declares: it is cut before the program then."""
    try:
        try:
            return checked(nodes, positions, True)
        except Refused as refused:
            if not refused.stretched:
                raise
            return checked(nodes, positions, False)
    except Failed:
        raise
    except Exception as why:
        raise Mistaken(None, f"a bug of the backend: {type(why).__name__}: {why}") from why


def checked(nodes, positions, stretches):
    """The program of a region, for which there are kernels."""
    program = Program(nodes, positions, stretches)
    own = next((n for n in nodes if has_own_kernel(n, positions)), None)
    try:
        for draft in (True, False) if own is not None else (False,):  # what is not worth it is not compiled
            plans = program.planned(draft)
            if own is not None and any("attention" not in parts(plan) for plan in plans):
                raise Failed(own, "attention whose scores would be stored in memory")
    except EpilogError as why:
        raise Refused(None, f"there is no kernel: {why}", program.stretched)
    recent.extend(plan.kernel for plan in plans if plan.kernel not in recent)
    plain = sum(memory(n) + sum(map(memory, n.all_input_nodes)) for n in nodes if operation(n) not in VIEWS)
    for plan, times in zip(plans, (1, 2)):  # a backward reads and writes twice what its forward does
        if moved(plan) > max(CLIFF * times * plain, SMALL):
            raise Failed(None, f"its plan moves {moved(plan) / 1e6:.3g} MB, PyTorch {times * plain / 1e6:.3g} MB")
    return program


def has_own_kernel(node, positions):
    """Is it attention with many scores, for which PyTorch has a kernel that stores none, forward and backward? A mask that is not of positions is
    in memory anyway."""
    if operation(node) != "scaled_dot_product_attention" or example(node).dtype not in NARROW:
        return False
    mask = argument(node, "attn_mask")
    query, key = (sizes(example(argument(node, name))) for name in ("query", "key"))
    return (mask is None or mask in positions.known) and query[-1] <= 256 and 2 * query[:-1].numel() * key[-2] > SMALL


def parts(plan):
    """The kinds of a plan's kernels; of one kernel the words that say what it is."""
    text = plan.kernel.describe()
    return " ".join(re.findall(PARTS, text, re.M)) or text


def memory(node):
    """The bytes of a node's tensors."""
    parts = example(node) if isinstance(example(node), (tuple, list)) else [example(node)]
    return sum(sizes(t).numel() * t.element_size() for t in parts if isinstance(t, torch.Tensor) and not free_unbacked_symbols(t))


def moved(plan):
    """The bytes that a plan of several kernels moves."""
    return 1e6 * sum(map(float, re.findall(r"([\d.e+-]+) MB moved", plan.kernel.describe())))


class Rewriting:
    """The graph anew: its nodes in their order, each program when the first of its results is asked for, but before the next barrier."""

    def __init__(self, gm, regions, programs):
        self.gm, self.regions, self.modules = gm, regions, {}
        self.graph, self.env, self.of = torch.fx.Graph(), {}, {n: p for p in programs for n in p.nodes}
        waiting = sorted(programs, key=lambda p: regions.epochs[p.nodes[0]])
        for n in regions.nodes:
            while n in regions.barriers and waiting and regions.epochs[waiting[0].nodes[0]] <= regions.epochs[n]:
                self.call(waiting.pop(0))
            if n not in self.of:
                self.copy(n)
        for n in reversed(regions.positions.known):  # masks that nobody reads any more
            if n in self.env and not self.env[n].users:
                self.graph.erase_node(self.env[n])

    def need(self, node):
        if node not in self.env:
            self.call(self.of[node]) if node in self.of else self.copy(node)
        return self.env[node]

    def copy(self, node):
        if node in self.env:
            return
        for a in node.all_input_nodes:
            self.need(a)
        new = self.env[node] = self.graph.node_copy(node, self.env.__getitem__)
        mask = argument(node, "attn_mask") if operation(node) == "scaled_dot_product_attention" else None
        if mask in self.regions.positions.known and self.regions.positions.known[mask].is_causal():  # PyTorch's kernels skip what it hides
            args, more = list(new.args), dict(new.kwargs)
            for at, name, value in ((3, "attn_mask", None), (5, "is_causal", True)):
                args[at:at + 1] = [value] if len(args) > at else []
                more.update({name: value} if len(args) <= at else {})
            new.args, new.kwargs = tuple(args), more
        if node.op == "call_method" and node.target == "view" and not any(isinstance(a, torch.dtype) for a in (*node.args, *node.kwargs.values())):
            # a program's result, and what views it, may lie in memory in another way
            new.target, new.args, new.kwargs = "reshape", (*new.args, *new.kwargs.values()), {}

    def call(self, program):
        if program.outs[0] in self.env:
            return
        name = f"epilog_{len(self.modules)}"
        self.modules[name] = program
        given = [self.need(n) for n in program.given]
        given += [self.graph.call_function(torch.randint, (0, 2**31 - 1, ()), dict(dtype=torch.int32, device=program.device))
                  for _ in range(program.seeds)]
        made = self.graph.call_module(name, tuple(given))
        for i, n in enumerate(program.outs):
            self.env[n] = self.graph.call_function(operator.getitem, (made, i))
            self.env[n].meta = dict(n.meta)

    def module(self):
        for name, program in self.modules.items():
            self.gm.add_module(name, program)
        made = torch.fx.GraphModule(self.gm, self.graph)
        made.meta.update(self.gm.meta)
        return made


def rewritten(gm, report, chunks=1):
    """The graph with programs in it, or the graph itself where there are none. chunks: that losses are taken in."""
    for node in gm.graph.nodes:  # bodies of checkpoints
        if node.op in CALLS and name_of(node) == "tag_activation_checkpoint" and isinstance(node.args[0], torch.fx.Node):
            name = node.args[0].target
            setattr(gm, name, rewritten(getattr(gm, name), report, chunks))
    if any(is_transform(n) for n in gm.graph.nodes):
        return gm
    views, whole = split_views(gm.graph), []
    if chunks > 1:
        whole = split_losses(gm.graph, Regions(gm.graph, views), chunks)
    regions = Regions(gm.graph, views)
    programs = programs_of(regions)
    made = Rewriting(gm, regions, programs).module() if programs else gm
    report.graphs.append(Graph([n for n in regions.nodes if n.op in CALLS], programs, regions.left))
    report.graphs[-1].left.update(whole)
    return made


def is_transform(node):
    """Is it of torch.func, or of forward mode, which see tensors in another way?"""
    home = getattr(node.target, "__module__", None) or ""
    return node.op == "call_function" and ("functorch" in home or "forward_ad" in home)


def is_on_cpu(gm):
    """Are all tensors of the graph on the CPU?"""
    found = [*map(example, gm.graph.nodes), *gm.parameters(), *gm.buffers()]
    return all(t.device.type == "cpu" for e in found for t in (e if isinstance(e, (tuple, list)) else [e]) if isinstance(t, torch.Tensor))


def compile_graph(gm, inputs, report, rest=None, mode=None, options=None, chunks=1):
    """rest: what compiles the nodes that are in no program. By default it is aot_eager on a CPU, where Inductor's C++ takes a minute and more for
    little, and Inductor on other devices, or if a mode or options are given, which are Inductor's."""
    rest = rest or ("aot_eager" if is_on_cpu(gm) and not mode and not options else "inductor")
    try:
        made = rewritten(gm, report, chunks)
    except Exception as why:
        complain(why, "a graph")
        made = gm
    if rest == "eager":
        return made
    compiler = torch._dynamo.lookup_backend(rest)
    if rest != "inductor":
        return compiler(made, inputs)
    patches = dict(torch._inductor.list_mode_options(mode)) if mode else {}
    return compiler(made, inputs, config_patches={**patches, **(options or {})} or None)


def explained(model, args, kwargs):
    """The report of one call, carried out by programs and PyTorch as it is."""
    report = Report()
    torch._dynamo.reset()
    torch.compile(model, backend=lambda gm, inputs: compile_graph(gm, inputs, report, "eager"))(*args, **kwargs)
    torch._dynamo.reset()
    return report
