"""What a GPU is asked when there is one for an hour, and what it answered.

  gpu-report prebuild [--only NAME,...]      builds the programs for sm_90 (build/gpu-sm90), on any machine with nvcc
  gpu-report pack                            strips them into build/gpu-report-COMMIT.tar.gz, with what they need
  gpu-report right|fast|safe                 runs a part from that archive; a line per step to build/gpu-report/PART.jsonl,
                                             what its programs said to PART.log
      [--only PATTERN] [--programs ARCHIVE|FOLDER] [--head COMMIT] [--out FILE] [--deadline SECONDS] [--dry]
  gpu-report merge [--out NAME] FILE...      parts into NAME.json and NAME.svg, beside the last report in the repository

A part is a list of steps, each with a time limit and what passing is. A step that fails or hangs stops no other; what
the deadline leaves no time for is skipped. Each step's line is on the disk before the next begins. --dry runs the same
list where there is no GPU, on the double of the CUDA runtime and the emulation of kernels (build/test/tests).
"""
import argparse
import ctypes
import glob
import json
import math
import os
import pathlib
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPORTS = ROOT / "benchmarks" / "gpu_reports"  # NAME.json, of which the last by name is the last
DEADLINE = 540
NOT_BUILT, NOT_EMULATED = "not built yet", "dry: not emulated"


class Refused(Exception):
    """One line, and exit status 2."""


class Failed(Exception):
    """Why a step did not pass."""


# ---- steps

@dataclass
class Step:
    name: str
    commands: list = field(default_factory=list)  # one after the other; PROGRAM stands for one of the archive
    limit: float = 60
    passing: callable = None  # (outputs) -> numbers by name, or raises Failed
    dry: list = None  # commands in their place; None: not emulated
    needs: tuple = ()  # (program, option): not built yet unless its --help names it
    predicted: dict = field(default_factory=dict)  # numbers by name, written down before anything ran
    turns: int = 0  # rounds that the commands, which run side by side, take in turns: support/turns.hpp of the benchmarks
    built: bool = True


def objects(output):
    """The JSON objects of a program's output, one per line, but those that sum up the others; the rest is prose."""
    found = []
    for line in output.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and "summary" not in value:
            found.append(value)
    return found


def number(record, name):
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise Failed(f"no number {name} in its output")
    return value


def passes(outputs):
    """doctest: every case ran and passed, at least one."""
    cases = asserts = 0
    for output in outputs:
        found = re.search(r"test cases: +(\d+) \| +(\d+) passed \| +0 failed", output)
        if not found or found[1] != found[2] or int(found[1]) == 0:
            raise Failed("doctest's summary is not that all cases passed")
        cases += int(found[1])
        more = re.search(r"assertions: +(\d+) \|", output)
        asserts += int(more[1]) if more else 0
    return {"cases": cases, "assertions": asserts}


def says(*words):
    """What each output says; where there are more outputs, the last of these."""
    def check(outputs):
        for n, output in enumerate(outputs):
            if not re.search(words[min(n, len(words) - 1)], output):
                raise Failed(f"does not say '{words[min(n, len(words) - 1)]}'")
        return {}
    return check


