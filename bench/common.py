"""What the scripts of bench/ share: options, result files, rows that are checked and written one by one, times of sides that take
turns, and distances from f64.

PyTorch is imported here. The package epilog is not: vs_torch.py loads the library by itself."""
import argparse, contextlib, datetime, json, os, platform, statistics, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "python"))
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FULL = "date commit version device torch cuda python command rounds"  # the usual head of a result file
BEGUN = time.perf_counter()

# ---- options ---------------------------------------------------------------------------------------------


def arguments(doc, small=None, **options):
    """The options of a script: --out, --commit, and one for each of `options`, which gives a default, a default and a help, or the
    arguments of add_argument. The type is the default's; False makes a flag. With `small` there is --small, which sets its values."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, how in options.items():
        if not isinstance(how, dict):
            how = dict(zip(("default", "help"), how if isinstance(how, tuple) else (how,)))
        if how.get("default") is False:
            how["action"] = "store_true"
        elif how.get("default") is not None:
            how.setdefault("type", type(how["default"]))
        parser.add_argument("--" + name.replace("_", "-"), **how)
    if small is not None:
        parser.add_argument("--small", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--out", help="write every number as JSON, kept up to date after each row")
    parser.add_argument("--commit", help="the commit that the result file names (default: git's, or unknown)")
    args = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    if small and args.small:
        vars(args).update(small)
    return args


# ---- result files ----------------------------------------------------------------------------------------


def commit_of(args):
    return args.commit or subprocess.getoutput(f"git -C '{ROOT}' rev-parse --short HEAD 2>/dev/null") or "unknown"


def cpu_name():
    with open("/proc/cpuinfo") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), platform.machine())


def version_of(package):
    return __import__(package).__version__


def head(args, keys, **more):
    """The head of a result file: `keys` of this run and this machine, then `more`. "day" is the date without its time. Other keys are
    those of the options."""
    now = datetime.datetime.now(datetime.timezone.utc)
    known = dict(date=lambda: now.isoformat(timespec="seconds"), day=lambda: now.date().isoformat(), commit=lambda: commit_of(args),
                 device=lambda: torch.cuda.get_device_name(0) if getattr(args, "device", "cuda") == "cuda" else "cpu",
                 cpu=cpu_name, machine=platform.machine, version=lambda: version_of("epilog"), torch=lambda: torch.__version__,
                 transformers=lambda: version_of("transformers"), cuda=lambda: torch.version.cuda, cudnn=torch.backends.cudnn.version,
                 python=lambda: sys.version.split()[0], command=lambda: sys.argv)
    return {"date" if k == "day" else k: known[k]() if k in known else getattr(args, k) for k in keys.split()} | more


def save(path, result, indent=1):
    """Writes a result file whole or not at all; without a path nothing. JSON has no NaN, so that becomes text."""
    if path:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path + ".part", "w") as f:
            json.dump(json.loads(json.dumps(result), parse_constant=str), f, indent=indent)
        os.replace(path + ".part", path)


# ---- rows ------------------------------------------------------------------------------------------------


def measured(args, result, work, line=None, timed=False):
    """Adds a row to the result for each of `work`, pairs of what is known of a row and a function that makes it. Prints the row, by
    `line` in short, and writes the file anew. A failure is a row too. `timed` rows say how long they took. Returns the exit status: 1 if
    a row is wrong or failed."""
    failed = 0
    for known, make in work:
        begin = time.perf_counter()
        try:
            row = make()
        except Exception as e:
            row = known | dict(ok=False, error=f"{type(e).__name__}: {e}")
        if timed:
            row["seconds"] = time.perf_counter() - begin
        failed += not row.get("ok", True)
        result["rows"].append(row)
        short = line and not isinstance(row.get("error"), str)
        print(line(row) if short else json.dumps({k: v for k, v in row.items() if k != "plan"}, indent=1))
        save(args.out, result)
    print(f"{len(result['rows'])} rows, {failed} failed, {args.out or ''}")
    return 1 if failed else 0


def main(sections, order, doc, line=None, **options):
    """The usual script. sections(args): for each section the functions that make its rows. line: a row in short, for those who read
    along; without it a row is printed whole."""
    args = arguments(doc, {}, **dict(device=DEVICE, dtype="bfloat16", sections=order, eager=(False, "time eager PyTorch's layers too"),
                                     rounds=21, seed=1) | options)
    args.dtype = getattr(torch, args.dtype)
    torch.manual_seed(args.seed)
    result, every = head(args, FULL, rows=[]), sections(args)
    work = [(dict(section=section), make) for section in args.sections.split(",") for make in every[section]]
    return measured(args, result, work, line, timed=True)


def say(*words):
    """A line for those who wait, with the seconds since the start."""
    print(f"{time.perf_counter() - BEGUN:7.1f} s ", *words, flush=True)


# ---- times -----------------------------------------------------------------------------------------------


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(call, device="cpu", clock=time.perf_counter):
    """How long a call takes, the device's work included, and what it answers."""
    wait(device)
    begin = clock()
    found = call()
    wait(device)
    return clock() - begin, found


def in_turn(sides, once, rounds, warm=0, back=False):
    """What `once` answers for each side, in a list for each name. Sides take turns, --rounds times, after some that only warm up; with
    `back` every other round goes the other way."""
    found = {name: [] for name in sides}
    for i in range(warm + rounds):
        for name, side in list(sides.items())[::-1 if back and i % 2 == 0 else 1]:
            answer = once(side)
            if i >= warm:
                found[name].append(answer)
    return found


