"""quantize to EXL3 and verify: the model that is written, what is refused, and runs that are killed."""
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time

from encoding import QUICK, TEXT, EncodeTest
from program import PROGRAM, main, tandem


class Encode(EncodeTest):
    def test_a_killed_run_ends_in_the_same_bytes(self):
        model, calibration = self.small_model(), self.path(TEXT)
        words = ("quantize", model, self.path("out"), "--experts", "exl3:2", *QUICK, "--calibration", calibration)
        start = time.monotonic()
        whole = tandem(*words, "--json")
        taken = time.monotonic() - start
        self.assertEqual((whole.status, whole.err), (0, ""))
        expected = self.content(self.path("out"))
        shutil.rmtree(self.path("out"))
        environment = dict(os.environ, CUDA_VISIBLE_DEVICES="")
        chance = random.Random(5)
        kills = 0
        for _ in range(20):
            process = subprocess.Popen([PROGRAM, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
            try:
                process.wait(chance.uniform(0, taken / 8))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                kills += 1
            err = process.communicate()[1].decode()
            self.assertIn(process.returncode, (-signal.SIGKILL, 0), err)
            if os.path.exists(self.path("out")):  # this attempt came to the end
                self.assertEqual(self.content(self.path("out")), expected)
                shutil.rmtree(self.path("out"))
                shutil.rmtree(self.path("out.tmp"), True)
        self.assertGreater(kills, 5)
        done = tandem(*words, "--json")
        self.assertEqual((done.status, done.err), (0, ""))
        self.assertEqual(self.content(self.path("out")), expected)
        self.assertFalse(os.path.exists(self.path("out.tmp")))

    def test_what_is_written_runs_and_is_verified(self):
        model, calibration, out = self.small_model(), self.path(TEXT), self.path("out")
        made = tandem("quantize", model, "--out", out, "--experts", "exl3:3", "--codebook", "mcg", *QUICK,
                      "--calibration", calibration, "--calibration-tokens", "300", "--json")
        self.assertEqual((made.status, made.err), (0, ""))
        report = made.json()
        self.assertEqual(next(iter(report.items())), ("schema", "tandem.quantize/1"))
        self.assertEqual(len(report["tensors"]), 9)
        for tensor in report["tensors"]:
            self.assertEqual(tensor["bits"], 3)
            # Between the plain error of the width and 1.7 times it (2.9), with room for small matrices.
            self.assertTrue(0.012 < tensor["relative_mse"] < 0.040, tensor)
            self.assertLess(tensor["weighted_error"], 0.05)
            self.assertGreater(tensor["seconds"], 0)
        inspected = tandem("inspect", out)
        self.assertIn("EXL3 3 bits mcg", inspected.out, inspected.err)
        ppl = tandem("eval", "ppl", out, "--text", calibration, "--json")
        self.assertEqual(ppl.status, 0, ppl.err)
        verified = tandem("verify", out)
        self.assertEqual((verified.status, verified.err), (0, ""))
        self.assertIn("9 matrices in EXL3", verified.out)
        again = tandem("verify", out, "--recheck", "2", "--model", model, "--calibration", calibration,
                       "--calibration-tokens", "300", "--json")
        self.assertEqual((again.status, again.err), (0, ""))
        self.assertEqual((len(again.json()["rechecked"]), again.json()["faults"]), (2, []))
        other = tandem("verify", out, "--recheck", "2", "--model", model, "--calibration", calibration)
        self.assert_fails(other, 1, "calibration tokens", "another")
        with open(os.path.join(out, "model.safetensors"), "r+b") as file:
            file.seek(-100, os.SEEK_END)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        changed = tandem("verify", out)
        self.assertEqual((changed.status, changed.err), (1, ""))
        self.assertIn("model.safetensors: SHA-256", changed.out)

    def test_what_is_refused(self):
        model, calibration, out = self.small_model(), self.path(TEXT), self.path("out")
        refuse = lambda status, *words, more=(): self.assert_fails(  # noqa: E731
            tandem("quantize", model, out, *QUICK, *more), status, *words)
        exl3 = ("--experts", "exl3:2")
        refuse(2, "--experts", "exl3:9", more=("--experts", "exl3:9"))
        refuse(2, "--experts", "exl3", more=("--experts", "exl3"))
        refuse(2, "--head", "fp8", more=("--head", "fp8"))
        refuse(2, "--codebook", "4inst", more=(*exl3, "--codebook", "4inst"))
        refuse(2, "--layout", "--experts exl3:BITS", more=("--experts", "fp8", "--layout", "tr3"))
        refuse(2, "--layout", "--experts exl3:BITS", more=("--experts", "fp8", "--dense", "exl3:4", "--layout", "tr3"))
        for option, value in (("--codebook", "mcg"), ("--out-scales", "never"), ("--scale-search", "none"), ("--calibration", calibration)):
            self.assert_fails(tandem("quantize", model, out, "--experts", "fp8", option, value), 2, option, "nothing is written in EXL3")
        refuse(2, "--bits-target", "12", more=(*exl3, "--bits-target", "12"))
        refuse(2, "--calibration", "calibration_text.jsonl", more=exl3)
        refuse(3, "missing.txt", more=(*exl3, "--calibration", self.path("missing.txt")))
        refuse(2, "--calibration", "at least 128", more=(*exl3, "--calibration", self.write("short.txt", "Too short.")))
        refuse(3, "UTF-8", more=(*exl3, "--calibration", self.write("bad.txt", b"\xff\xfe" * 400)))
        refuse(2, "two files with the name", more=(*exl3, "--calibration", calibration, calibration))
        self.assertFalse(os.path.exists(out))
        self.assert_fails(tandem("verify", model), 3, "manifest.json")
        self.assert_fails(tandem("verify"), 2, "MODEL")

    def test_an_input_that_changed_is_refused(self):
        model, calibration, out = self.small_model(), self.path(TEXT), self.path("out")
        words = (PROGRAM, "quantize", model, out, "--experts", "exl3:2", *QUICK, "--calibration", calibration)
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        finished = os.path.join(out + ".tmp", "finished")
        while time.monotonic() < deadline and not (os.path.isdir(finished) and os.listdir(finished)):
            time.sleep(0.02)
        self.assert_fails(tandem(*words[1:]), 2, "another run is writing it")
        process.kill()
        process.wait()
        with open(calibration, "a", encoding="utf-8") as file:
            file.write('{"text": "One more text that was not there when the run began."}\n')
        self.assert_fails(tandem(*words[1:]), 2, "calibration " + TEXT, "another")

    def test_a_full_disk_leaves_a_run_that_goes_on(self):
        model, out = self.small_model(), self.path("out")
        with open(self.path(TEXT), encoding="utf-8") as file:
            calibration = self.write("short.txt", json.loads(file.readline())["text"][:1500])
        words = ("quantize", model, out, "--experts", "exl3:2", *QUICK, "--calibration", calibration)
        # A file may be as large as the streams of the calibration text, but not as a shard: as on a disk that fills up.
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3_500_000, 3_500_000))  # noqa: E731
        failed = tandem(*words, preexec_fn=limit, restore_signals=False)
        self.assert_fails(failed, 5, "model.safetensors")
        self.assertFalse(os.path.exists(out))
        self.assertEqual(len(os.listdir(os.path.join(out + ".tmp", "finished"))), 9)
        done = tandem(*words)
        self.assertEqual((done.status, done.err), (0, ""))
        self.assertEqual(tandem("verify", out).status, 0)


main()
