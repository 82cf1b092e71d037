"""eval kld, ppl and skills, calibrate kv: self-check, cache formats, captures, pictures, and what they refuse."""
import hashlib
import json
import os

from program import NANO, SMALL, TandemTest, main, tandem

TEXT = "<|user|>Marco has 1 candles, finds 8 more and buys 5 more. How many candles does Marco have?<|assistant|>"


def compare(*words, **more):
    return tandem("eval", "kld", *words, **more)


class Kld(TandemTest):
    def setUp(self):
        super().setUp()
        self.text = self.write("text.jsonl", "".join(json.dumps({"text": TEXT + str(i)}) + "\n" for i in range(3)))

    def test_student_is_teacher(self):
        result = compare("--text", self.text, "--runs", "2", "--json")
        self.assertEqual(result.status, 0, result.err)
        self.assertTrue(result.out.startswith('{"schema":"tandem.eval_kld/1"'))
        found = result.json()
        self.assertLess(found["kld"]["max"], 1e-12)
        self.assertEqual(found["top1"]["agreement"], 1)
        self.assertEqual(found["runs"]["count"], 2)
        self.assertEqual(found["runs"]["mean_kld_std"], 0)
        self.assertTrue(found["offset_audit"]["passed"])
        self.assertEqual(found["text"]["texts"], 3)
        self.assertEqual(found["teacher"]["perplexity"], found["student"]["perplexity"])

    def test_two_ranks_give_the_same_logits(self):
        captures = []
        for ranks in ((), ("--tensor-parallel-size", "2"),
                      ("--tensor-parallel-size", "2", "--decode-context-parallel-size", "2")):
            captures.append(self.path(f"{len(captures)}.logits"))
            written = compare("--text", self.text, "--capture", captures[-1], "--threads", "1", *ranks)
            self.assertEqual(written.status, 0, written.err)
        digests = set()
        for path in captures:
            with open(path, "rb") as file:
                digests.add(hashlib.sha256(file.read()).digest())
        self.assertEqual(len(digests), 1)
        found = compare("--teacher", captures[0], "--student", NANO, "--text", self.text, "--json",
                        "--tensor-parallel-size", "2", "--decode-context-parallel-size", "2").json()
        self.assertEqual(found["kld"]["max"], 0)
        self.assert_fails(compare("--text", self.text, "--tensor-parallel-size", "3"), 2, "--tensor-parallel-size")
        self.assert_fails(compare("--text", self.text, "--decode-context-parallel-size", "2"), 2,
                          "--decode-context-parallel-size")

    def test_another_cache_and_a_picture(self):
        svg = self.path("kld.svg")
        result = compare("--text", self.text, "--kv-cache-dtype", "bf16", "--svg", svg)
        self.assertEqual(result.status, 0, result.err)
        for word in ("student     nano", "bf16 cache", "KLD", "top-1", "ppl student", "worst positions", ": ok"):
            self.assertIn(word, result.out)
        with open(svg, encoding="utf-8") as file:
            self.assertTrue(file.read().startswith("<svg "))
        self.assertEqual(sorted(os.listdir(self.folder)), ["kld.svg", "text.jsonl"])

    def test_the_arithmetic_of_a_gpu(self):
        result = compare("--text", self.text, "--compute", "bf16", "--json")
        self.assertEqual(result.status, 0, result.err)
        found = result.json()
        self.assertEqual((found["teacher"]["compute"], found["student"]["compute"]), ("f32", "bf16"))
        self.assertEqual((found["teacher"]["kv_cache_dtype"], found["student"]["kv_cache_dtype"]), ("f32", "bf16"))
        self.assertGreater(found["kld"]["mean"], 1e-9)
        self.assertLess(found["kld"]["mean"], 1e-3)
        self.assert_fails(compare("--text", self.text, "--compute", "fp16"), 2, "--compute", "fp16")

    def test_a_capture_stands_for_its_teacher(self):
        logits = self.path("teacher.logits")
        written = compare("--text", self.text, "--capture", logits, "--json")
        self.assertEqual(written.status, 0, written.err)
        self.assertIsNone(written.json()["student"])
        self.assertEqual(written.json()["capture"]["bytes"], os.path.getsize(logits))
        found = compare("--teacher", logits, "--student", NANO, "--text", self.text, "--json").json()
        self.assertEqual(found["kld"]["max"], 0)
        self.assertEqual(found["teacher"]["capture"], "teacher.logits")
        self.assertEqual(found["teacher"]["model"], "nano")
        self.assertEqual(found["text"]["token_sha256"], written.json()["text"]["token_sha256"])

        student = ("--teacher", logits, "--student", NANO)
        self.assert_fails(compare(*student, "--text", self.text, "--window", "16"), 3, "--window 16")
        other = self.write("other.txt", TEXT)
        self.assert_fails(compare(*student, "--text", other), 3, "teacher.logits", "another text")
        self.assert_fails(compare("--teacher", logits, "--text", self.text), 2, "--student")
        self.assert_fails(compare(*student, "--text", self.text, "--capture", self.path("again")), 2, "--capture")
        with open(logits, "r+b") as file:
            file.seek(-10, os.SEEK_END)
            file.write(b"\x55")
        self.assert_fails(compare(*student, "--text", self.text), 3, "teacher.logits", "window 2", "damaged")
        os.truncate(logits, os.path.getsize(logits) - 1000)
        self.assert_fails(compare(*student, "--text", self.text), 3, "teacher.logits", "size")
        os.truncate(logits, 50)
        self.assert_fails(compare(*student, "--text", self.text), 3, "teacher.logits")
        self.assert_fails(compare("--capture", self.text, "--text", self.text), 2, "--capture", "text.jsonl")

    def test_bad_input(self):
        short = self.write("short.jsonl", '{"text": "one two"}\n{"text": "<|user|>"}\n')
        self.assert_fails(compare("--text", short), 3, "short.jsonl:2", "too short")
        self.assert_fails(compare("--text", self.path("none.txt")), 3, "none.txt")
        self.assert_fails(compare("--text", self.write("latin.txt", b"caf\xe9 noir")), 3, "latin.txt", "UTF-8")
        self.assert_fails(compare("--text", self.text, "--window", "1"), 2, "--window")
        self.assert_fails(compare("--text", self.text, "--window", "99999999"), 2, "--window", "max_position_embeddings")
        self.assert_fails(compare("--text", self.text, "--runs", "0"), 2, "--runs")
        self.assert_fails(compare("--text", self.text, "--kv-cache-dtype", "int3"), 2, "--kv-cache-dtype", "int3")
        self.assert_fails(compare("--text", self.text, "--svg", self.path("none", "kld.svg")), 5, "kld.svg")
        precious = self.path("precious")
        with open(precious, "w", encoding="utf-8") as file:
            file.write("TNDMLGTS and more")
        self.assert_fails(compare("--text", self.text, "--svg", precious), 2, "--svg", "precious")
        with open(precious, encoding="utf-8") as file:
            self.assertEqual(file.read(), "TNDMLGTS and more")
        self.assert_fails(compare("--text", self.text, "--teacher", self.path("none")), 3, "none")
        self.assert_fails(compare("--text", self.text, "--teacher", self.text), 3, "text.jsonl")
        damaged = self.write("damaged.logits", b"TNDMLGTX" + bytes(200))
        self.assert_fails(compare("--text", self.text, "--teacher", damaged), 3, "damaged.logits", "a capture of logits")
        self.assert_fails(compare("--text", self.text, "--capture", self.path("c"), "--svg", self.path("s")), 2, "--svg")
        bare = self.copy_of_nano()
        self.assert_fails(compare("--text", "", "--student", os.path.join(bare, "none")), 3, "none")
        self.assertFalse([name for name in os.listdir(self.folder) if ".new" in name])


