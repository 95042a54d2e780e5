"""gpu-report where there is no GPU: steps that fail, hang or print rubbish, the deadline, wrong programs, bad arguments,
packing, merging; with programs that are shell scripts."""
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import xml.dom.minidom

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("gpu_report", ROOT / "cmake" / "gpu_report.py")
gpu_report = importlib.util.module_from_spec(spec)
sys.modules["gpu_report"] = gpu_report
spec.loader.exec_module(gpu_report)
Step = gpu_report.Step
HEAD = "0123456789abcdef0123456789abcdef01234567"
GOOD = "echo '[doctest] test cases:  3 |  3 passed | 0 failed | 0 skipped'; echo '[doctest] assertions: 12 | 12 passed'"


class Tests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        self.out = self.work / "out.jsonl"

    def program(self, name, script, folder=None):
        folder = folder or self.work
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("#!/bin/sh\n" + script + "\n")
        (folder / name).chmod(0o755)

    def run_steps(self, steps, **options):
        report = gpu_report.Report("right", self.work, self.out, HEAD, **options)
        return report.run(steps), report

    def lines(self):
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def command(self, *arguments, cwd=None, environment={}):
        return subprocess.run(["sh", str(ROOT / "cmake" / "gpu-report"), *arguments], capture_output=True, text=True,
                              cwd=cwd, env={**os.environ, **environment})

    def refuses(self, words, *arguments):
        done = self.command(*arguments)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
        self.assertIn(words, done.stderr)

    def test_a_step_that_fails_hangs_or_prints_rubbish_stops_no_other(self):
        self.program("good", GOOD)
        self.program("fails", GOOD + "; echo what is wrong >&2; exit 3")
        self.program("hangs", f"echo begun; sh -c 'echo $$ > {self.work}/child; exec sleep 1000' & wait")
        self.program("rubbish", "printf 'a\\377b\\n{\"first_loss\":'; echo '[1]'; echo '{\"first_loss\": \"x\"}'")
        self.program("silent", "exit 0")
        self.program("crashes", "kill -SEGV $$")
        self.program("nan", "echo '{\"first_loss\": NaN, \"last_loss\": 1}'")
        self.program("none_ran", "echo 'test cases: 0 | 0 passed | 0 failed'")
        self.program("some_ran", "echo 'test cases: 3 | 2 passed | 0 failed'")
        expected = {
            "good": ("passed", None), "fails": ("failed", "exit status 3: what is wrong"),
            "hangs": ("timeout", "killed after 1 s"), "rubbish": ("failed", "doctest's summary"),
            "silent": ("failed", "doctest's summary"), "crashes": ("failed", "exit status -11"),
            "none_ran": ("failed", "doctest's summary"), "some_ran": ("failed", "doctest's summary"),
            "not_there": ("failed", "No such file"),
        }
        steps = [Step(name, [[name]], 1 if name == "hangs" else 20, gpu_report.passes) for name in expected]
        steps += [Step(name, [[name]], 20, check) for name in ("rubbish", "silent", "nan")
                  for check in (gpu_report.learns, gpu_report.fields("first_loss"))]
        steps += [Step("more", built=False), Step("good again", [["good"], ["good"]], 20, gpu_report.passes)]
        good, report = self.run_steps(steps)
        self.assertFalse(good)
        records = self.lines()
        self.assertEqual([r["name"] for r in records], [s.name for s in steps])
        for record, (status, words) in zip(records, expected.values()):
            self.assertEqual(record["status"], status, record)
            self.assertIn(words or "", record["reason"] or "")
        for record in records[len(expected):-2]:
            self.assertEqual(record["status"], "failed", record)
        self.assertEqual([r["status"] for r in records[-2:]], ["not built yet", "passed"])
        self.assertEqual(records[-1]["numbers"], {"cases": 6, "assertions": 24})
        child = int((self.work / "child").read_text())
        self.assertFalse(os.path.exists(f"/proc/{child}") and
                         "Z" not in pathlib.Path(f"/proc/{child}/stat").read_text().split()[2])
        for record in records:
            self.assertEqual(record["commit"], HEAD)
            for name in ("seconds", "gpu", "clocks", "driver", "cublas", "cudnn"):
                self.assertIn(name, record)
        self.assertIn("2 passed", report.table().splitlines()[-1])
        log = self.out.with_suffix(".log").read_text()
        for said in (f"$ {self.work}/fails\n", "what is wrong", "begun"):
            self.assertIn(said, log)

    def test_each_line_is_on_the_disk_before_the_next_step_begins(self):
        synced = []
        self.program("count", f"wc -l < {self.out} >> {self.work}/counts; " + GOOD)
        before = os.fsync
        self.addCleanup(setattr, os, "fsync", before)
        os.fsync = lambda f: (synced.append(self.out.read_text().count("\n")), before(f))
        self.run_steps([Step("count", [["count"]], 20, gpu_report.passes)] * 3)
        self.assertEqual((self.work / "counts").read_text().split(), ["0", "1", "2"])
        self.assertEqual(synced, [1, 2, 3])

    def test_the_deadline_cuts_a_step_and_skips_the_rest_and_says_so(self):
        self.program("good", GOOD)
        self.program("slow", "sleep 1000")
        begin = time.monotonic()
        good, report = self.run_steps([Step("good", [["good"]], 20, gpu_report.passes),
                                       Step("slow", [["slow"]], 500, gpu_report.passes),
                                       Step("late", [["good"]], 20, gpu_report.passes),
                                       Step("later", built=False)], deadline=3)
        self.assertLess(time.monotonic() - begin, 60)
        self.assertFalse(good)
        self.assertEqual([r["status"] for r in self.lines()], ["passed", "timeout", "skipped", "skipped"])
        self.assertEqual(self.lines()[2]["reason"], "after the deadline of 3 s")
        self.assertIn("2 skipped", report.table())

    def test_an_option_that_this_commit_lacks_is_not_built_yet(self):
        self.program("gpu_gpt", "[ \"$1\" != --help ] || { echo '  --graphs n'; exit; }; " + GOOD)
        steps = [Step(option, [["gpu_gpt"]], 20, gpu_report.passes, needs=(("gpu_gpt", option),))
                 for option in ("--graphs", "--graph", "--precision")]
        good, _ = self.run_steps(steps)
        self.assertTrue(good)
        self.assertEqual([r["status"] for r in self.lines()], ["passed", "not built yet", "not built yet"])

    def test_losses_must_fall_and_have_the_same_bits(self):
        def said(*pairs):
            return ["\n".join(json.dumps({"K": 1, "first_loss": a, "last_loss": b}) for a, b in pairs)]
        self.assertEqual(gpu_report.learns(said((2.0, 1.5), (2.0, 1.5))), {"first_loss": 2.0, "last_loss": 1.5})
        summed_up = json.dumps({"summary": "last / first loss", "median": 0.75})
        self.assertEqual(gpu_report.learns([said((2.0, 1.5))[0] + "\n" + summed_up])["last_loss"], 1.5)
        for wrong in ([(2.0, 1.5), (2.0, 1.5000000000000002)], [(2.0, 2.0)], [(1.0, 2.0)], []):
            with self.assertRaises(gpu_report.Failed):
                gpu_report.learns(said(*wrong))

    def player(self, name, *rounds, script=""):
        """Milliseconds of each cell, by round: what it prints at its end."""
        cells = [json.dumps({"system": "gpipe", "K": k, "round_milliseconds": list(times)})
                 for k, times in zip((1, 4), zip(*rounds))]
        self.program(name, f"echo ready; while read -r line; do {script or 'true'}; echo {name} >> {self.work}/turns; echo done; "
                           "done; " + "; ".join(f"echo '{c}'" for c in cells))

    def test_programs_that_are_compared_take_their_rounds_in_turns(self):
        self.player("a", [50], [40], [60])
        self.player("b", [100, 90], [120, 60], [110, 99])
        _, report = self.run_steps([Step("turns", [["a"], ["PROGRAM:b"]], 20, gpu_report.against("A", "B"), turns=3,
                                         predicted={"B K=1 ms": 232}),
                                    Step("later", built=False, predicted={"B K=1 ms": 34})])
        self.assertEqual((self.work / "turns").read_text().split(), ["a", "b"] * 3)
        numbers = self.lines()[0]["numbers"]
        self.assertEqual({n: v for n, v in numbers.items() if n.endswith(" ms")}, {"A ms": 50, "B K=1 ms": 110, "B K=4 ms": 90})
        self.assertEqual((numbers["A ms q1"], numbers["A ms q3"]), (45, 55))
        # Of the ratios of each round, not the ratio of the medians.
        self.assertEqual(numbers["B K=1 / A"], 2)
        self.assertEqual((numbers["B K=1 / A q1"], numbers["B K=1 / A q3"]), ((110 / 60 + 2) / 2, 2.5))
        self.assertEqual(numbers["B K=4 / B K=1"], 0.9)
        table = report.table().splitlines()
        self.assertIn("B K=1 ms 110 (105-115) [232]", table[1])
        self.assertIn("B K=1 / A 2 (1.917-2.5)", table[1])
        self.assertIn("B K=1 ms [34]", table[2])

    def test_whoever_misses_a_turn_fails_the_step_and_nothing_of_it_is_left(self):
        self.player("good", [1], [1])
        self.player("short", [1])
        self.player("dies", [1], [1], script="echo out of memory >&2; exit 3")
        self.player("leaves", [1], [1], script="exit 0")
        self.player("hangs", [1], [1], script=f"sh -c 'echo $$ > {self.work}/child; exec sleep 1000'")
        self.player("zero", [0], [0])
        self.program("rubbish", "echo ready; while read -r line; do echo done; done; echo '{\"round_milliseconds\": [1, true]}'")
        self.program("mute", "exec sleep 1000")
        expected = {"short": ("failed", "not all took as many rounds: good 2, short 1"), "dies": ("failed", "status 3: out of memory"),
                    "leaves": ("failed", "leaves ended before its turn"), "zero": ("failed", "no numbers round_milliseconds"),
                    "rubbish": ("failed", "no number ms"), "hangs": ("timeout", "killed after 2 s"),
                    "mute": ("timeout", "killed after 2 s"), "not_there": ("failed", "No such file")}
        good, _ = self.run_steps([Step(name, [["good"], [name]], 2 if status == "timeout" else 20,
                                       gpu_report.against("good", name), turns=2) for name, (status, _) in expected.items()])
        self.assertFalse(good)
        for record, (status, words) in zip(self.lines(), expected.values()):
            self.assertEqual(record["status"], status, record)
            self.assertIn(words, record["reason"])
            self.assertEqual(record["numbers"].get("good ms"), 1 if record["name"] in ("dies", "leaves", "not_there") else None)
        child = int((self.work / "child").read_text())
        self.assertFalse(os.path.exists(f"/proc/{child}") and
                         "Z" not in pathlib.Path(f"/proc/{child}/stat").read_text().split()[2])

    def test_a_timeline_lies_beside_the_report_and_must_be_whole(self):
        def step(name, **told):
            told = {"kernels": 7, "copies": 1, "lost": 0, "timeline_ms": 2.5, "idle_share": 0.125, **told}
            self.program(name, "test $1 = --rounds && test -e \"$CUDA_INJECTION64_PATH\" || exit 1\n"
                         f"echo {{}} > \"$GPIPE_GPU_TIMELINE\"; echo '{json.dumps(told)}' >&2")
            return Step(name, [gpu_report.recorded_by("K=4", ["PROGRAM:" + name])], passing=gpu_report.recorded("K=4"))
        (self.work / "libgpu_timeline.so").touch()
        self.program("silent", "exit 0")
        self.run_steps([step("whole"), step("lossy", lost=1), step("empty", kernels=0),
                        Step("silent", [["silent"]], passing=gpu_report.recorded("K=4"))])
        self.assertTrue((self.work / "timeline-K4.json").exists())
        self.assertEqual([line["status"] for line in self.lines()], ["passed", "failed", "failed", "failed"])
        self.assertEqual(self.lines()[0]["numbers"], {"K=4 kernels": 7, "K=4 timeline_ms": 2.5, "K=4 idle_share": 0.125})

    def test_every_part_lists_its_steps_once_and_fits_a_table(self):
        for part, steps in gpu_report.PARTS.items():
            names = [s.name for s in steps()]
            self.assertEqual(len(names), len(set(names)))
            self.assertLessEqual(len(names), 38)
            self.assertEqual(len(names), len({n[:32] for n in names}), part)
            done = self.command(part, "--dry", "--programs", str(self.work), "--out", str(self.out))
            self.assertIn("dry run: no GPU", done.stdout.splitlines()[0])
            self.assertLessEqual(done.stdout.count("\n"), 40)
            self.assertEqual("not built yet" in done.stdout, not all(s.built for s in steps()))
            self.assertIn("dry: not emulated", done.stdout)
        self.assertTrue(all(r["dry"] and r["gpu"] is None for r in self.lines() if not os.path.exists("/dev/nvidiactl")))
        tests = {"gpu." + f.stem for f in (ROOT / "tests" / "gpu").glob("*.cu")}
        self.assertEqual(tests, {p for p in gpu_report.PROGRAMS if p.startswith("gpu.")})

    def test_bad_arguments_are_one_line_and_status_2(self):
        for words, *arguments in (["COMMAND"], ["invalid choice", "wrong"], ["above 0", "right", "--deadline", "0"],
                                  ["invalid float", "fast", "--deadline", "soon"], ["above 0", "safe", "--deadline", "nan"],
                                  ["unrecognized", "right", "--wet"], ["files", "merge"],
                                  ["cannot be read", "merge", str(self.work / "nothing")],
                                  ["is no folder", "right", "--dry", "--programs", str(self.work / "nothing")],
                                  ["holds no programs", "right", "--head", HEAD, "--programs", str(self.work)]):
            self.refuses(words, *arguments)
        self.refuses("no step of right has a name like 'nothing'", "right", "--only", "nothing")
        self.refuses("--only: ", "right", "--only", "(")
        done = self.command("right", "--dry", "--programs", str(self.work), "--out", str(self.out), "--only", "reduce|ceil")
        self.assertEqual(done.stdout.count("\n"), 5, done.stdout)
        (self.work / "rubbish.tar.gz").write_text("rubbish")
        self.refuses("is no archive", "right", "--head", HEAD, "--programs", str(self.work / "rubbish.tar.gz"))

    def test_programs_run_only_if_they_are_of_head(self):
        build = self.work / "build"
        self.program("gpu.reduce", GOOD, build / "tests")
        self.program("gpu_gpt", "exit 0", build / "benchmarks")
        (build / "COMMIT").write_text(HEAD + "\n")
        with self.assertRaisesRegex(gpu_report.Refused, "not of HEAD"):
            gpu_report.pack(build, self.work, "f" * 40)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            archive = gpu_report.pack(build, self.work, HEAD)
        self.assertIn("without gpu.kernels", said.getvalue())
        self.assertIn(HEAD, archive.name)
        other = "f" * 40
        self.refuses(f"the programs are of commit {HEAD[:12]}, HEAD is {other[:12]}", "right", "--head", other,
                     "--programs", str(archive))
        done = self.command("right", "--head", HEAD, "--programs", str(archive), "--out", str(self.out))
        self.assertEqual(done.returncode, 1) # most are missing
        by_name = {r["name"]: r for r in self.lines()}
        self.assertEqual(by_name["test reduce"]["status"], "passed")
        self.assertEqual(by_name["environment"]["status"], "failed")
        self.assertIn("missing", by_name["environment"]["reason"])
        self.assertEqual(by_name["test blas"]["status"], "failed")

    def test_every_library_is_packed_but_the_c_library_and_nvidias(self):
        taken, left = gpu_report.libraries("""\tlinux-vdso.so.1 (0x1)
\tlibdnnl.so.2 => /lib/x86_64-linux-gnu/libdnnl.so.2 (0x2)
\tlibOpenCL.so.1 => /lib/x86_64-linux-gnu/libOpenCL.so.1 (0x3)
\tlibcublasLt.so.13 => /usr/local/cuda/lib/libcublasLt.so.13 (0x4)
\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x5)
\tlibmissing.so => not found
\t/lib64/ld-linux-x86-64.so.2 (0x6)
""")
        self.assertEqual(taken, {"/lib/x86_64-linux-gnu/libdnnl.so.2", "/lib/x86_64-linux-gnu/libOpenCL.so.1"})
        self.assertEqual(left, {"libcublasLt.so.13", "libmissing.so"})

    def report(self, name, commit=HEAD, dry=False, milliseconds=100.0, status="passed"):
        records = [{"name": "gpt", "part": "fast", "status": status, "seconds": 1, "numbers": {"K=1 ms": milliseconds},
                    "predicted": {"K=1 ms": 232}, "commit": commit, "dry": dry, "gpu": "a <GPU> & more"},
                   {"name": "later", "part": "fast", "status": "not built yet", "seconds": 0, "numbers": {},
                    "predicted": {"K=1 ms": 34}, "commit": commit, "dry": dry, "gpu": None}]
        file = self.work / name
        file.write_text("".join(json.dumps(r) + "\n" for r in records))
        return str(file)

    def test_merging_takes_the_last_run_of_a_step_and_compares_with_the_last_report(self):
        reports = self.work / "reports"
        reports.mkdir()
        def merged(out, *files):
            with contextlib.redirect_stdout(io.StringIO()) as said:
                gpu_report.merge(files, str(out), reports)
            return json.loads(pathlib.Path(str(out) + ".json").read_text()), said.getvalue()
        first, said = merged(reports / "2026-01-01", self.report("a", milliseconds=100.0))
        self.assertIn("no earlier report", said)
        again = self.report("b", milliseconds=300.0)
        with open(again, "a") as file:
            file.write('{"name": "gpt", "pa') # whoever wrote it was killed
        second, said = merged(self.work / "now", self.report("a"), again)
        self.assertEqual([s["numbers"] for s in second["steps"]], [{"K=1 ms": 300.0}, {}])
        self.assertIn("beside 2026-01-01.json", said)
        self.assertIn("gpt, K=1 ms: 100 before, 300 now, 3.000 x", said)
        picture = xml.dom.minidom.parse(str(self.work / "now.svg"))
        words = [t.firstChild.data for t in picture.getElementsByTagName("text")]
        self.assertIn("a <GPU> & more", words[0])
        self.assertEqual([w for w in words if w in ("1.29", "none")], ["1.29", "none"])
        self.assertEqual(len(picture.getElementsByTagName("rect")), 1)
        _, said = merged(self.work / "now", self.report("c", status="failed"))
        self.assertIn("gpt: passed before, failed now", said)
        self.assertIn("1 failed, 1 not built yet", said)

    def test_reports_that_do_not_belong_together_are_refused(self):
        self.refuses("more than one commit", "merge", self.report("a"), self.report("b", "f" * 40), "--out", str(self.out))
        self.refuses("more than one dry", "merge", self.report("a"), self.report("b", dry=True), "--out", str(self.out))
        for rubbish in ("rubbish\n", "[1]\n", '{"name": 1}\n'):
            (self.work / "r").write_text(rubbish)
            self.refuses("line 1 is no step", "merge", str(self.work / "r"), "--out", str(self.out))
        (self.work / "r").write_text("")
        self.refuses("no step", "merge", str(self.work / "r"), "--out", str(self.out))
        (self.work / "r").write_bytes(b"\xff\xfe")
        self.refuses("cannot be read", "merge", str(self.work / "r"), "--out", str(self.out))


if __name__ == "__main__":
    unittest.main()
