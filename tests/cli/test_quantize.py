"""quantize: a converted folder is a model, and what is refused."""
import json
import os

from program import NANO, SMALL, TandemTest, main, tandem


def swap_nibbles(folder):
    """Exchanges the halves of every byte of NVFP4 codes, in place."""
    for name in os.listdir(folder):
        if not name.endswith(".safetensors"):
            continue
        path = os.path.join(folder, name)
        with open(path, "rb") as file:
            data = bytearray(file.read())
        length = int.from_bytes(data[:8], "little")
        for key, tensor in json.loads(data[8:8 + length]).items():
            if key != "__metadata__" and tensor["dtype"] == "U8":
                begin, end = (8 + length + offset for offset in tensor["data_offsets"])
                data[begin:end] = bytes(byte >> 4 | (byte & 15) << 4 for byte in data[begin:end])
        with open(path, "wb") as file:
            file.write(data)


class Quantize(TandemTest):
    def test_converted_models_load_and_answer(self):
        skills = self.write("skills.json", """[
            {"skill": "fact", "reasoning_effort": "low", "expected_text": "</think>The capital of Norway is Oslo.",
             "messages": [{"role": "user", "content": "What is the capital of Norway?"}]}]""")
        for experts, dense, method in (("fp8", "fp8", "fp8"), ("nvfp4", "keep", "modelopt")):
            out = self.path(experts)
            result = tandem("quantize", NANO, "--out", out + "/", "--experts", experts, "--dense", dense, "--json")
            self.assertEqual((result.status, result.err), (0, ""))
            report = result.json()
            self.assertEqual(next(iter(report.items())), ("schema", "tandem.quantize/1"))
            self.assertLess(report["bytes"], report["source_bytes"])
            with open(os.path.join(out, "config.json"), encoding="utf-8") as file:
                config = json.load(file)
            self.assertEqual(config.pop("quantization_config")["quant_method"], method)
            with open(os.path.join(NANO, "config.json"), encoding="utf-8") as file:
                self.assertEqual(config, json.load(file))
            inspected = tandem("inspect", out)
            self.assertEqual(inspected.status, 0, inspected.err)
            self.assertIn({"fp8": "F8_E4M3 128x128 blocks", "nvfp4": "NVFP4 (ModelOpt"}[experts], inspected.out)
            answered = tandem("eval", "skills", out, *SMALL, "--skills", skills)
            self.assertEqual((answered.status, answered.err), (0, ""))
            self.assertRegex(answered.out, r"all +1 +1")
        self.assertEqual(sorted(os.listdir(self.folder)), ["fp8", "nvfp4", "skills.json"])

    def test_nibble_order_is_what_the_flag_says(self):
        out = self.path("nvfp4")
        made = tandem("quantize", NANO, "--out", out, "--experts", "nvfp4")
        self.assertEqual(made.status, 0, made.err)
        # A drafter is found by its model's name, so the copy has none unless it is named.
        self.assertIn(f"tandem serve {out} --drafter-model {NANO}-dflash2\n", made.out)
        prompt = ("--prompt", "<|user|>What is the capital of Norway?<|assistant|><think>", "--temperature", "0",
                  "--max-tokens", "12", "--drafter", "none")
        expected = tandem("generate", out, *SMALL, *prompt)
        self.assertEqual(expected.status, 0, expected.err)
        self.assertIn("low nibble first", tandem("inspect", out).out)
        swap_nibbles(out)
        high = ("--nvfp4-nibble-order", "high")
        self.assertEqual(tandem("generate", out, *SMALL, *prompt, *high).out, expected.out)
        self.assertNotEqual(tandem("generate", out, *SMALL, *prompt).out, expected.out)
        self.assertIn("high nibble first", tandem("inspect", out, *high).out)
        self.assert_fails(tandem("inspect", out, "--nvfp4-nibble-order", "both"), 2, "--nvfp4-nibble-order", "both")
        printed = tandem("serve", out, *high, "--print-config")
        self.assertRegex(printed.out, r'nvfp4-nibble-order *= *"high"')

    def test_what_is_refused(self):
        out = self.path("out")
        self.assert_fails(tandem("quantize", NANO, "--experts", "fp8"), 2, "--out")
        self.assert_fails(tandem("quantize", NANO, "--out", out), 2, "nothing to convert")
        self.assert_fails(tandem("quantize", NANO, "--out", out, "--experts", "int4"), 2, "--experts", "int4")
        self.assert_fails(tandem("quantize", NANO, "--out", out, "--dense", "nvfp4"), 2, "--dense", "nvfp4")
        self.assert_fails(tandem("quantize", NANO, "--out", self.folder, "--dense", "fp8"), 2, "--out", "is there")
        self.assert_fails(tandem("quantize", NANO, "--out", self.path("no", "such"), "--dense", "fp8"), 5, "no/such")
        self.assert_fails(tandem("quantize", self.path("none"), "--out", out, "--dense", "fp8"), 3, "none")
        self.assertEqual(os.listdir(self.folder), [])


main()