def fields(*names, of=lambda record: ""):
    """These numbers of every object; `of` names the object."""
    def check(outputs):
        numbers = {}
        for output in outputs:
            records = objects(output)
            if not records:
                raise Failed("printed no JSON")
            for record in records:
                for name in names:
                    numbers.setdefault(of(record) + name, []).append(number(record, name))
        return {name: sorted(values)[len(values) // 2] for name, values in numbers.items()}
    return check


def learns(outputs):
    """gpu_gpt: the loss falls, and is the same in every bit for every K and in every run."""
    seen = {}
    for record in (r for output in outputs for r in objects(output)):
        first, last = number(record, "first_loss"), number(record, "last_loss")
        if not last < first:
            raise Failed(f"the loss goes from {first} to {last} with K = {record.get('K')}")
        seen[first, last] = True
    if len(seen) != 1:
        raise Failed("printed no JSON" if not seen else f"the bits differ: {sorted(seen)}")
    return {"first_loss": first, "last_loss": last}


def nearly(outputs):
    """gpu_gpt in two precisions: both lose nine tenths of their loss, and what is left differs by a tenth."""
    seen = [record for output in outputs for record in objects(output)]
    if len(seen) != 2 or seen[0].get("precision") == seen[1].get("precision"):
        raise Failed("printed no JSON of two precisions")
    (first, last), (_, other) = ((number(r, "first_loss"), number(r, "last_loss")) for r in seen)
    if not (abs(last - other) <= 0.1 * last and last <= 0.1 * first):
        raise Failed(f"the losses come to {last} and {other}")
    return {"first_loss": first, **{f"{r.get('precision')} last_loss": number(r, "last_loss") for r in seen}}


def quartiles(values):
    """Linear between neighbours, as benchmarks/support/statistics.hpp."""
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def against(*labels):
    """What took turns, one label per command: the median of each, and of the ratios round by round of each to those
    before it, with quartiles."""
    def check(outputs):
        series = {}
        for label, output in zip(labels, outputs):
            if isinstance(output, Failed):
                continue
            records = objects(output)
            if not records:
                raise Failed("printed no JSON")
            for record in records:
                cells = f"K={record.get('K')}" if len(records) > 1 or not label else ""
                times = record.get("round_milliseconds")
                if not isinstance(times, list) or not times or not all(number({"ms": t}, "ms") > 0 for t in times):
                    raise Failed("no numbers round_milliseconds in its output")
                series[" ".join(filter(None, (label, cells)))] = times
        if len({len(times) for times in series.values()}) != 1:
            raise Failed("not all took as many rounds: " + ", ".join(f"{n} {len(t)}" for n, t in series.items()))
        numbers, names = {}, list(series)
        for name, times in series.items():
            numbers.update(spread(name + " ms", times))
        for n, name in enumerate(names):
            for base in names[:n]:
                numbers.update(spread(f"{name} / {base}", [a / b for a, b in zip(series[name], series[base])]))
        return numbers
    return check


def spread(name, values):
    q1, middle, q3 = quartiles(values)
    return {name: middle, name + " q1": q1, name + " q3": q3}


# Of tests/gpu: seconds, and what runs in their place where there is no GPU. The small ones first; those that are not
# here stand behind.
TESTS = {
    "reduce": (60, ["emulated.reduce"]), "kernels": (60, ["emulated.kernels"]),
    "random": (60, ["emulated.random"]), "blas": (60, None), "device": (60, ["emulated.device"]),
    "timing": (60, None), "rows": (60, ["emulated.rows"]), "precision": (60, ["emulated.precision"]), "thrust": (90, None),
    "training": (200, ["emulated.training", "-tc=P6*"]),
    "gpt_layers": (200, ["emulated.gpt_layers", "-tc=the perceptron*"]),
    "replicas": (60, ["emulated.replicas"]), "control": (100, ["emulated.control"]), "faults": (100, None),
}
TESTS.update({f.stem: (60, None) for f in sorted((ROOT / "tests" / "gpu").glob("*.cu")) if f.stem not in TESTS})
SMALL = ["reduce", "kernels", "random", "rows", "batch_norm", "gradient_tap"]  # kernels of the library
CALLS = ["device", "given", "inference", "control", "layers", "precision", "skips"]  # for memcheck alone; racecheck takes 45 s for the last
# Estimates in milliseconds per step of gpu_gpt, written down before anything ran (8,192 tokens).
PREDICTED = {("fp32", 8): 232, ("fp32", 1): 185, ("tf32", 8): 84, ("tf32", 1): 59, ("bf16", 8): 58, ("bf16", 1): 34}
PREDICTED_CUDNN = 25
SELF = [sys.executable, str(pathlib.Path(__file__).resolve())]
OURS = ["PROGRAM:gpu_gpt"]
TORCH = [sys.executable, str(ROOT / "benchmarks" / "gpu_gpt_torch.py")]


def gpt(*options, rounds=3):
    return ["gpu_gpt", "--json", "--rounds", str(rounds), *options]


def compared(record):
    """An object of the benchmarks that run what they compare in turns themselves."""
    return f"{record.get('unit')} / {record.get('baseline')}: "


def recorded_by(label, command):
    """A command with a recorder of its last round (benchmarks/support/gpu_timeline.cpp), beside the report."""
    return ["env", "CUDA_INJECTION64_PATH=PROGRAM:libgpu_timeline.so",
            f"GPIPE_GPU_TIMELINE=OUT:timeline-{label.replace('=', '')}.json", *command, "--rounds", "1"]


def recorded(*labels):
    """What the recorder says at each command's end."""
    def check(outputs):
        numbers = {}
        for label, output in zip(labels, outputs):
            told = [record for record in objects(output) if "timeline_ms" in record]
            if len(told) != 1 or number(told[0], "kernels") == 0 or number(told[0], "lost") > 0:
                raise Failed(f"{label}: no timeline, or with gaps: {told}")
            numbers.update({f"{label} {name}": told[0][name] for name in ("kernels", "timeline_ms", "idle_share")})
        return numbers
    return check


def right():
    steps = [Step("environment", [SELF + ["environment"]], 60, lambda o: {}, dry=[SELF + ["environment", "--dry"]])]
    steps += [Step("DeviceProperties of cuDNN", built=False)]
    steps += [Step("test " + name, [["gpu." + name]], limit, passes, dry=[dry] if dry else None)
              for name, (limit, dry) in TESTS.items()]
    rate = lambda record: f"{record.get('what')} {record.get('rows') or ''}".rstrip() + " "
    steps += [
        Step("examples", [["custom_layer"], ["mixed_precision"], ["mixed_precision", "--half"]], 60,
             says(r"loss 0[.]000[0-9], y = -?0[.]0[0-9] 1[.]00 2[.]00 3[.]00 4[.]00\n$",
                  r"loss 0[.]00[0-9]+, y = -0[.][45][0-9] 0[.][45][0-9] 0[.][45][0-9] -0[.][45][0-9]\n$",
                  r"loss 0[.]00[0-9]+, y = .*; [1-9] steps skipped, scale (65536|32768|16384)\n$"),
             dry=[["emulated.custom_layer"], ["emulated.mixed_precision"], ["emulated.mixed_precision", "--half"]]),
        Step("a rank over NCCL", [["cuda.nccl"]], 60, passes),
        Step("ceilings", [["gpu_ceilings", "--json"]], 90, fields("rate", of=rate),
             predicted={"FP32 1024 rate": 38, "FP32 8192 rate": 48, "TF32 1024 rate": 190, "TF32 8192 rate": 300,
                        "BF16 1024 rate": 330, "BF16 8192 rate": 520, "copy rate": 3000}),
        Step("ceilings of floats in bf16", [["gpu_ceilings", "--json", "--emulated"]], 90, fields("rate", of=rate)),
        Step("gpu_gpt learns, K = 1 and 4", [gpt("--cells", "1,4", "--checkpointing", "except-last")], 90, learns),
        Step("train_gpt on a GPU", [["train_gpt", "--device", "cuda", "--gpus", "0,0", "--text", str(ROOT / "README.md"),
                                     "--steps", "100", "--sample", "20"]], 60, says(".")),
        Step("train_gpt as replicas on a GPU", [["train_gpt", "--device", "cuda", "--cells", "1", "--replicas", "2",
                                                 "--gpus", "0,0", "--text", str(ROOT / "README.md"), "--steps", "100",
                                                 "--sample", "20"]], 60, says(".")),
    ]
    return steps


def turns(name, limit, needs=(), predicted={}, **commands):
    """A step whose commands, by label, take turns of ten rounds."""
    return Step(name, [command + ["--json", "--turns"] for command in commands.values()], limit, against(*commands),
                turns=10, needs=(*needs, ("gpu_gpt", "--turns")), predicted=predicted)


def fast():
    steps = []
    theirs = TORCH + ["--attention", "fused", "--fused-optimizer"]
    for precision in ("fp32", "tf32", "bf16"):
        for batches in (8, 1):
            options = ["--micro-batches", str(batches)] + ([] if precision == "fp32" else ["--precision", precision])
            ours = {"ours": OURS + ["--cells", "1,4", *options]}
            if precision == "bf16":  # whose kernels are so short that a step's launches show
                ours["graphs"] = OURS + ["--cells", "1", "--graphs", "1", *options]
            steps.append(turns(f"gpt {precision} M={batches}", 60, PyTorch=theirs + options, **ours,
                               needs=tuple(("gpu_gpt", o) for o in options[2:3]),
                               predicted={"ours K=1 ms": PREDICTED[precision, batches]}))
    steps += [
        Step("gpt bf16, attention by cuDNN", built=False, predicted={"ours K=1 ms": PREDICTED_CUDNN}),
    ]
    one, four = ["--micro-batches", "1"], OURS + ["--cells", "4"]
    return steps + [
        *(turns(f"PyTorch compiled, {precision} M=1", 120, needs=(("gpu_gpt_torch", "--compile"),),
                compiled=theirs + one + ["--compile", "--precision", precision],
                ours=OURS + ["--cells", "1", *one, "--precision", precision]) for precision in ("fp32", "bf16")),
        turns("gpt K=4, graphs", 60, needs=(("gpu_gpt", "--graphs"),), streams=four, graphs=four + ["--graphs", "1"]),
        turns("gpt bf16, a norm and evaluate", 60, needs=(("gpu_gpt", "--clip-norm"),),
              **{name: OURS + ["--cells", "1", "--precision", "bf16", *options]
                 for name, options in {"step": [], "with a norm": ["--clip-norm", "1000000"],
                                       "evaluate": ["--evaluate"]}.items()}),
        turns("gpt K=4, links", 60, needs=(("gpu_gpt", "--link"),),
              **{link: four + ["--link", link] for link in ("shared", "staged", "copied")}),
        turns("gpt K=4, connections", 60,
              **{f"{n} connections": ["env", f"CUDA_DEVICE_MAX_CONNECTIONS={n}", *four] for n in (8, 32)}),
        Step("overhead", [["gpu_overhead", "--json", "--rounds", "5"]], 90, fields("ratio", of=compared),
             dry=[["emulated.gpu_overhead", "--json", "--rounds", "1", "--milliseconds", "0.01", "--kernels", "tiny",
                   "--cells", "1,4", "--micro-batches", "4"]]),
        Step("timelines of a step", [recorded_by("K=1", OURS + ["--cells", "1"]),
                                     recorded_by("K=4", OURS + ["--cells", "4"]), recorded_by("PyTorch", theirs)],
             90, recorded("K=1", "K=4", "PyTorch")),
    ]


def safe():
    sanitize = ["sh", str(ROOT / "tests" / "scripts" / "sanitize")]
    steps = [Step(f"{tool} {name}", [sanitize + [tool, "PROGRAM:gpu." + name]], 60, says("SUMMARY: 0 (errors|hazards)"))
             for tool in ("memcheck", "racecheck", "synccheck")
             for name in SMALL + CALLS * (tool == "memcheck")]
    twice = gpt("--cells", "1", rounds=5)
    return steps + [
        Step("memory", [["gpu_memory", "--json"]], 120,
             fields("ours", "theirs", "used_bytes", of=lambda record: f"{record.get('checkpointing')} ")),
        Step("the same run twice: bits", [twice, twice], 60, learns),
        Step("profile of ten kernels",
             [["ncu", "--set", "basic", "--clock-control", "none", "--profile-from-start", "off", "--launch-count", "10",
               "PROGRAM:gpu_gpt", "--cells", "1", "--rounds", "1", "--warm-up", "1"]], 120, says("Duration")),
        Step("200 steps in bf16 against fp32", [gpt("--cells", "1", "--micro-batches", "1", "--precision", precision, rounds=200)
                                                for precision in ("fp32", "bf16")], 90, nearly),
    ]


PARTS = {"right": right, "fast": fast, "safe": safe}
PROGRAMS = ["gpu." + name for name in TESTS] + [
    "cuda.nccl", "custom_layer", "mixed_precision", "train_gpt", "gpu_ceilings", "gpu_gpt", "gpu_memory", "gpu_overhead",
    "libgpu_timeline.so"]


# ---- running them

def library_path():
    """Where cuBLAS and cuDNN are: the toolkit, and PyTorch's environment."""
    import importlib.util
    folders = [os.environ.get("CUDA_PATH", "/usr/local/cuda") + folder for folder in ("/lib64", "/lib")]
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folders += sorted(glob.glob(place + "/*/lib"))
    return ":".join(f for f in folders if os.path.isdir(f))


def run_command(command, limit, environment, log=None):
    """Its output, both streams, which is added to the log; raises Failed, or TimeoutError with all that it started
    killed."""
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                     start_new_session=True, env=environment, cwd=ROOT)
        except OSError as error:
            raise Failed(f"{pathlib.Path(command[0]).name}: {error.strerror}") from None
        try:
            status = child.wait(max(limit, 0.01))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
            output.seek(0)
            text = output.read().decode(errors="replace")
            note(log, command, text)
    return said(status, text)


def note(log, command, text):
    if log is not None:
        with open(log, "a") as file:
            file.write(f"$ {' '.join(command)}\n{text}\n")


def said(status, text):
    if status != 0:
        lines = [line for line in text.splitlines() if line.strip()]
        raise Failed(f"exit status {status}: {lines[-1].strip()[:160] if lines else 'it said nothing'}")
    return text


class Player:
    """A program that takes a round for each line that it is told, and says `ready`, then `done`."""

    def __init__(self, command, environment, log):
        self.name, self.text, self.errors = pathlib.Path(command[0]).name, b"", tempfile.TemporaryFile()
        self.command, self.log = command, log
        try:
            self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                          start_new_session=True, env=environment, cwd=ROOT, bufsize=0)
        except OSError as error:
            self.errors.close()
            raise Failed(f"{self.name}: {error.strerror}") from None

    def read(self, end):
        """Whether there was more to read before its end."""
        if not select.select([self.child.stdout], [], [], max(end - time.monotonic(), 0))[0]:
            raise TimeoutError
        more = self.child.stdout.read(1 << 16)
        self.text += more
        return bool(more)

    def hear(self, word, times, end):
        while self.text.splitlines().count(word) < times or not self.text.endswith(b"\n"):
            if not self.read(end):
                self.finish(end)
                raise Failed(f"{self.name} ended before its turn")

    def play(self, times, end):
        try:
            self.child.stdin.write(b"\n")
        except BrokenPipeError:
            pass  # it is not heard then
        self.hear(b"done", times, end)

    def finish(self, end):
        """Its output; raises Failed."""
        self.child.stdin.close()
        while self.read(end):
            pass
        try:
            status = self.child.wait(max(end - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        return said(status, self.output())

    def output(self):
        self.errors.seek(0)
        return (self.text + self.errors.read()).decode(errors="replace")

    def kill(self):
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.child.wait()
        note(self.log, self.command, self.output())
        for file in (self.child.stdin, self.child.stdout, self.errors):
            file.close()


def run_in_turns(commands, rounds, limit, environment, log):
    """The outputs of programs that are all there at once, of which one after the other takes a round; of those that fail,
    after which the others go on, the failures."""
    end, players, results = time.monotonic() + limit, {}, [None] * len(commands)
    def each(act):
        for n in [n for n, result in enumerate(results) if result is None]:
            try:
                results[n] = act(n)
            except Failed as failure:
                results[n] = failure
    try:
        each(lambda n: players.update({n: Player(commands[n], environment, log)}))
        each(lambda n: players[n].hear(b"ready", 1, end))
        for times in range(1, rounds + 1):
            each(lambda n: players[n].play(times, end))
        each(lambda n: players[n].finish(end))
        return results
    finally:
        for player in players.values():
            player.kill()


def smi(query):
    """What nvidia-smi says of the first GPU; None where there is none."""
    try:
        done = subprocess.run(["nvidia-smi", "--id=0", "--query-gpu=" + query, "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def library_versions():
    """cuBLAS and cuDNN as the loader finds them; None where it does not."""
    versions = {"cublas": None, "cudnn": None}
    try:
        library, value, parts = ctypes.CDLL("libcublas.so.13"), ctypes.c_int(), []
        for which in range(3):  # MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL
            library.cublasGetProperty(which, ctypes.byref(value))
            parts.append(str(value.value))
        versions["cublas"] = ".".join(parts)
    except OSError:
        pass
    try:
        versions["cudnn"] = str(ctypes.CDLL("libcudnn.so.9").cudnnGetVersion())
    except OSError:
        pass
    return versions


def environment(programs, dry):
    """One JSON object of this machine; fails where a program would not start."""
    name, driver = (smi("name,driver_version") or ", ").split(", ")[:2]
    record = {"gpu": name or None, "driver": driver or None, "clocks": smi("clocks.sm,clocks.mem"), **library_versions()}
    missing = []
    for program in [] if dry else PROGRAMS:
        path = pathlib.Path(programs) / program
        told = subprocess.run(["ldd", str(path)], capture_output=True, text=True).stdout if path.exists() else ""
        missing += [f"{program}: {line.strip()}" for line in told.splitlines() if "not found" in line]
        missing += [] if path.exists() else [f"{program}: not in the archive"]
    print(json.dumps({**record, "missing": missing}))
    if missing:
        sys.exit(f"{len(missing)} things are missing, first {missing[0]}")
    if not dry and record["gpu"] is None:
        sys.exit("nvidia-smi: there is no GPU here")


class Report:
    """Runs a part's steps, and notes each as soon as it is over."""

    def __init__(self, part, programs, out, commit, deadline=DEADLINE, dry=False):
        self.part, self.programs, self.out, self.commit = part, programs, pathlib.Path(out), commit
        self.log = self.out.with_suffix(".log")
        self.deadline, self.dry, self.records = deadline, dry, []
        self.environment = {**os.environ, "GPU_REPORT_PROGRAMS": str(programs)}
        self.environment["LD_LIBRARY_PATH"] = ":".join(
            p for p in (library_path(), os.environ.get("LD_LIBRARY_PATH", "")) if p)
        self.facts = {}

    def resolved(self, command):
        def path(word):
            return word if "/" in word else str(pathlib.Path(self.programs) / word)
        beside = str(self.out.parent.resolve()) + "/"
        named = [re.sub(r"PROGRAM:(.*)", lambda found: path(found[1]), word).replace("OUT:", beside) for word in command]
        found = "/" in named[0] or (shutil.which(named[0]) and named[0] not in PROGRAMS)
        return named if found else [path(named[0]), *named[1:]]

    def lacks(self, step):
        """An option of a program that this commit does not have."""
        for program, option in step.needs:
            command = TORCH if program == "gpu_gpt_torch" else self.resolved([program])
            try:
                if not re.search(re.escape(option) + r"\b", run_command([*command, "--help"], 30, self.environment)):
                    return option
            except (Failed, TimeoutError):
                return None  # which its step will say
        return None

    def one(self, step, limit):
        """(status, reason, numbers)"""
        commands = step.dry if self.dry else step.commands
        if not step.built:
            return NOT_BUILT, None, {}
        if commands is None:
            return NOT_EMULATED, None, {}
        if not self.dry and (option := self.lacks(step)):
            return NOT_BUILT, f"no {option} at this commit", {}
        end, outputs = time.monotonic() + limit, []
        try:
            if step.turns:
                outputs = run_in_turns([self.resolved(command) for command in commands], step.turns, limit, self.environment,
                                       self.log)
            for command in commands if not step.turns else []:
                outputs.append(run_command(self.resolved(command), end - time.monotonic(), self.environment, self.log))
            failures = [str(output) for output in outputs if isinstance(output, Failed)]
            numbers = {} if failures and len(failures) == len(outputs) else step.passing(outputs)
            return ("failed", failures[0], numbers) if failures else ("passed", None, numbers)
        except TimeoutError:
            return "timeout", f"killed after {limit:.0f} s", {}
        except Failed as failure:
            return "failed", str(failure), {}

    def run(self, steps):
        self.out.parent.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        try:
            told = run_command([*SELF, "environment", "--dry"], 60, self.environment)
            self.facts = {k: v for k, v in objects(told)[-1].items() if k != "missing"}
        except (Failed, TimeoutError, IndexError):
            pass
        with open(self.out, "a") as lines:
            for step in steps:
                start = time.monotonic()
                left = self.deadline - (start - begin)
                if left <= 0:
                    status, reason, numbers = "skipped", f"after the deadline of {self.deadline:g} s", {}
                else:
                    status, reason, numbers = self.one(step, min(step.limit, left))
                record = {"name": step.name, "part": self.part, "status": status,
                          "seconds": round(time.monotonic() - start, 3), "numbers": numbers, "predicted": step.predicted,
                          "reason": reason, "commit": self.commit, "dry": self.dry, "gpu": None, "clocks": None,
                          "driver": None, "cublas": None, "cudnn": None, **self.facts}
                if self.facts.get("gpu"):
                    record["clocks"] = smi("clocks.sm,clocks.mem")
                lines.write(json.dumps(record, allow_nan=False) + "\n")
                lines.flush()
                os.fsync(lines.fileno())
                self.records.append(record)
        return not any(r["status"] in ("failed", "timeout", "skipped") for r in self.records)

    def table(self):
        head = f"{self.part}, commit {self.commit[:12]}, "
        head += "dry run: no GPU" if self.dry else str(self.facts.get("gpu") or "no GPU")
        return "\n".join([head] + [line_of(r) for r in self.records] + [sum_of(self.records)])


def short(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def line_of(record):
    """One step; measured numbers, with quartiles, predicted ones behind them in square brackets."""
    numbers = record["numbers"]
    def one(name):
        quarters = [short(numbers[name + q]) for q in (" q1", " q3") if name + q in numbers]
        return (f"{name} {short(numbers[name])}" + (f" ({'-'.join(quarters)})" if quarters else "") +
                (f" [{short(record['predicted'][name])}]" if name in record["predicted"] else ""))
    shown = [one(name) for name in numbers if not re.search(" q[13]$", name)]
    shown += [f"{name} [{short(value)}]" for name, value in record["predicted"].items() if name not in record["numbers"]]
    said = "; ".join(([record["reason"]] if record["reason"] else []) + shown[:6])
    return f"{record['name'][:32]:32} {record['status'][:17]:17} {record['seconds']:7.1f} s  {said[:240]}".rstrip()


def sum_of(records):
    counts = {}
    for record in records:
        counts[record["status"]] = counts.get(record["status"], 0) + 1
    return ", ".join(f"{n} {status}" for status, n in counts.items())


# ---- the programs

def git(*arguments):
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise Refused("git does not say what HEAD is here: give --head COMMIT")
    return done.stdout.strip()


def clean_head():
    if git("status", "--porcelain", "--untracked-files=no"):
        raise Refused("the working tree differs from HEAD: commit first, so that the archive's name is true")
    return git("rev-parse", "HEAD")


def prebuild(only):
    head, build = clean_head(), ROOT / "build" / "gpu-sm90"
    # Of no processor in particular: the programs run elsewhere. With old tags the libraries beside them are found by
    # each other, too.
    subprocess.run(["cmake", "--preset", "gpu", "-B", str(build), "-D", "CMAKE_CUDA_ARCHITECTURES=90",
                    "-D", "CMAKE_BUILD_RPATH=$ORIGIN", "-D", "GPIPE_NATIVE=OFF",
                    "-D", "CMAKE_COMPILE_WARNING_AS_ERROR=OFF", "-D",
                    "CMAKE_EXE_LINKER_FLAGS=-static-libstdc++ -static-libgcc -Wl,--disable-new-dtags"], cwd=ROOT, check=True)
    (build / "COMMIT").unlink(missing_ok=True)
    programs = list(only or PROGRAMS)
    known = subprocess.run(["cmake", "--build", str(build), "--target", "help"], cwd=ROOT, check=True,
                           stdout=subprocess.PIPE, text=True).stdout
    for program, needed in ("gpu.convnet", "cuDNN"), ("cuda.nccl", "NCCL"):
        if program in programs and program not in known:
            print(f"without {program}: there is no {needed} here")
            programs.remove(program)
    subprocess.run(["cmake", "--build", str(build), "--target", *programs], cwd=ROOT, check=True)
    if clean_head() != head:
        raise Refused("HEAD moved while the programs were built: build them anew")
    (build / "COMMIT").write_text(head + "\n")


def libraries(told):
    """Of what ldd has told: files to be packed, and names that are left to the machine, which has the C library; NVIDIA's
    are too large."""
    taken, left = set(), set()
    for name, where in re.findall(r"^\s*(\S+) => (/\S+|not found)", told, re.MULTILINE):
        leaves = where == "not found" or re.match(r"lib(c|m|dl|rt|pthread|cuda|cudart|cublas|cublasLt|cudnn|nccl)[.]so", name)
        (left if leaves else taken).add(name if leaves else where)
    return taken, {name for name in left if not re.match(r"lib(c|m|dl|rt|pthread)[.]so", name)}


def pack(build=ROOT / "build" / "gpu-sm90", to=ROOT / "build", head=None):
    head = head or clean_head()
    if not (build / "COMMIT").exists() or (build / "COMMIT").read_text().strip() != head:
        raise Refused("the programs are not of HEAD: gpu-report prebuild")
    name = "gpu-report-" + head
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work) / name
        folder.mkdir()
        (folder / "COMMIT").write_text(head + "\n")
        left = set()
        for program in PROGRAMS:
            for room in ("tests", "examples", "benchmarks"):
                if (build / room / program).exists():
                    shutil.copy(build / room / program, folder)
                    told = subprocess.run(["ldd", str(build / room / program)], capture_output=True, text=True).stdout
                    taken, more = libraries(told)
                    left |= more
                    for library in taken:
                        shutil.copy(library, folder)
        for file in folder.iterdir():
            if file.name != "COMMIT":
                subprocess.run(["strip", str(file)], check=False, stderr=subprocess.DEVNULL)
        archive = to / (name + ".tar.gz")
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(folder, name)
    lacking = [p for p in PROGRAMS if not any((build / r / p).exists() for r in ("tests", "examples", "benchmarks"))]
    print(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB" + (f", without {', '.join(lacking)}" if lacking else "") +
          (f"; the machine has to have {', '.join(sorted(left))}" if left else ""))
    return archive


def programs_of(place, head):
    """The folder of an archive's programs, which must be HEAD's."""
    if place is None:
        found = sorted((ROOT / "build").glob("gpu-report-*.tar.gz"), key=lambda f: f.stat().st_mtime)
        exact = ROOT / "build" / f"gpu-report-{head}.tar.gz"
        if not found:
            raise Refused("there is no build/gpu-report-COMMIT.tar.gz: gpu-report prebuild, then pack")
        place = exact if exact.exists() else found[-1]
    place = pathlib.Path(place)
    if place.is_file():
        try:
            with tarfile.open(place) as tar:
                folder = place.with_name(tar.getnames()[0].split("/")[0])
                tar.extractall(place.parent)
        except (tarfile.TarError, OSError, IndexError):
            raise Refused(f"{place} is no archive of gpu-report pack") from None
        place = folder
    if not (place / "COMMIT").is_file():
        raise Refused(f"{place} holds no programs of gpu-report pack")
    commit = (place / "COMMIT").read_text().strip()
    if commit != head:
        raise Refused(f"the programs are of commit {commit[:12]}, HEAD is {head[:12]}: build them anew")
    return place


# ---- merging

def read_records(file):
    try:
        text = pathlib.Path(file).read_text()
    except (OSError, UnicodeDecodeError):
        raise Refused(f"{file} cannot be read") from None
    records = []
    for n, line in enumerate(text.splitlines(keepends=True), 1):
        try:
            record = json.loads(line)
            ok = isinstance(record, dict) and {"name", "part", "status", "numbers", "predicted", "commit", "dry"} <= set(record)
        except ValueError:
            if not line.endswith("\n"):
                continue  # whoever wrote it was killed
            ok = False
        if not ok:
            raise Refused(f"{file}: line {n} is no step of a report")
        records.append(record)
    return records


def merge(files, out, reports=REPORTS):
    records = [record for file in files for record in read_records(file)]
    steps = list({(r["part"], r["name"]): r for r in records}.values())  # a later run counts
    if not steps:
        raise Refused("there is no step in these files")
    for what in ("commit", "dry"):
        values = sorted({str(r[what]) for r in records})
        if len(values) > 1:
            raise Refused(f"the files are of more than one {what}: {', '.join(v[:12] for v in values)}")
    last = sorted(reports.glob("*.json")) if reports.is_dir() else []
    last = [f for f in last if f.resolve() != pathlib.Path(out + ".json").resolve()]
    whole = json.dumps({"commit": steps[0]["commit"], "dry": steps[0]["dry"], "steps": []})
    pathlib.Path(out + ".json").write_text(whole[:-2] + "\n" + ",\n".join(map(json.dumps, steps)) + "]}\n")
    pathlib.Path(out + ".svg").write_text(svg(steps))
    print("\n".join(compare(steps, last[-1] if last else None)[:39] + [sum_of(steps)]))


def compare(steps, last):
    """Lines: every number that the last report has, too, and the ratio; those that changed most first."""
    if last is None:
        return ["there is no earlier report in the repository"]
    before = {(s["part"], s["name"]): s for s in json.loads(last.read_text())["steps"]}
    changes = []
    for step in steps:
        old = before.get((step["part"], step["name"]), {"numbers": {}, "status": "not there"})
        if old["status"] != step["status"]:
            changes.append((math.inf, f"{step['name']}: {old['status']} before, {step['status']} now"))
        for name, value in step["numbers"].items():
            then = old["numbers"].get(name)
            if then and value:
                changes.append((abs(math.log(abs(value / then))),
                                f"{step['name']}, {name}: {short(then)} before, {short(value)} now, {value / then:.3f} x"))
    return [f"beside {last.name}:"] + [line for _, line in sorted(changes, key=lambda c: -c[0])]


def svg(steps):
    """A bar for each number that was predicted: what was measured over that; without a bar what was not."""
    rows = [(f"{s['name']}: {name}", s["numbers"].get(name), value) for s in steps for name, value in s["predicted"].items()]
    height = 40 + 18 * len(rows)
    kind = "dry run: no GPU" if steps[0]["dry"] else str(steps[0].get("gpu") or "no GPU")
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{height}" font-family="sans-serif" font-size="12">',
             f'<text x="8" y="18">measured over predicted, {escape(kind)}, commit {escape(steps[0]["commit"][:12])}</text>',
             f'<line x1="500" y1="26" x2="500" y2="{height}" stroke="#888"/>']
    for row, (name, measured, predicted) in enumerate(rows):
        y = 44 + 18 * row
        ratio = measured / predicted if measured else 0
        lines.append(f'<text x="8" y="{y}">{escape(name[:48])}</text>')
        if ratio:
            lines.append(f'<rect x="300" y="{y - 10}" width="{min(200 * ratio, 380):.1f}" height="12" fill="#4a7ab5"/>')
        lines.append(f'<text x="690" y="{y}">{f"{ratio:.2f}" if ratio else "none"}</text>')
    return "\n".join(lines + ["</svg>", ""])


# ---- the command line

def main(arguments):
    class Parser(argparse.ArgumentParser):
        def error(self, message):
            raise Refused(f"{message}; try --help")

    parser = Parser(prog="gpu-report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser, metavar="COMMAND")
    commands.add_parser("prebuild").add_argument("--only", default="")
    commands.add_parser("pack")
    commands.add_parser("environment").add_argument("--dry", action="store_true")
    for name in PARTS:
        part = commands.add_parser(name)
        part.add_argument("--only", default="", help="steps whose name this regular expression finds")
        part.add_argument("--programs")
        part.add_argument("--head")
        part.add_argument("--out", default=str(ROOT / "build" / "gpu-report" / (name + ".jsonl")))
        part.add_argument("--deadline", type=float, default=DEADLINE)
        part.add_argument("--dry", action="store_true")
    merging = commands.add_parser("merge")
    merging.add_argument("files", nargs="+")
    merging.add_argument("--out", default=str(ROOT / "build" / "gpu-report" / "report"))
    found = parser.parse_args(arguments)
    if found.command == "prebuild":
        return prebuild([name for name in found.only.split(",") if name])
    if found.command == "pack":
        return pack() and None
    if found.command == "merge":
        return merge(found.files, found.out)
    if found.command == "environment":
        return environment(os.environ.get("GPU_REPORT_PROGRAMS", "."), found.dry)
    if not found.deadline > 0:
        raise Refused("--deadline takes a number of seconds above 0")
    try:
        steps = [step for step in PARTS[found.command]() if re.search(found.only, step.name)]
    except re.error as error:
        raise Refused(f"--only: {error}") from None
    if not steps:
        raise Refused(f"no step of {found.command} has a name like '{found.only}'")
    head = found.head or git("rev-parse", "HEAD")
    if found.dry:
        programs = pathlib.Path(found.programs or ROOT / "build" / "test" / "tests").resolve()
        if not programs.is_dir():
            raise Refused(f"{programs} is no folder: a dry run takes the tests of the preset test")
    else:
        programs = programs_of(found.programs, head).resolve()
    report = Report(found.command, programs, found.out, head, found.deadline, found.dry)
    good = report.run(steps)
    print(report.table())
    return None if good else sys.exit(1)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Refused as refusal:
        print(f"gpu-report: {refusal}", file=sys.stderr)
        sys.exit(2)
    except subprocess.CalledProcessError as error:
        print(f"gpu-report: {error.cmd[0]} ended with status {error.returncode}", file=sys.stderr)
        sys.exit(1)
