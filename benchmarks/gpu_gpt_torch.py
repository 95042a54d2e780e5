#!/usr/bin/env python3
"""A training step of GPT-2's smallest shape in plain PyTorch, by default eager, float: what gpu_gpt compares with.

The same network (pre-norm blocks, GELU in its tanh form, no bias where ours has none, a head whose
weights are the embedding's, the same spread of weights at the start), the same mini-batch size cut into the same micro-batches, whose gradients add up,
and the same AdamW. Prints the fields that gpu_gpt prints.
"""
import argparse
import json
import os
import statistics
import sys
import time

CONTEXT, WIDTH, HEADS, BLOCKS, VOCABULARY = 1024, 768, 12, 12, 50304


def deviation(name):
    """Of a matrix at the start, as examples/gpt/initial.hpp."""
    if "tokens" in name or "positions" in name:
        return 0.08 * (128 / WIDTH) ** 0.5
    return 0.03 / (2 * BLOCKS + 2) ** 0.5 if "out." in name or "down." in name else 0.03


def build(torch):
    nn, F = torch.nn, torch.nn.functional

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.into = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
            self.out = nn.Linear(WIDTH, WIDTH)
            mask = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).tril()
            self.register_buffer("mask", mask, persistent=False)

        def forward(self, x):
            n, t, _ = x.shape
            q, k, v = self.into(self.norm(x)).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            if options.attention == "fused":
                heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
                heads = scores.masked_fill(~self.mask, float("-inf")).softmax(-1) @ v
            return x + self.out(heads.transpose(1, 2).reshape(n, t, WIDTH))

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
            self.down = nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            return x + self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, WIDTH)
            self.positions = nn.Embedding(CONTEXT, WIDTH)
            layers = [layer() for _ in range(BLOCKS) for layer in (Attention, Mlp)]
            self.blocks = nn.Sequential(*layers)
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
            self.head.weight = self.tokens.weight
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    nn.init.normal_(parameter, std=deviation(name))

        def forward(self, tokens):
            x = self.tokens(tokens) + self.positions.weight
            return self.head(self.norm(self.blocks(x))).clamp(-30, 30)

    return Gpt()


def main():
    try:
        import torch
    except ImportError:
        sys.exit("gpu_gpt_torch: there is no PyTorch here")
    if not torch.cuda.is_available():
        sys.exit("gpu_gpt_torch: there is no GPU here that PyTorch can use")
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high" if options.precision == "tf32" else "highest")
    torch.backends.cuda.matmul.allow_tf32 = options.precision == "tf32"
    device = torch.device("cuda", options.gpu)
    model = build(torch).to(device)
    decays = [p for name, p in model.named_parameters() if p.dim() == 2 and "tokens" not in name and "positions" not in name]
    kept = {id(p) for p in decays}
    others = [p for p in model.parameters() if id(p) not in kept]
    optimizer = torch.optim.AdamW(
        [{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=options.fused_optimizer)
    parameters = sum(p.numel() for p in model.parameters())
    if options.compile:
        model = torch.compile(model)
    tokens = torch.randint(0, 50257, (options.batch, CONTEXT + 1), device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for part in tokens.chunk(options.micro_batches):
            # Parameters, their gradients and the optimizer stay float under bf16, too.
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=options.precision == "bf16"):
                logits = model(part[:, :-1])
                loss = torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum") / (options.batch * CONTEXT)
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total.item()  # waits until the step is done

    torch.cuda.reset_peak_memory_stats(device)
    milliseconds, losses = [], []

    def measured():
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        losses.append(step())
        torch.cuda.synchronize(device)
        milliseconds.append(1e3 * (time.perf_counter() - begin))

    for _ in range(options.warm_up):
        measured()
    milliseconds.clear()
    if options.turns:
        print("ready", flush=True)
        for _ in sys.stdin:
            measured()
            print("done", flush=True)
    else:
        for n in range(options.rounds):
            if n + 1 == options.rounds:
                torch.cuda.profiler.start()  # a timeline of the last one, if anybody listens
            measured()
        torch.cuda.profiler.stop()
    if not milliseconds:
        sys.exit("gpu_gpt_torch: there was no round")
    middle = statistics.median(milliseconds)
    quarters = statistics.quantiles(milliseconds, n=4, method="inclusive") if len(milliseconds) > 1 else [middle] * 3
    record = {
        "benchmark": "gpu_gpt", "system": "PyTorch " + torch.__version__, "K": 1,
        "M": options.micro_batches, "N": options.batch, "context": CONTEXT, "checkpointing": "never",
        "parameters": parameters, "step_milliseconds": middle,
        "step_milliseconds_q1": quarters[0], "step_milliseconds_q3": quarters[2],
        "round_milliseconds": milliseconds, "tokens_per_second": 1e3 * options.batch * CONTEXT / middle, "planned_bytes": None,
        "used_bytes": torch.cuda.max_memory_allocated(device), "first_loss": losses[0], "last_loss": losses[-1],
        "attention": options.attention, "precision": options.precision, "compiled": options.compile,
    }
    if options.json:
        print(json.dumps(record))
    else:
        print("{system}: {step_milliseconds:.2f} ms per step, {tokens_per_second:.0f} tokens/s, {used_bytes} bytes, "
              "loss {first_loss:.4f} to {last_loss:.4f}".format(**record))


def parse():
    class Parser(argparse.ArgumentParser):
        def error(self, message):
            self.exit(2, f"gpu_gpt_torch: {message}; try --help\n")

    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, add_help=False)
    parser.add_argument("--help", action="store_true", help="print this and exit")  # argparse would not notice a full stdout
    parser.add_argument("--batch", type=int, default=8, help="samples in a mini-batch")
    parser.add_argument("--micro-batches", type=int, default=8, help="cut it into so many; must divide it")
    parser.add_argument("--attention", choices=["plain", "fused"], default="plain", help="scores in memory, as gpu_gpt, or PyTorch's kernel")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="fp32", help="of products; bf16: of activations, too (autocast)")
    parser.add_argument("--compile", action="store_true", help="torch.compile the network; the first steps take minutes")
    parser.add_argument("--fused-optimizer", action="store_true", help="PyTorch's one-kernel AdamW")
    parser.add_argument("--warm-up", type=int, default=3, help="steps that are not measured")
    parser.add_argument("--rounds", type=int, default=10, help="steps that are; their median is printed")
    parser.add_argument("--turns", action="store_true", help="in place of --rounds one for each line on stdin")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    found = parser.parse_args()
    if found.help:
        print(parser.format_help(), end="")
        sys.exit()
    if found.batch < 1 or found.micro_batches < 1 or found.rounds < 1 or found.warm_up < 0 or found.gpu < 0:
        parser.error("numbers must be positive")
    if found.batch % found.micro_batches:
        parser.error("--micro-batches must divide --batch")
    return found


if __name__ == "__main__":
    try:
        try:
            options = parse()
            main()
        finally:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left there is not tried again
        sys.exit(f"gpu_gpt_torch: cannot write standard output: {error.strerror}")
