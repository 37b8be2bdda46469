"""The error rule of the project (src/base/error_rule.h): a result may be at most twice as far from an f64 reference as eager
PyTorch's is, or as far as the arithmetic explains: a rounding to the type, 4.5 ulp of a function in f32, and 2^-24 sqrt(n) of sums of n terms."""
import torch


def floor(dtype, units=1, terms=0):
    """Relative to the largest result. units: roundings to the type; terms: of the sums that a result is made of."""
    return units * torch.finfo(dtype).eps + 4.5 * 2**-23 + 2**-24 * terms ** 0.5


def wide(a):
    return a.detach().double().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) and a.is_floating_point() else a


def results(function, args, cotangent=None):
    """The outputs of function, and the gradients by the arguments that want one."""
    outs = function(*args)
    outs = outs if isinstance(outs, tuple) else (outs,)
    leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    if not leaves:
        return [o.detach() for o in outs]
    kept = [o for o in outs if o.requires_grad]
    cotangents = [torch.linspace(-1, 1, o.numel(), dtype=o.dtype, device=o.device).view(o.shape) for o in kept]
    return [o.detach() for o in outs] + list(torch.autograd.grad(kept, leaves, cotangents))


def hold(mine, plain, exact, name, units=1, terms=0, dtype=None, largest=0, more=0):
    """The rule for one result. dtype: of values on the way, where it is not that of the result. largest: of terms
    of a sum of which little is left. more: what is allowed beside."""
    assert mine.shape == plain.shape and mine.dtype == plain.dtype, name
    off, allowed = ((t.double() - exact).abs().max().item() for t in (mine, plain))
    bound = 2 * allowed + floor(dtype or mine.dtype, units, terms) * max(exact.abs().max().item(), largest) + more
    assert off <= bound, f"{name} is {off} off, eager {allowed}"


def check(ours, eager, args, units=1, terms={}):
    """ours and eager on the same arguments, eager once more in f64; gradients by all that want one. units: of the last
    place of the largest result, that ours may be off where eager happens to be right. terms: of results that are sums of which little is
    left, by their number, how large the terms are: the root of the sum of their squares."""
    mine, plain, exact = results(ours, args), results(eager, args), results(eager, [wide(a) for a in args])
    for i, (m, p, e) in enumerate(zip(mine, plain, exact)):
        hold(m, p, e, f"result {i}", units, largest=terms.get(i, 0))