class Perplexity(TandemTest):
    def test_plain_text_from_standard_input(self):
        result = tandem("eval", "ppl", NANO, "--text", "-", "--window", "16", "--json", stdin=TEXT.encode())
        self.assertEqual(result.status, 0, result.err)
        self.assertTrue(result.out.startswith('{"schema":"tandem.eval_ppl/1"'))
        found = result.json()
        self.assertEqual(found["text"]["texts"], 1)
        self.assertEqual(found["text"]["windows"], -(-found["text"]["tokens"] // 16))
        self.assertTrue(1 < found["perplexity"] < 2048)
        text = tandem("eval", "ppl", NANO, "--text", "-", "--window", "16", stdin=TEXT.encode())
        self.assertIn("perplexity  ", text.out)
        self.assert_fails(tandem("eval", "ppl", "--text", "-"), 3, "standard input", "too short")
        two = tandem("eval", "ppl", NANO, "--text", "-", "--window", "16", "--json", "--tensor-parallel-size", "2",
                     "--decode-context-parallel-size", "2", stdin=TEXT.encode()).json()
        self.assertEqual(two["mean_nll"], found["mean_nll"])


class Skills(TandemTest):
    PROMPTS = json.dumps([
        {"skill": "fact", "reasoning_effort": "low", "expected_text": text,
         "messages": [{"role": "user", "content": "What is the capital of Norway?"}]}
        for text in ("</think>The capital of Norway is Oslo.", "</think>Bergen.")])

    def test_two_models_are_compared(self):
        skills = self.write("skills.json", self.PROMPTS)
        words = ("eval", "skills", NANO, *SMALL, "--skills", skills, "--compare", self.copy_of_nano(), "--min", "1")
        found = tandem(*words, "--json")
        self.assertEqual((found.status, found.err), (0, ""))
        compared = found.json()["compared"]
        self.assertEqual([compared[key] for key in ("exact", "both", "only_this", "only_other", "neither", "same_text")],
                         [1, 1, 0, 0, 1, 2])
        self.assertIn("both 1, only this model 0, only the other 0, neither 1; the same reply 2 of 2", tandem(*words).out)
        self.assert_fails(tandem(*words[:-3], self.path("none")), 3, "none")


class Calibration(TandemTest):
    def test_scales_are_stored_and_found_again(self):
        cache = self.path("cache")
        text = self.write("text.txt", TEXT)
        words = ("calibrate", "kv", NANO, "--calibration", text, "--cache-dir", cache)
        printed = tandem(*words)
        self.assertEqual((printed.status, printed.err), (0, ""))
        self.assertRegex(printed.out, r"layer +max \|latent\| +scale +error +with a scale for each row\n +3 ")
        found = tandem(*words, "--json").json()
        self.assertEqual(list(found)[0], "schema")
        self.assertEqual(list(found["layers"]), ["3", "7", "8"])
        stored, = os.listdir(self.path("cache", "calibration"))
        path = self.path("cache", "calibration", stored)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(json.load(file), found)
        student = ("--student", NANO, "--text", text, "--kv-cache-dtype", "nvfp4", "--json")
        kld = {scales: compare(*student, "--kv-scales", scales).json() for scales in ("none", path)}
        self.assertEqual(kld["none"]["student"]["kv_cache_dtype"], "nvfp4")
        self.assertEqual(kld[path]["student"]["kv_cache_dtype"], "nvfp4 (calibrated)")
        self.assertNotEqual(kld["none"]["kld"]["mean"], kld[path]["kld"]["mean"])
        self.assert_fails(compare("--text", text, "--kv-scales", path), 2, "--kv-scales")

    def test_the_evaluation_is_no_calibration(self):
        nano = self.copy_of_nano()
        os.remove(os.path.join(nano, "calibration_text.jsonl"))
        self.assertTrue(os.path.exists(os.path.join(nano, "eval_text.jsonl")))
        self.assert_fails(tandem("calibrate", "kv", nano, "--cache-dir", self.folder), 2, "--calibration",
                          "calibration_text.jsonl", "not evaluated on")
        with open(os.path.join(nano, "calibration_text.jsonl"), "w", encoding="utf-8") as file:
            file.write(json.dumps({"text": TEXT}))
        found = tandem("calibrate", "kv", nano, "--cache-dir", self.folder, "--json").json()
        self.assertEqual(found["sampled_rows"], found["tokens"])


main()
