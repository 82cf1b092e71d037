"""quantize to EXL3 by the encoder itself along each of its paths: classes of matrices, widths, codebooks, layouts."""
import json
import os
import shutil

from encoding import TEXT, EncodeTest, read_tensors
from program import main, tandem

# Relative squared error of the trellis on Gaussian weights, mul1, mcg and 3inst (spec/quantization.md 2.9).
GAUSSIAN = {1: (0.27111, 0.26585, 0.26632), 2: (0.06830, 0.06840, 0.06874), 3: (0.01743, 0.01741, 0.01774),
            4: (0.004437, 0.004529, 0.004578), 5: (0.001135, 0.001179, 0.001202), 7: (8.08e-5, 8.78e-5, 8.81e-5),
            8: (2.08e-5, 2.81e-5, 2.61e-5)}
QUICK = ("--scale-search", "none", "--window", "256")
CODEBOOKS = ("mul1", "mcg", "3inst")


class EncodePaths(EncodeTest):
    def setUp(self):
        super().setUp()
        self.model = self.small_model(layers=(0, 3))  # KDA and a dense MLP, sparse attention and experts
        with open(self.path(TEXT), encoding="utf-8") as file:
            self.text = self.write("short.txt", json.loads(file.readline())["text"][:2000])

    def encode(self, name, *words, threads=1):
        out = self.path(name)
        made = tandem("quantize", self.model, "--out", out, *QUICK, "--threads", str(threads), "--calibration", self.text, *words,
                      "--json")
        self.assertEqual((made.status, made.err), (0, ""))
        self.assertFalse(os.path.exists(out + ".tmp"))
        return out, made.json()

    def check_errors(self, report, codebook):
        """Feedback costs plain error (2.9) and gains weighted error. Without a scale search wide trellises also cut the tails of
        weights that are not quite Gaussian: of the head's at 8 bits so many that only the weighted error has a bound."""
        for tensor in report["tensors"]:
            plain = GAUSSIAN[tensor["bits"]][CODEBOOKS.index(codebook)]
            self.assertFalse(tensor["fallback"], tensor)
            most = 1 if tensor["name"] == "lm_head" else 4 * plain
            self.assertTrue(0.8 * plain < tensor["relative_mse"] < most, (plain, tensor))
            self.assertLess(tensor["weighted_error"], 1.7 * plain, tensor)

    def recheck(self, out, *words):
        again = tandem("verify", out, "--recheck", "2", "--model", self.model, "--calibration", self.text, "--json", *words)
        self.assertEqual((again.status, again.err), (0, ""))
        self.assertEqual((len(again.json()["rechecked"]), again.json()["faults"]), (2, []))

    def perplexity(self, model):
        found = tandem("eval", "ppl", model, "--text", self.text, "--json")
        self.assertEqual(found.status, 0, found.err)
        return found.json()["perplexity"]

    def test_every_class_and_what_is_found(self):
        out, report = self.encode("out", "--experts", "exl3:7", "--dense", "exl3:5", "--head", "exl3:8", "--codebook", "3inst")
        bits = {}
        for tensor in report["tensors"]:
            bits.setdefault(tensor["bits"], set()).add(tensor["name"].split(".", 3)[-1])
        self.assertEqual(bits[8], {"lm_head"})
        self.assertEqual(bits[5], {f"{layer}.self_attn.{name}" for layer, names in (
            (0, ("q_proj", "k_proj", "v_proj", "o_proj")), (1, ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"))) for name in names} |
            {f"0.mlp.{name}_proj" for name in ("gate", "up", "down")}, "kv_b, indexer and gates stay")
        self.assertEqual(len(bits[7]), 9)
        self.check_errors(report, "3inst")
        self.assertFalse(any(name.endswith((".mul1", ".mcg")) for name in read_tensors(out)), "3inst has no marker")
        self.assertLess(abs(self.perplexity(out) / self.perplexity(self.model) - 1), 0.02)
        self.recheck(out)
        for name in sorted(os.listdir(out)):
            with open(os.path.join(out, name), "r+b") as file:
                content = bytearray(file.read())
                at = len(content) * 2 // 3
                content[at] ^= 8
                file.seek(0)
                file.write(content)
                file.flush()
                found = tandem("verify", out)
                if name == "manifest.json":
                    self.assert_fails(found, 3, "manifest.json")
                else:
                    self.assertEqual((found.status, found.err), (1, ""))
                    self.assertIn(name + ": SHA-256", found.out)
                content[at] ^= 8
                file.seek(0)
                file.write(content)
        self.assertEqual(tandem("verify", out).status, 0)

    def test_tr3_on_any_number_of_threads(self):
        out, report = self.encode("one", "--experts", "exl3:4", "--layout", "tr3", "--codebook", "mcg")
        self.assertEqual({tensor["name"].split(".mlp.")[-1].split(".")[0] for tensor in report["tensors"]}, {"experts"})
        self.assertEqual(len(report["tensors"]), 6)
        self.check_errors(report, "mcg")
        tensors = read_tensors(out)
        expert = lambda number, name: tensors[f"model.language_model.layers.1.mlp.experts.{number}.{name}"]  # noqa: E731
        for name in ("gate_proj.suh", "up_proj.suh", "down_proj.svh"):
            self.assertEqual(expert(0, name), expert(1, name), name)
        self.assertEqual(expert(0, "gate_proj.suh"), expert(0, "up_proj.suh"))
        self.assertNotEqual(expert(0, "gate_proj.svh"), expert(1, "gate_proj.svh"))
        other, _ = self.encode("two", "--experts", "exl3:4", "--layout", "tr3", "--codebook", "mcg", threads=2)
        self.assertTrue(self.content(out) == self.content(other))
        self.assertLess(abs(self.perplexity(out) / self.perplexity(self.model) - 1), 0.05)
        self.recheck(out, "--threads", "2")

    def test_widths_by_measured_error(self):
        words = ("--experts", "exl3", "--bits-target", "2.5")
        out, report = self.encode("one", *words)
        self.assertLessEqual(report["average_bits"], 2.5)
        widths = {tensor["name"]: tensor["bits"] for tensor in report["tensors"]}
        self.assertEqual(len(widths), 9)
        self.assertEqual(min(widths.values()), 2)
        self.assertGreater(max(widths.values()), 2, "half a bit a weight is spent on some")
        self.assertEqual(len({note for note in report["notes"] if note.endswith(" bits")}), 3, report["notes"])
        for kind in ("gate", "up"):
            self.assertEqual(len({bits for name, bits in widths.items() if ".experts." in name and kind in name}), 1)
        other, _ = self.encode("two", *words, threads=2)
        self.assertTrue(self.content(out) == self.content(other))
        self.recheck(out)

    def test_without_text(self):
        out, report = self.encode("with", "--experts", "exl3:1")
        bare = self.path("without")
        made = tandem("quantize", self.model, bare, "--experts", "exl3:1", *QUICK, "--threads", "1", "--calibration", "none",
                      "--json")
        self.assertEqual((made.status, made.err), (0, ""))
        self.assertTrue(all(tensor["fallback"] for tensor in made.json()["tensors"]))
        self.assertEqual(len(made.json()["notes"]), 1)
        # Feedback costs plain error and gains the error that inputs weigh.
        mean = lambda tensors, key: sum(tensor[key] for tensor in tensors) / len(tensors)  # noqa: E731
        self.assertLess(mean(made.json()["tensors"], "relative_mse"), mean(report["tensors"], "relative_mse"))
        self.assertLess(mean(report["tensors"], "weighted_error"), mean(made.json()["tensors"], "weighted_error"))
        again = tandem("verify", bare, "--recheck", "2", "--model", self.model, "--json")
        self.assertEqual((again.status, again.json()["faults"]), (0, []), again.err)
        self.assert_fails(tandem("verify", bare, "--recheck", "1", "--model", self.model, "--calibration", self.text), 1,
                          "calibration")
        refused = tandem("quantize", self.model, self.path("other"), "--experts", "exl3", "--bits-target", "3", "--calibration",
                         "none")
        self.assert_fails(refused, 2, "--bits-target", "--calibration none")
        refused = tandem("quantize", self.model, self.path("other"), "--experts", "exl3:1", "--calibration-tokens", "9", "--calibration",
                         "none")
        self.assert_fails(refused, 2, "--calibration-tokens", "9")

    def test_what_is_left_of_a_run_that_was_stopped_at_its_end(self):
        out, report = self.encode("out", "--experts", "exl3:1")
        expected = self.content(out)
        left = out + ".tmp"
        os.mkdir(left)
        with open(os.path.join(out, "manifest.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        with open(os.path.join(left, "run.json"), "w", encoding="utf-8") as file:
            json.dump({key: manifest[key] for key in ("encoder", "settings", "source", "calibration")}, file)
        verified = tandem("verify", out)
        self.assertEqual(verified.status, 0)
        self.assertIn("out.tmp: left", verified.out)
        self.assertEqual(tandem("verify", out, "--json").json()["left_over"], left)
        _, again = self.encode("out", "--experts", "exl3:1")
        self.assertEqual(again["resumed"], len(report["tensors"]))
        self.assertTrue(self.content(out) == expected)
        self.assertNotIn("left_over", tandem("verify", out, "--json").json())
        shutil.rmtree(out)


main()
