"""benchmarks/peers on lines that are made up, and on programs that are shell scripts: medians and ratios, which goals
are met, missed or not judged, losses that differ, runs that fail or hang, wrong arguments."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / "benchmarks" / "peers"
sys.dont_write_bytecode = True  # in the source's folder
loader = importlib.machinery.SourceFileLoader("peers", str(PEERS))
spec = importlib.util.spec_from_file_location("peers", PEERS, loader=loader)
peers = importlib.util.module_from_spec(spec)
sys.modules["peers"] = peers
spec.loader.exec_module(peers)

RATES = {"torch alone": 100, "torch GPipe": 110, "torch 1F1B": 120, "gpipe alone": 200, "threads GPipe": 300,
         "threads 1F1B": 320, "MPI GPipe": 297, "MPI 1F1B": 320, "control": 390}


def line(number, variant, rate, net="gpt", m=8, cpu=None, loss=2.0, **more):
    return {"round": number, "net": net, "M": m, "variant": variant, "unit": "tokens", "steps": 3, "seconds": 2.0,
            "per_second": rate, "per_cpu_second": rate if cpu is None else cpu, "first_loss": loss, "last_loss": loss, **more}


def lines(rounds=3, net="gpt", m=8, **rates):
    """Of whole rounds; rates that differ from RATES by name, with _ in place of a space."""
    rates = {**RATES, **{name.replace("_", " "): rate for name, rate in rates.items()}}
    return [line(number, name, rate, net, m) for number in range(1, rounds + 1) for name, rate in rates.items()]


class Statistics(unittest.TestCase):
    def goals(self, runs):
        return [verdict for _, verdict, _ in peers.Results(runs).goals()]

    def said(self, runs):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            good = peers.say(peers.Results(runs))
        return good, said.getvalue()

    def test_the_median_is_that_of_ratios_within_a_round(self):
        # Medians of the rates alone would give 1.
        runs = [line(number, name, rate) for number, pair in enumerate([(100, 200), (200, 300), (300, 100)], 1)
                for name, rate in zip(("MPI 1F1B", "threads 1F1B"), pair)]
        ratios = peers.Results(runs).ratios(("gpt", 8), "MPI 1F1B", "threads 1F1B")
        self.assertEqual(peers.statistics.median(ratios), 2 / 3)

    def test_a_round_in_which_one_failed_has_no_ratio_of_it(self):
        runs = lines()
        runs[:] = [r for r in runs if (r["round"], r["variant"]) != (2, "MPI GPipe")]
        runs.append({"round": 2, "net": "gpt", "M": 8, "variant": "MPI GPipe", "failed": "status 1: x"})
        results = peers.Results(runs)
        self.assertEqual(len(results.ratios(("gpt", 8), "MPI GPipe", "threads GPipe")), 2)
        self.assertEqual(len(results.ratios(("gpt", 8), "MPI 1F1B", "threads 1F1B")), 3)
        good, said = self.said(runs)
        self.assertFalse(good)
        self.assertIn("failed: round 2, gpt, M = 8, MPI GPipe: status 1: x", said)
        self.assertIn("1 rows with less than 3 rounds", said)
        self.assertIn("1 runs failed", said)

    def test_goals_met(self):
        good, said = self.said(lines())
        self.assertTrue(good, said)
        self.assertEqual(self.goals(lines()), ["met"] * 5)
        self.assertIn("least 0.990 (gpt, M = 8, GPipe), 2 of 2 rows reach it", said)
        self.assertIn("goals: 5 met, 0 missed, 0 not judged; 0 runs failed; losses were not compared", said)

    def test_the_row_furthest_behind_decides(self):
        runs = lines(net="mlp", m=4) + lines(net="mlp", m=32, MPI_1F1B=300) + lines()
        good, said = self.said(runs)
        self.assertFalse(good)
        self.assertIn("missed: MPI / threads, per second, at least 0.95: least 0.938 (mlp, M = 32, 1F1B), "
                      "5 of 6 rows reach it", said)
        self.assertIn("met: MPI / torch, per second, at least 2 from M = 8 on: least 2.500", said)

    def test_a_goal_is_met_by_the_clock_that_it_names(self):
        runs = [{**r, "per_cpu_second": 1} if r["variant"].startswith("MPI") else r for r in lines()]
        self.assertEqual(self.goals(runs), ["met", "met", "missed", "missed", "met"])

    def test_twice_torch_is_asked_from_eight_micro_batches_on(self):
        slow = {"MPI_GPipe": 150, "MPI_1F1B": 150, "threads_GPipe": 150, "threads_1F1B": 150}
        self.assertEqual(self.goals(lines(m=4, **slow))[:2], ["met", "not judged"])
        self.assertEqual(self.goals(lines(m=8, **slow))[:2], ["met", "missed"])

    def test_two_rounds_are_too_few(self):
        good, said = self.said(lines(rounds=2))
        self.assertTrue(good)
        self.assertEqual(self.goals(lines(rounds=2)), ["not judged"] * 5)
        self.assertIn("0 met, 0 missed, 5 not judged", said)

    def test_speed_ups_are_judged_where_the_control_allows_it(self):
        behind = {"MPI_GPipe": 210, "MPI_1F1B": 210}
        self.assertEqual(self.goals(lines(**behind))[4], "missed")
        self.assertEqual(self.goals(lines(control=370, **behind))[4], "not judged")
        good, said = self.said(lines(control=370))
        self.assertIn("not judged: speed-up of MPI over one process / that of torch, at least 1: the control is "
                      "below 1.9 in 1 of 1 rows", said)
        self.assertEqual(said.count("1.850 (1.85-1.85)  not judged\n"), 2)
        self.assertEqual(self.goals(lines(control=370) + lines(net="mlp", **behind))[4], "missed")

    def test_the_control_is_the_sum_of_two(self):
        record = peers.record_of(peers.Variant("control"), [line(1, "", 100, cpu=50), line(1, "", 80, cpu=100)])
        self.assertEqual(record["per_second"], 180)
        self.assertAlmostEqual(record["per_cpu_second"], 2 / (1 / 50 + 1 / 100))

    def test_tables_have_the_medians(self):
        runs = [{**r, "per_second": r["per_second"] + r["round"]} for r in lines()]
        table = peers.Results(runs).table()
        self.assertIn("   8  GPipe          102       112       202       302       299  ", table[2])
        self.assertIn("0.990 (0.99-0.99)", table[2])
        self.assertTrue(table[0].startswith("gpt: tokens per second, medians of 3 rounds"))

    def test_products_are_those_of_the_libraries_below(self):
        self.assertEqual(peers.Results(lines()).products(), [])
        runs = [{**r, "system": r["variant"].split()[0], "kernels": "K", "product_rate": 90 + r["round"] * 10} for r in lines()]
        self.assertEqual(peers.Results(runs).products(),
                         ["a product of one thread, 10^9 operations per second: gpipe: 110 (K); torch: 110 (K)"])

    def test_losses_that_differ_are_named(self):
        trial = [line(0, name, rate) for name, rate in RATES.items()]
        good, said = self.said(trial + lines())
        self.assertTrue(good)
        self.assertIn("losses agree", said)
        for variant, loss, differs in [("MPI 1F1B", 2.0 + 1e-15, True), ("MPI GPipe", 2.0 + 1e-15, True),
                                       ("torch 1F1B", 2.0 + 1e-6, False), ("torch 1F1B", 2.1, True),
                                       ("torch alone", float("nan"), True)]:
            with self.subTest(variant=variant, loss=loss):
                runs = [{**r, "last_loss": loss} if r["variant"] == variant else r for r in trial]
                good, said = self.said(runs + lines())
                self.assertEqual((good, "losses differ: gpt, M = 8: last loss" in said), (not differs, differs))


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)

    def program(self, name, script):
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n" + script + "\n")
        path.chmod(0o755)
        return path

    def printing(self, **fields):
        return "echo '" + json.dumps({**line(0, "", 100), **fields}) + "'"

    def command(self, *arguments):
        return subprocess.run([PEERS, *map(str, arguments)], capture_output=True, text=True)

    def lives(self, process):
        try:
            return pathlib.Path(f"/proc/{process}/stat").read_text().split()[2] not in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return False

    def refuses(self, words, *arguments):
        done = self.command(*arguments)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
        self.assertIn(words, done.stderr)

    def test_every_round_has_every_variant_once_and_begins_elsewhere(self):
        count = len(peers.VARIANTS)
        orders = [[v.name for v in peers.in_turns(n)] for n in range(count + 1)]
        self.assertEqual(len({order[0] for order in orders}), count)
        self.assertEqual({tuple(sorted(order)) for order in orders}, {tuple(sorted(RATES))})
        self.assertEqual(orders[0], orders[count])

    def test_what_is_run(self):
        for variant, words in [("threads GPipe", "P/peer_nets --net mlp --cells 2 --micro-batches 4 --schedule GPipe"),
                               ("MPI 1F1B", "--schedule OneForwardOneBackward --warm-up 2 --steps 5 --json --ranks 2"),
                               ("gpipe alone", "--cells 1 --micro-batches 4 --schedule OneForwardOneBackward"),
                               ("torch GPipe", "PY " + str(peers.TORCH) + " --net mlp --cells 2 --micro-batches 4 --schedule GPipe")]:
            found, = [v for v in peers.VARIANTS if v.name == variant]
            self.assertIn(words, " ".join(found.command(pathlib.Path("P"), "PY", "mlp", 4, 5, 2)))
        self.assertEqual([v.copies for v in peers.VARIANTS if v.name == "control"], [2])

    def test_a_run_that_fails_hangs_or_prints_rubbish(self):
        hangs = self.program("hangs", f"sh -c 'echo $$ > {self.work}/child; exec sleep 1000' & wait")
        for script, words in [("echo first >&2; echo why >&2; exit 3", "status 3: why"), ("exit 0", "is not one object"),
                              ("echo '[1]'", "is not one object"), ("exit 1", "it says nothing"),
                              (self.printing(per_second=None), "is not one object"),
                              (self.printing(first_loss="x"), "is not one object")]:
            with self.subTest(script=script), self.assertRaisesRegex(peers.Failed, words):
                peers.run([str(self.program("p", script))], 1, 20)
        begin = time.monotonic()
        with self.assertRaisesRegex(peers.Failed, "not done after 1 s"):
            peers.run([str(hangs)], 1, 1)
        self.assertLess(time.monotonic() - begin, 30)
        child = int((self.work / "child").read_text())
        while self.lives(child):
            self.assertLess(time.monotonic() - begin, 60)
            time.sleep(0.05)
        with self.assertRaisesRegex(peers.Failed, "No such file"):
            peers.run([str(self.work / "none")], 1, 1)

    def test_copies_run_at_once(self):
        met = self.program("meets", f"echo >> {self.work}/here; while [ $(wc -l < {self.work}/here) -lt 2 ]; do sleep 0.05; done; "
                           + self.printing())
        self.assertEqual(len(peers.run([str(met)], 2, 20)), 2)

    def test_a_measurement_from_begin_to_end(self):
        # Of 0.5 s for 2 steps, so 4 of them take a second. What MPI runs fails.
        self.program("peer_nets", f'echo "$*" >> {self.work}/called; case "$*" in *--ranks*) echo "no MPI" >&2; exit 1;; esac; '
                     + self.printing(steps=2, seconds=0.5))
        python = self.program("python", self.printing(steps=2, seconds=0.5))
        done = self.command(self.work / "out", "--programs", self.work, "--python", python, "--rounds", 3, "--seconds", 1,
                            "--nets", "mlp", "--micro-batches", "4,8")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("failed: round 0, mlp, M = 8, MPI 1F1B: status 1: no MPI", done.stdout)
        self.assertIn("goals: 0 met, 0 missed, 5 not judged; 4 runs failed; losses agree", done.stdout)
        called = (self.work / "called").read_text().splitlines()
        self.assertEqual(sum("--warm-up 2 --steps 4" in words for words in called), 3 * 2 * 5)
        self.assertEqual(sum("--ranks" in words for words in called), 4)  # what failed is not tried again
        path = self.work / "out" / "results.jsonl"
        again = self.command("--report", path)
        self.assertEqual(again.stdout, done.stdout.split("\n", 2)[2])
        both = self.command("--report", path, path)
        self.assertIn("medians of 6 rounds", both.stdout)

    def test_what_cannot_be_had_is_said_in_one_line(self):
        python = self.program("out/venv/bin/python", 'case "$*" in *pip*) echo "no route to host"; esac; exit 1')
        self.program("peer_nets", self.printing())
        done = self.command(self.work / "out", "--programs", self.work)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertEqual(done.stderr.splitlines()[-1],
                         "peers: PyTorch cannot be installed, perhaps PyPI is not reached: no route to host")
        python.unlink()

    def test_arguments_and_files(self):
        self.refuses("there is no peer_nets", "--programs", self.work)
        self.refuses("invalid list value: 'cnn'", "--nets", "cnn")
        self.refuses("invalid list value: '4,x'", "--micro-batches", "4,x")
        self.refuses("invalid list value: '3'", "--micro-batches", "3")
        self.refuses("--rounds and --seconds take", "--rounds", "0")
        self.refuses("--rounds and --seconds take", "--seconds", "nan")
        self.refuses("cannot be read", "--report", self.work / "none")
        for rubbish in ("rubbish\n", "[1]\n", '{"round": 1}\n', '{"round": 1, "net": "gpt", "M": 8, "variant": "x"}\n'):
            (self.work / "r").write_text(rubbish)
            self.refuses("lines that are no runs", "--report", self.work / "r")
        (self.work / "r").write_text('{"about": "peers"}\n')
        self.refuses("there is no run", "--report", self.work / "r")

    def test_dry_without_a_program_prints_commands(self):
        done = self.command("--dry", "--programs", self.work, "--nets", "mlp", "--micro-batches", "8")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("-m pip install torch\n", done.stdout)
        self.assertEqual(done.stdout.count("--net mlp"), len(peers.VARIANTS))
        self.assertIn("so nothing was run", done.stdout)


if __name__ == "__main__":
    unittest.main()
