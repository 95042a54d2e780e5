#!/usr/bin/env python3
"""The nets of peer_nets in PyTorch: torch.distributed.pipelining over gloo, with --cells 1 a plain loop.

The same network, data, first parameters (both are functions of their places), mini-batches and micro-batches,
AdamW (fused) and learning rates, and one thread for each device; the second device is a process that this one
starts, and both speak over the loopback. Prints the fields that peer_nets prints. What differs is to PyTorch's
advantage: tables and head have as many rows as there are classes, of which peer_nets has 256, most without use.
"""
import argparse
import json
import os
import subprocess
import sys
import threading
import time

SCHEDULES = {"GPipe": "ScheduleGPipe", "OneForwardOneBackward": "Schedule1F1B"}
CONTEXT, WIDTH, HEADS, BLOCKS, CLASSES = 64, 128, 4, 4, 64  # of gpt
ROW, DENSE = 512, 8  # of mlp: width and layers
BATCHES = 4  # taken in turns
BATCH = {"gpt": 32, "mlp": 512}
UNIT = {"gpt": ("tokens", CONTEXT), "mlp": ("rows", 1)}
CUT = {"gpt": 1 + BLOCKS, "mlp": DENSE // 2}  # where peer_nets cuts, too
MOMENTS = {"gpt": {"lr": 5e-4, "betas": (0.9, 0.99)}, "mlp": {"lr": 1e-3, "betas": (0.9, 0.999)}}
DECAY = {"gpt": 0.2, "mlp": 0.01}
WORD = 0xFFFFFFFF


# ---- numbers that are those of the other side

def mixed(torch, places):
    """Looks like chance, in 32 bits. Products of 64-bit integers wrap, which leaves the low half right."""
    bits = places * 2654435761 & WORD
    bits = (bits ^ bits >> 15) * 2246822519 & WORD
    return bits ^ bits >> 13


def normal(torch, parameter, layer, tensor, deviation):
    """Fills it as gpipe::InitialRandom(1, layer, tensor) does: Philox4x32-10, then Box and Muller."""
    count = parameter.numel()
    blocks = torch.arange((count + 1) // 2)
    words = [blocks, torch.full_like(blocks, tensor), torch.full_like(blocks, layer), torch.full_like(blocks, WORD)]
    keys = [1, 0]
    for _ in range(10):
        first, second = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [(second >> 32 & WORD) ^ words[1] ^ keys[0], second & WORD,
                 (first >> 32 & WORD) ^ words[3] ^ keys[1], first & WORD]
        keys = [keys[0] + 0x9E3779B9 & WORD, keys[1] + 0xBB67AE85 & WORD]
    # A number takes two words, so a block makes two of them.
    u = 1 - torch.stack([words[0], words[2]], 1).flatten()[:count].double() * 2.0 ** -32
    v = torch.stack([words[1], words[3]], 1).flatten()[:count].double() * 2.0 ** -32
    numbers = deviation * torch.sqrt(-2 * torch.log(u)) * torch.cos(6.283185307179586 * v)
    with torch.no_grad():
        parameter.copy_(numbers.view_as(parameter))


def mini_batches(torch, net, batch):
    """Pairs of inputs and targets."""
    made = []
    for number in range(BATCHES):
        if net == "gpt":
            places = torch.arange(batch * CONTEXT).view(batch, CONTEXT) + number * batch * CONTEXT
            made.append(tuple(mixed(torch, places + ahead) % CLASSES for ahead in (0, 1)))
        else:
            places = torch.arange(batch * ROW).view(batch, ROW) + number * batch * ROW
            made.append(tuple((mixed(torch, places + ahead) >> 8).float() * 2.0 ** -23 - 1 for ahead in (0, 1 << 24)))
    return made


# ---- nets: a list of layers, where cells can be cut

def gpt(torch):
    nn, F = torch.nn, torch.nn.functional
    layers = 2 * BLOCKS + 2

    class Tables(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(CLASSES, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            normal(torch, self.tokens.weight, 0, 0, 0.08)
            normal(torch, self.positions.weight, 0, 1, 0.08)

        def forward(self, tokens):
            return self.tokens(tokens) + self.positions.weight

    class Attention(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
            normal(torch, self.into.weight, layer, 2, 0.03)
            normal(torch, self.out.weight, layer, 3, 0.03 / layers ** 0.5)
            nn.init.zeros_(self.out.bias)

        def forward(self, x):
            n = x.shape[0]
            q, k, v = self.into(self.norm(x)).view(n, CONTEXT, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return x + self.out(heads.transpose(1, 2).reshape(n, CONTEXT, WIDTH))

    class Mlp(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH)
            normal(torch, self.up.weight, layer, 2, 0.03)
            normal(torch, self.down.weight, layer, 3, 0.03 / layers ** 0.5)
            nn.init.zeros_(self.down.bias)

        def forward(self, x):
            return x + self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.weights = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)
            normal(torch, self.weights.weight, layers - 1, 2, 0.03)

        def forward(self, x):
            return self.weights(self.norm(x)).clamp(-30, 30)

    blocks = [kind(1 + 2 * block + half) for block in range(BLOCKS) for half, kind in enumerate((Attention, Mlp))]
    return [Tables(), *blocks, Head()]


def mlp(torch):
    made = []
    for layer in range(DENSE):
        linear = torch.nn.Linear(ROW, ROW)
        normal(torch, linear.weight, layer, 0, (2 / ROW) ** 0.5)
        torch.nn.init.zeros_(linear.bias)
        made.append(torch.nn.Sequential(linear, torch.nn.ReLU(inplace=True)))
    return made


def multiply_by_onednn(torch):
    """In place of MKL, which PyTorch takes for products of floats, and which is half as fast as oneDNN on some
    processors. By what torch.compile calls: no function for users is for that."""
    product = torch.ops.mkldnn._linear_pointwise

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x, weight)
            ctx.has_bias = bias is not None
            return product(x, weight, bias, "none", [], "")

        @staticmethod
        def backward(ctx, dy):
            x, weight = ctx.saved_tensors
            rows, dx = dy.reshape(-1, dy.shape[-1]), None
            if ctx.needs_input_grad[0]:
                dx = product(rows, weight.t(), None, "none", [], "").view_as(x)
            dweight = product(rows.t(), x.reshape(-1, x.shape[-1]).t(), None, "none", [], "")
            return dx, dweight, rows.sum(0) if ctx.has_bias else None

    torch.nn.Linear.forward = lambda self, x: Linear.apply(x, self.weight, self.bias)


# ---- steps

class Run:
    """One process of a run: the loop of a single one, or a stage."""

    def __init__(self, torch, rank):
        self.torch, self.rank = torch, rank
        self.data = mini_batches(torch, options.net, options.batch)
        layers = {"gpt": gpt, "mlp": mlp}[options.net](torch)
        if options.cells == 2:
            cut = CUT[options.net]
            layers = layers[:cut] if rank == 0 else layers[cut:]
        self.module = torch.nn.Sequential(*layers)
        decays, others = [], []  # as there: of weights, but not of tables
        for name, parameter in self.module.named_parameters():
            decays.append(parameter) if parameter.dim() == 2 and "tokens" not in name and "positions" not in name \
                else others.append(parameter)
        self.optimizer = torch.optim.AdamW(
            [{"params": decays, "weight_decay": DECAY[options.net]}, {"params": others, "weight_decay": 0.0}],
            eps=1e-8, fused=True, **MOMENTS[options.net])
        self.losses = []
        if options.cells == 2:
            from torch.distributed import pipelining
            # Shapes are given, for telling them between processes takes NumPy.
            part = options.batch // options.micro_batches
            between = (part, CONTEXT, WIDTH) if options.net == "gpt" else (part, ROW)
            inside = torch.empty(between, requires_grad=True)
            outputs = torch.empty((*between[:-1], CLASSES if options.net == "gpt" else ROW), requires_grad=True)
            first = self.data[0][0][:part]
            stage = pipelining.PipelineStage(
                self.module, rank, 2, torch.device("cpu"), input_args=first if rank == 0 else inside,
                output_args=inside if rank == 0 else outputs)
            self.schedule = getattr(pipelining, SCHEDULES[options.schedule])(
                stage, n_microbatches=options.micro_batches, loss_fn=self.loss)

    def loss(self, y, target):
        F = self.torch.nn.functional
        return F.mse_loss(y, target) if options.net == "mlp" else F.cross_entropy(y.flatten(0, 1), target.flatten())

    def step(self, number):
        x, target = self.data[number % BATCHES]
        self.optimizer.zero_grad(set_to_none=True)
        parts = []
        if options.cells == 1:
            for inputs, targets in zip(x.chunk(options.micro_batches), target.chunk(options.micro_batches)):
                loss = self.loss(self.module(inputs), targets)
                (loss / options.micro_batches).backward()
                parts.append(loss.detach())
        elif self.rank == 0:
            self.schedule.step(x, return_outputs=False)
        else:
            self.schedule.step(target=target, losses=parts, return_outputs=False)
        self.optimizer.step()
        if parts:  # the mean of equal parts
            self.losses.append(sum(part.item() for part in parts) / options.micro_batches)

    def measure(self, meet, add_up):
        """Seconds, those of the processors of all processes, first and last loss."""
        for number in range(options.warm_up + options.steps):
            if number == options.warm_up:
                meet()
                begin, used = time.perf_counter(), time.process_time()
            self.step(number)
        meet()
        seconds = time.perf_counter() - begin
        own = time.process_time() - used
        last = self.rank == options.cells - 1
        return [seconds, *add_up([own, self.losses[0] if last else 0.0, self.losses[-1] if last else 0.0])]


def product_rate(torch):
    """Of the product that peer_nets times, in 10^9 operations per second."""
    rows, columns, inner, times = 256, 384, 128, 100
    a, b = torch.ones(rows, inner), torch.nn.Linear(inner, columns, bias=False)
    with torch.no_grad():
        for n in range(2 * times):
            if n == times:
                begin = time.perf_counter()
            b(a)
    return 2e-9 * times * rows * columns * inner / (time.perf_counter() - begin)


def pair(torch, rank, port):
    """What one of two processes measures."""
    import datetime

    import torch.distributed as dist
    limit = datetime.timedelta(seconds=options.deadline)
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0, timeout=limit, wait_for_workers=False)
    child = None
    if rank == 0:
        child = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--port", str(store.port)],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        doomed.append(child)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)

    def add_up(numbers):
        numbers = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(numbers)
        return numbers.tolist()

    result = Run(torch, rank).measure(dist.barrier, add_up)
    dist.barrier()
    if child and child.wait() != 0:
        raise RuntimeError(f"the second process ended with status {child.returncode}")
    return result  # who has the store ends last


doomed = []  # processes that end with this one


def end_in_time(rank):
    """Whatever hangs, the process ends, the second one a little later, and the first says so."""
    def end():
        for child in doomed:
            child.kill()
        if rank == 0:
            os.write(2, f"peers_torch: not done after {options.deadline:g} s\n".encode())
        os._exit(1)

    timer = threading.Timer(options.deadline + 5 * rank, end)
    timer.daemon = True
    timer.start()


def measured():
    rank = 1 if options.port else 0
    end_in_time(rank)
    # Before PyTorch reads them.
    os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    try:
        import warnings
        warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
        import torch
    except ImportError:
        sys.exit("peers_torch: there is no PyTorch here")
    torch.set_num_threads(1)
    if options.products == "onednn":
        multiply_by_onednn(torch)
    try:
        if options.cells == 1:
            numbers = Run(torch, rank).measure(lambda: None, lambda own: own)
        else:
            numbers = pair(torch, rank, options.port)
    except RuntimeError as error:  # what PyTorch throws, of the other process, too
        sys.exit("peers_torch: " + str(error).strip().split("\n")[0])
    products = options.products
    if products == "own":
        products = torch.__config__.show().partition("BLAS_INFO=")[2].partition(",")[0]
    return rank, "PyTorch " + torch.__version__, numbers, {
        "product_rate": product_rate(torch) if rank == 0 else None,
        "kernels": f"{products}, {torch.backends.cpu.get_cpu_capability()} elsewhere"}


def main():
    if options.stub:
        rank, system, numbers, more = 0, "a stub", [1.0, float(options.cells), 1.0, 1.0], {}
    else:
        rank, system, numbers, more = measured()
    if rank != 0:
        return
    seconds, of_processors, first, last = numbers
    unit, each = UNIT[options.net]
    done = options.steps * options.batch * each
    record = {
        "benchmark": "peer_nets", "system": system, "net": options.net, "K": options.cells, "M": options.micro_batches,
        "N": options.batch, "schedule": options.schedule, "processes": options.cells, "steps": options.steps,
        "seconds": seconds, "unit": unit, "per_second": done / seconds, "per_cpu_second": done / of_processors,
        "first_loss": first, "last_loss": last, **more,
    }
    if options.json:
        print(json.dumps(record))
    else:
        print("{per_second:.0f} {unit} per second, {per_cpu_second:.0f} per second of a processor, "
              "loss {first_loss:.6f} to {last_loss:.6f}".format(**record))


def parse():
    class Parser(argparse.ArgumentParser):
        def error(self, message):
            self.exit(2, f"peers_torch: {message}; try --help\n")

    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, add_help=False)
    parser.add_argument("--help", action="store_true", help="print this and exit")  # argparse would not notice a full stdout
    parser.add_argument("--net", choices=list(BATCH), default="gpt", help="what is trained")
    parser.add_argument("--cells", type=int, choices=[1, 2], default=2, help="devices, each a process")
    parser.add_argument("--micro-batches", type=int, default=8, help="of a mini-batch; must divide it")
    parser.add_argument("--schedule", choices=list(SCHEDULES), default="OneForwardOneBackward", help="of two processes")
    parser.add_argument("--batch", type=int, default=0, help="samples in a mini-batch; 0: 32 of gpt, 512 of mlp")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before the measured ones")
    parser.add_argument("--steps", type=int, default=10, help="steps that are measured")
    parser.add_argument("--deadline", type=float, default=120, help="seconds after which all ends, with status 1")
    parser.add_argument("--products", choices=["own", "onednn"], default="own",
                        help="of linear layers: by what PyTorch takes for them, or by its oneDNN, which peer_nets has")
    parser.add_argument("--stub", action="store_true", help="print numbers that mean nothing, without PyTorch")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)  # where the first process listens
    found = parser.parse_args()
    if found.help:
        print(parser.format_help(), end="")
        sys.exit()
    found.batch = found.batch or BATCH[found.net]
    if min(found.batch, found.micro_batches, found.steps, found.deadline) <= 0 or found.warm_up < 0:
        parser.error("numbers must be positive")
    if found.batch % found.micro_batches and not found.stub:
        parser.error("--micro-batches must divide --batch")
    return found


if __name__ == "__main__":
    try:
        try:
            options = parse()
            main()
        finally:
            sys.stdout.flush()
        # PyTorch's threads are not taken down one by one: on that way its processes abort now and then.
        os._exit(0)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left there is not tried again
        sys.exit(f"peers_torch: cannot write standard output: {error.strerror}")