def spread(ms):
    return dict(median_ms=statistics.median(ms), min_ms=min(ms), max_ms=max(ms))


def again(call, count):
    """Several calls on end, as one."""
    def calls():
        for _ in range(count):
            call()
    return calls


def events():
    return [torch.cuda.Event(enable_timing=True) for _ in range(2)]


def ms_of(call, repeats=1, warm=1, device="cuda"):
    """ms of a call: of several one after the other, after some that warm up, with the host ahead of the GPU."""
    if device != "cuda":
        return seconds(again(call, repeats))[0] / repeats * 1e3
    begin, end = events()
    again(call, warm)()
    begin.record()
    again(call, repeats)()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


def copy_speed(device, rounds):
    """Bytes that a copy reads and writes in a second."""
    n = 1 << (30 if device == "cuda" else 24)
    a, b = (torch.empty(n, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * n / min(ms_of(lambda: b.copy_(a), 5, device=device) for _ in range(rounds)) * 1e3


def graph_of(calls, warm=1, device="cuda"):
    """A CUDA graph of the calls, one after another, each of which runs before on a stream of its own: what replays it, and the result
    of the last call. On the CPU the calls themselves."""
    def run():
        for call in calls:
            out = call()
        return out
    if device != "cuda":
        return run, None
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return graph.replay, out


def in_graphs(makers, calls, rounds, warm=0):
    """us a call of each side: so many calls in a CUDA graph, the graphs replayed in turn, each after some replays to warm up. A maker
    answers the calls of its side, which the graph goes through again and again, on the stream that is current: the captured one. What
    they return is kept, so that each call has memory of its own."""
    stream, graphs, keep = torch.cuda.Stream(), {}, []
    for name, make in makers.items():
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            every = make()
            keep += [every[i % len(every)]() for i in range(2)]
            torch.cuda.synchronize()
            with torch.cuda.graph(graphs[name], stream=stream):
                keep += [every[i % len(every)]() for i in range(calls)]
    begin, end = events()
    def once(graph):
        for _ in range(warm):
            graph.replay()
        begin.record(stream)
        graph.replay()
        end.record(stream)
        end.synchronize()
        return 1e3 * begin.elapsed_time(end) / calls
    with torch.cuda.stream(stream):
        return {name: statistics.median(us) for name, us in in_turn(graphs, once, rounds, warm=1).items()}


AHEAD = 1_000_000  # cycles of a GPU, half a millisecond


class Timer:
    def __init__(self, device, rounds):
        self.cuda, self.rounds = device == "cuda", rounds
        if self.cuda:
            self.cache = torch.ones(256 << 20, device=device, dtype=torch.uint8)

    def once(self, fn):
        """ms of one call that finds nothing in L2, and whose launches wait for the GPU, not the GPU for them, as in training."""
        if not self.cuda:
            return seconds(fn)[0] * 1e3
        begin, end = events()
        self.cache.fill_(1)
        torch.cuda._sleep(AHEAD)
        begin.record()
        fn()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def turns(self, sides):
        """Median, least and largest ms of each side; the sides take turns, and the first round only warms up."""
        return {name: spread(ms) for name, ms in in_turn(sides, self.once, self.rounds, warm=1).items()}


def peak_bytes(fn):
    """The most that one call has in the GPU's memory at once, without what was there before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fn()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def started(row, device, sides, run):
    """The first results of each side, and how long they took, compiling included. A side that fails is named in the row, and left out."""
    results = {}
    for name in list(sides):
        try:
            row.setdefault("first_s", {})[name], results[name] = seconds(lambda: run(sides[name]), device)
            say(f"{name} began")
        except Exception as e:
            row.setdefault("failed", {})[name] = f"{type(e).__name__}: {e}"[:600]
            say(f"{name} failed: {type(e).__name__}: {e}"[:600])
            del sides[name]
    return results


def sdpa(device):
    """PyTorch's attention with cuDNN, where that can do it."""
    if device != "cuda":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel
    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], set_priority=True)


def kernels(device, fn):
    """The kernels of one call in the order of their starts, as torch.profiler's trace has them: ts and dur in microseconds, name, args."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU]) as found:
        fn()
        wait(device)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        found.export_chrome_trace(path)
        with open(path) as trace:
            events = [e for e in json.load(trace)["traceEvents"] if e.get("cat") == ("kernel" if device == "cuda" else "cpu_op")]
    return sorted(events, key=lambda e: e["ts"])


def longest(events, count=12):
    """Kernels of one name together, those that take longest first: [name, launches, ms]."""
    spent = {}
    for e in events:
        launches, time = spent.get(e["name"], (0, 0.0))
        spent[e["name"]] = launches + 1, time + e["dur"] / 1e3
    return [[name[:90], *n] for name, n in sorted(spent.items(), key=lambda s: -s[1][1])[:count]]


# ---- distances from a reference --------------------------------------------------------------------------


def distance(x, exact):
    """Relative, by Frobenius' norm."""
    return ((x.double() - exact).norm() / exact.norm().clamp(min=1e-300)).item()


def distances(names, ours, eager, exact):
    """How far ours and eager's are from the f64 reference. A result may be at most twice as far off as eager's."""
    rows = []
    for name, o, e, r in zip(names, ours, eager, exact):
        off, plain, largest = ((o.double() - r).abs().max().item(), (e.double() - r).abs().max().item(), r.abs().max().item())
        bound = 2 * plain + 1e-6 * largest
        rows.append(dict(output=name, error=off, eager_error=plain, largest=largest, bound=bound, ok=off <= bound))
    return rows
