"""tandem doctor and tandem kernels: what they say of this machine, whatever it has, and bad input."""
import os

from program import NANO, SMALL, SOURCE, TandemTest, main, tandem

TINY = os.path.join(SOURCE, "tests", "golden", "tinyA")


class Doctor(TandemTest):
    def test_report(self):
        result = tandem("doctor", "--json", env={"XDG_CACHE_HOME": self.folder})
        self.assertEqual((result.status, result.err), (0, ""))
        report = result.json()
        self.assertEqual(next(iter(report.items())), ("schema", "tandem.doctor/1"))
        self.assertGreaterEqual(report["processor"]["cores"], 1)
        self.assertGreater(report["memory"]["bytes"], 0)
        self.assertEqual(report["kernel_cache"], {"folder": self.path("tandem", "kernels"), "entries": 0, "bytes": 0})
        for library in ("driver", "nvrtc", "nccl"):
            found = report[library]
            self.assertEqual(found["usable"], found["problem"] == "")
            self.assertEqual(found["usable"], found["version"] != "")
        self.assertEqual(report["default_device"]["name"], "cpu")
        self.assertNotEqual(report["default_device"]["reason"], "")
        if not report["driver"]["usable"]:
            self.assertEqual(report["gpus"], [])

    def test_text_names_what_is_missing(self):
        result = tandem("doctor", "--nvrtc", self.path("no-such-file.so"))
        self.assertEqual((result.status, result.err), (0, ""))
        self.assertRegex(result.out, r"(?m)^NVRTC +missing: .*no-such-file\.so.*pip install nvidia-cuda-nvrtc")
        for line in ("tandem", "processor", "memory", "driver", "NCCL", "kernel cache", "--device auto"):
            self.assertRegex(result.out, rf"(?m)^{line} ")


class Device(TandemTest):
    """--device on a machine without a GPU, which these tests make of any machine."""

    PROMPT = ["generate", "--prompt", "Hello", "--max-tokens", "2", "--temperature", "0", *SMALL]

    def test_cuda_without_a_gpu(self):
        for command in (self.PROMPT, ["serve", "--port", "0"], ["eval", "skills"], ["eval", "ppl", NANO],
                        ["eval", "kld"], ["calibrate", "timing"], ["eval", "acceptance"]):
            result = tandem(*command, "--device", "cuda", env={"XDG_CACHE_HOME": self.folder})
            self.assert_fails(result, 5)

    def test_auto_takes_the_cpu(self):
        auto, cpu = tandem(*self.PROMPT), tandem(*self.PROMPT, "--device", "cpu")
        self.assertEqual((auto.status, auto.err), (0, ""))
        self.assertEqual(auto.out, cpu.out)

    def test_bad_input(self):
        self.assert_fails(tandem(*self.PROMPT, "--device", "tpu"), 2, "--device", "tpu", "auto, cpu or cuda")
        self.assert_fails(tandem(*self.PROMPT, "--device", "cuda", "--compute", "f32"), 2, "--compute")
        self.assert_fails(tandem(*self.PROMPT, "--device", "cuda", "--kv-cache-dtype", "f32"), 2, "--kv-cache-dtype")
        self.assert_fails(tandem("serve", "--device", "cuda", "--tensor-parallel-size", "2"), 2, "--tensor-parallel-size")
        self.assert_fails(tandem("eval", "kld", "--capture", self.path("c"), "--device", "cuda"), 2, "--device", "--student")

    def test_coded_weights(self):
        coded = self.path("coded")
        self.assertEqual(tandem("quantize", NANO, "--out", coded, "--experts", "fp8").status, 0)
        self.assert_fails(tandem(*self.PROMPT, coded, "--device", "cuda"), 3, "weight", "--device cpu")


class Kernels(TandemTest):
    def test_bad_input(self):
        out = self.path("out")
        self.assert_fails(tandem("kernels", "build", "--arch", "sm_42", "--out", out), 2, "--arch", "sm_42", "sm_90a")
        self.assert_fails(tandem("kernels", "build", "--arch", "sm_90a,", "--out", out), 2, "--arch")
        self.assert_fails(tandem("kernels", "build", "--arch", "sm_90a", "--out", out, "--nvrtc", self.path("none.so")), 5,
                          "NVRTC", "none.so")
        self.assert_fails(tandem("kernels", "build", self.path("none"), "--arch", "sm_90a"), 3, "none")
        self.assertFalse(os.path.exists(out))

    def test_list(self):
        result = tandem("kernels", "list", "--json", env={"XDG_CACHE_HOME": self.folder})
        self.assertEqual((result.status, result.err), (0, ""))
        report = result.json()
        self.assertEqual(next(iter(report.items())), ("schema", "tandem.kernels.list/1"))
        self.assertIn("TANDEM_KDA_DIM=128", report["defines"])
        norm = next(entry for entry in report["sources"] if entry["source"] == "ops/norm/norm.cu")
        self.assertEqual(norm["kernels"], [{"name": "norm_rows", "max_threads": "256"}])
        self.assertEqual(norm["cached_targets"], [])
        tiny = tandem("kernels", "list", TINY, "--json").json()
        self.assertIn("TANDEM_KV_LORA_RANK=72", tiny["defines"])


main()
