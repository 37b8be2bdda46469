"""The loss of a language model in chunks, where a graph's cross_entropy is all that reads the logits of a linear layer.

linear_cross_entropy (nn.py) takes their place: the logits of one chunk of tokens are in memory at a time.
"""
from . import nn
from ._say import FLOATS, INTEGERS, operation
from ._schema import bound, example

SAME = frozenset(("view", "reshape", "flatten", "contiguous", "to", "float"))  # which leave every token's logits as they are
KNOWN = frozenset(("ignore_index", "reduction", "label_smoothing"))


class Whole(Exception):
    """Why a loss is left whole."""


def head(loss, logits, regions):
    """The nodes from the logits to the linear layer whose result they are, and nobody else's."""
    words, way = example(logits).shape[-1], [logits]
    while operation(logits) in SAME and len(logits.users) == 1 and example(logits).shape[-1] == words:
        logits = bound(logits)["input"]
        way.append(logits)
    if operation(logits) != "linear" or example(logits).shape[-1] != words:
        raise Whole(f"the logits come from {logits.target}")
    if len(logits.users) != 1:
        raise Whole("something else reads the logits")
    if bound(logits).keys() != {"input", "weight"}:
        raise Whole("the linear layer has a bias")
    if logits in regions.left or regions.epochs[logits] != regions.epochs[loss]:
        raise Whole("a tensor is written in place, or a mode changes, between the linear layer and the loss")
    return way


def in_chunks(graph, loss, regions, chunks):
    """The loss by linear_cross_entropy."""
    given = bound(loss)
    logits, target = given.pop("input"), given.pop("target")
    known = len(example(logits).shape) == 2 and example(logits).dtype in FLOATS and example(target).dtype in INTEGERS  # no distribution of words
    if not known or given.keys() - KNOWN or given.get("reduction", "mean") == "none":
        raise Whole("an unsupported form of cross_entropy")
    way = head(loss, logits, regions)
    layer = bound(way[-1])
    with graph.inserting_before(loss):
        found = graph.call_function(nn.linear_cross_entropy, (layer["input"], layer["weight"], target), {**given, "chunks": chunks})
        made = graph.call_method("to", (found, example(loss).dtype))
    found.meta, made.meta = dict(loss.meta), dict(loss.meta)
    loss.replace_all_uses_with(made)
    for node in (loss, *way):
        graph.erase_node(node)


def split_losses(graph, regions, chunks):
    """Takes the losses of a graph in chunks. Returns why some are whole."""
    whole = []
    for node in list(graph.nodes):
        if operation(node) == "cross_entropy":
            try:
                in_chunks(graph, node, regions, chunks)
            except Whole as why:
                whole.append(f"cross_entropy: not in chunks: {why}")
    return whole
