"""The recipe of programs/fp8.epi in PyTorch's own operations, in f32."""
import torch


def rounded(x, most):
    """most/448 by a tensor: by a number, PyTorch multiplies with its inverse on a GPU, and what lies on an edge falls off on the other side."""
    scale = (most / torch.full_like(most, 448)).clamp(min=1e-12)
    return scale * (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float()


def rows(x):
    x = x.unflatten(-1, (-1, 128))
    return rounded(x, x.abs().amax(-1, keepdim=True)).flatten(-2)


def blocks(x):
    x = x.unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
    return rounded(x, x.abs().amax((1, 3), keepdim=True)).flatten(2).flatten(0, 1)


def columns(x):
    return rows(x.T.contiguous()).T


class Emulated(torch.autograd.Function):
    """x @ w.T, or x @ w where the weight lies so."""

    @staticmethod
    def forward(ctx, x, w, turned):
        ctx.save_for_backward(x, w)
        ctx.turned = turned
        return rows(x) @ (blocks(w) if turned else blocks(w).T)

    @staticmethod
    def backward(ctx, d):
        x, w = ctx.saved_tensors
        if ctx.turned:
            return rows(d) @ blocks(w).T, columns(x).T @ blocks(d), None
        return rows(d) @ blocks(w), columns(d).T @ blocks(x), None


def emulated(x, w, bias=None, turned=False):
    tokens = x.reshape(-1, x.shape[-1])
    padded = torch.nn.functional.pad(tokens, (0, 0, 0, -tokens.shape[0] % 128))
    y = Emulated.apply(padded, w, turned)[:tokens.shape[0]].unflatten(0, x.shape[:-1])
    return y if bias is None else y + bias


def apart(found, want):
    return ((found - want).norm() / want.norm()).item()
