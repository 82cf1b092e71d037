"""tandem plan: figures, files, devices, what does not fit, bad input."""
import json
import os
import re
import shutil

from program import NANO, SOURCE, TandemTest, main, tandem

FLASH = os.path.join(SOURCE, "tests", "golden", "configs", "glm-5.3-flash.json")
DRAFTER = NANO + "-dflash2"
GIB = 1 << 30
TWO = ("--weights", "exl3:4", "--gpus", "2x96GiB", "--kv-cache-dtype", "fp8")


def plan(*words):
    return tandem("plan", *words)


class Figures(TandemTest):
    def report(self, *words):
        result = plan(*words, "--json")
        self.assertEqual((result.status, result.err), (0, ""))
        report = result.json()
        self.assertEqual(list(report)[0], "schema")
        self.assertEqual(report["schema"], "tandem.plan/1")
        self.assertTrue(report["fits"])
        return report

    def check_sums(self, report):
        capacity, ranks = report["capacity"], report["weights"]["ranks"]
        parts = (capacity["pool_bytes"] + capacity["max_num_seqs"] * report["stream"]["bytes"]
                 + capacity["kept_states"] * report["kept_state"]["bytes"] + capacity["activation_bytes"])
        self.assertEqual(parts, capacity["planned_bytes"])
        self.assertEqual(capacity["rank_bytes"], [rank["total"] + parts for rank in ranks])
        for rank in ranks:
            self.assertEqual(rank["total"], rank["text"] + rank["drafter"] + rank["vision"] + rank["vision_workspace"])
        for state in ("stream", "kept_state"):
            self.assertEqual(report[state]["bytes"], sum(v for k, v in report[state].items() if k != "bytes"))
        groups = report["decode_context_parallel_size"]
        self.assertEqual(capacity["pool_rows"], groups * (capacity["pages"] - 1) * capacity["page_rows"])
        self.assertEqual(capacity["page_bytes"],
                         groups * report["cache"]["bytes_per_token_and_rank"] * capacity["page_rows"])

    def test_a_bare_config_says_how_it_is_stored(self):
        with open(FLASH, encoding="utf-8") as file:
            config = json.load(file)
        config["quantization_config"] = {
            "quant_method": "compressed-tensors", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["re:.*mlp.experts.*"],
                                          "weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}
        report = self.report(self.write("config.json", json.dumps(config)), "--gpus", "4x141GiB")
        weights = report["weights"]
        self.assertEqual(weights["format"], "compressed-tensors")
        self.assertEqual(weights["parameters"], 320_759_404_382)
        self.assertEqual(sum(row["bytes"] for row in weights["components"]), weights["bytes"])
        self.assertEqual(sum(row["parameters"] for row in weights["components"]), weights["parameters"])
        experts = [row for row in weights["components"] if row["component"] == "routed_experts"]
        self.assertEqual([(row["mtp"], row["format"]) for row in experts], [(False, "NVFP4"), (True, "NVFP4")])
        self.assertEqual(experts[0]["bytes"], 304_405_807_104 * 9 // 16 + 42 * 288 * 3 * 4)

    def test_bundled_model(self):
        report = self.report(NANO, "--host-memory", "8GiB")
        self.check_sums(report)
        self.assertEqual(report["device"], {"kind": "host", "count": 1, "memory_bytes": 8 * GIB, "usable_bytes": 8 * GIB})
        self.assertEqual((report["cache"]["kv_cache_dtype"], report["cache"]["bytes_per_token_and_rank"]), ("f32", 6528))
        self.assertEqual((report["drafter"], report["drafters"]), ("auto", {"copy": True, "mtp": True, "dflash2": DRAFTER}))
        self.assertEqual(report["capacity"]["max_num_seqs"], 4)
        self.assertLessEqual(report["capacity"]["pool_bytes"], GIB)
        text = plan(NANO, "--host-memory", "8GiB")
        self.assertEqual((text.status, text.err), (0, ""))
        for words in ("29,996,528 bytes", "6528 bytes of a rank", "rank 0", "at most {:,} tokens".format(
                report["capacity"]["max_model_len"])):
            self.assertIn(words, text.out)
        self.assertNotIn("rank 1", text.out)

    def test_serve_plans_the_same(self):
        """What the program takes when it runs is what was planned: a prompt of the largest request's length is the limit."""
        words = (NANO, "--kv-cache-memory", "4MiB")
        largest = self.report(*words, "--host-memory", "8GiB")["capacity"]["max_model_len"]
        refused = tandem("generate", *words, "--prompt-ids", ",".join(["5"] * (largest + 1)))
        self.assert_fails(refused, 2, "at most %d" % (largest - 1))

    def test_serve_refuses_with_the_same_words(self):
        """To the byte: the problem names what the plan needs."""
        for words in (("--kv-cache-memory", "1000TiB"), ("--kv-cache-memory", "16MiB", "--max-model-len", "100000"),
                      ("--kept-states-memory", "1000TiB"), ("--kv-cache-memory", "16"),
                      *(("--kept-states-memory", "1000TiB", "--drafter", name) for name in ("none", "mtp", "dflash2")),
                      ("--kept-states-memory", "1000TiB", "--kv-cache-dtype", "bf16", "--max-num-seqs", "7"),
                      ("--kept-states-memory", "1000TiB", "--tensor-parallel-size", "2")):
            served, planned = tandem("serve", NANO, "--port", "0", *words), plan(NANO, *words, "--json")
            self.assertEqual((served.status, planned.status), (4, 4))
            problem = planned.json()["problem"].split(" and this machine")[0]  # plan counts the weights, too
            self.assertEqual(served.out, "")
            self.assertIn(problem, served.err)

    def test_two_gpus(self):
        plain, split = self.report(FLASH, *TWO), self.report(FLASH, *TWO, "--decode-context-parallel-size", "2")
        for report in (plain, split):
            self.check_sums(report)
            self.assertEqual(report["tensor_parallel_size"], 2)
            self.assertEqual(report["capacity"]["max_model_len"], 1048576)
            self.assertLessEqual(max(report["capacity"]["rank_bytes"]), report["device"]["usable_bytes"])
        self.assertEqual(plain["cache"]["bytes_per_token_and_rank"], 6732)
        self.assertEqual(split["cache"]["bytes_per_token_and_rank"], 3366)
        self.assertGreater(split["capacity"]["pool_rows"], 1.9 * plain["capacity"]["pool_rows"])
        self.assertEqual(plain["kept_state"]["kda"], 68 << 20)

    def test_drafters(self):
        none = self.report(FLASH, *TWO, "--drafter", "none")
        block = self.report(FLASH, *TWO, "--drafter", "dflash2")
        self.check_sums(block)
        self.assertEqual(none["drafters"], {"copy": False, "mtp": False, "dflash2": None})
        self.assertEqual(block["drafters"], {"copy": True, "mtp": False, "dflash2": "published"})
        self.assertEqual(none["cache"]["bytes_per_token_and_rank"], 6171)
        self.assertEqual(none["weights"]["parameters"], 313326811966)
        self.assertEqual(block["stream"]["drafter"], 10240 * 2063)
        self.assertEqual(block["kept_state"]["drafter"], 10240 * 2047)
        self.assertGreater(block["weights"]["ranks"][1]["drafter"], GIB)
        auto = self.report(FLASH, *TWO)  # no drafter lies beside the config
        self.assertEqual(auto["drafters"], {"copy": True, "mtp": True, "dflash2": None})

    def test_what_is_loaded_as_in_serve(self):
        none, copy, mtp, block, auto = (self.report(NANO, "--drafter", name, "--host-memory", "8GiB")
                                        for name in ("none", "copy", "mtp", "dflash2", "auto"))
        self.assertEqual([report["drafter"] for report in (none, copy, mtp, block, auto)],
                         ["none", "copy", "mtp", "dflash2", "auto"])
        self.assertEqual([list(report["drafters"].values()) for report in (none, copy, mtp, block, auto)],
                         [[False, False, None], [True, False, None], [True, True, None], [True, False, DRAFTER],
                          [True, True, DRAFTER]])
        for report in (none, copy, mtp, block, auto):
            self.check_sums(report)
        # A pending row of four streams and 56 drafts; 32 rows without drafts.
        self.assertEqual([report["capacity"]["max_logit_rows"] for report in (none, copy, auto)], [32, 60, 60])
        self.assertEqual([report["cache"]["layers"] for report in (none, copy, mtp, block, auto)], [2, 2, 3, 2, 3])
        row = 3 * 2 * 128 * 4  # layers, keys and values, f32: every rank has all heads
        for report in (block, auto, self.report(NANO, "--tensor-parallel-size", "2", "--host-memory", "8GiB")):
            self.assertEqual((report["stream"]["drafter"], report["kept_state"]["drafter"]), (row * 527, row * 511))
            self.assertEqual({rank["drafter"] for rank in report["weights"]["ranks"]},
                             {os.path.getsize(os.path.join(DRAFTER, "model.safetensors")) - self.header_bytes()})
        self.assertEqual(self.report(NANO, "--kv-cache-dtype", "bf16")["stream"]["drafter"], row // 2 * 527)
        alone = self.report(self.copy_of_nano(), "--host-memory", "8GiB")
        self.assertEqual(alone["drafters"], {"copy": True, "mtp": True, "dflash2": None})

    def header_bytes(self):
        with open(os.path.join(DRAFTER, "model.safetensors"), "rb") as file:
            return 8 + int.from_bytes(file.read(8), "little")

    def test_a_drafter_of_the_users(self):
        folder = self.path("drafter")
        os.mkdir(folder)
        with open(os.path.join(DRAFTER, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        config["sliding_window"] = 256
        path = os.path.join(folder, "config.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        words = ("--drafter", "dflash2", "--host-memory", "8GiB")
        given = self.report(NANO, *words, "--drafter-model", folder)
        self.assertEqual(given["drafters"]["dflash2"], folder)
        self.assertEqual(given["stream"]["drafter"], 3 * 2 * 128 * 4 * 271)
        self.assertGreater(given["weights"]["ranks"][0]["drafter"], 1 << 20)  # counted from its shape
        model = self.copy_of_nano()
        for name in ("none", "copy", "mtp", "auto"):
            status = 2 if name in ("copy", "mtp") else 0  # as serve: not loaded by these
            self.assertEqual(plan(NANO, "--drafter", name, "--drafter-model", folder).status, status)
        self.assert_fails(plan(model, *words), 2, "--drafter", "no drafter's folder", "--drafter-model")
        bare = shutil.copy(os.path.join(model, "config.json"), self.path("bare.json"))
        self.assert_fails(plan(bare, *words), 2, "--drafter", "published", "4096", "256")  # which does not fit this model
        shutil.copytree(folder, model + "-dflash2")
        for name in (model, model + os.sep):
            self.assertEqual(self.report(name, *words)["stream"], given["stream"])
        for key, value, words_of_error in (("hidden_size", 512, ("hidden_size", "512")), ("vocab_size", None, ("vocab_size",)),
                                           ("num_target_layers", 9, ("num_target_layers",))):
            changed = {k: v for k, v in {**config, key: value}.items() if v is not None}
            with open(path, "w", encoding="utf-8") as file:
                json.dump(changed, file)
            self.assert_fails(plan(NANO, *words, "--drafter-model", folder), 3, "config.json", *words_of_error)
        self.assert_fails(plan(NANO, *words, "--drafter-model", self.path("none")), 3, "none")

    def test_vision(self):
        on = self.report(NANO, "--vision", "on", "--tensor-parallel-size", "2", "--host-memory", "8GiB")
        self.check_sums(on)
        self.assertEqual([rank["vision"] for rank in on["weights"]["ranks"]], [2 * 875520, 0])  # bf16

    def test_streams_and_kept_states(self):
        words = (NANO, "--host-memory", "8GiB", "--max-model-len", "1000", "--kept-states-memory")
        none = self.report(*words, "0", "--max-num-seqs", "8")["capacity"]
        self.assertEqual((none["kept_states"], none["max_num_seqs"], none["pages"]), (0, 8, 8 * 4 + 1))
        some = self.report(*words, "8MiB")
        self.assertEqual(some["capacity"]["kept_states"], (8 << 20) // some["kept_state"]["bytes"])

    def test_weight_formats(self):
        sizes = [self.report(FLASH, "--weights", name, "--host-memory", "1TiB")["weights"]["bytes"]
                 for name in ("bf16", "fp8", "nvfp4", "exl3:3.5")]
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        self.assert_fails(plan(FLASH, "--weights-bytes-per-parameter", "0"), 2, "--weights-bytes-per-parameter", "more than 0")
        for share in ("0", "2", "nan"):  # on a CPU, too
            self.assert_fails(plan(FLASH, "--gpu-memory-utilization", share), 2, "--gpu-memory-utilization", "at most 1")
            self.assert_fails(tandem("serve", NANO, "--gpu-memory-utilization", share), 2, "--gpu-memory-utilization", "at most 1")
        flat = self.report(FLASH, "--weights-bytes-per-parameter", "0.5", "--host-memory", "1TiB")
        self.assertAlmostEqual(flat["weights"]["bytes"] / flat["weights"]["parameters"], 0.5, 6)


class DoesNotFit(TandemTest):
    def refused(self, *words):
        """(report, error line)"""
        result = plan(*words, "--json")
        self.assertEqual(result.status, 4, result.err)
        self.assertRegex(result.err, r"^tandem: error: [^\n]*\n$")
        report = result.json()
        self.assertEqual((report["fits"], report["capacity"]), (False, None))
        text = plan(*words)
        self.assertEqual(text.status, 4)
        self.assertIn("does not fit", text.out)
        self.assertGreater(report["weights"]["bytes"], 0)  # what is known is told
        return report, result.err

    def fits_with(self, words, change):
        for flag, value in re.findall(r"(--[a-z-]+) ([^-]+?)(?= with | or |$)", change):
            words = (*words, flag, value.replace(" ", ""))
        return plan(*words).status == 0

    def test_weights_alone(self):
        report, error = self.refused(FLASH, "--weights", "bf16", "--gpus", "2x96GiB")
        self.assertIn("weights", report["problem"])
        self.assertIn("expected", error)

    def test_each_change_that_is_named_fits(self):
        words = (NANO, "--host-memory", "1200MiB")
        report, _ = self.refused(*words)
        changes = [change for entry in report["would_fit"] for change in entry.split(" or ")]
        self.assertGreaterEqual(len(changes), 2)
        for change in changes:
            self.assertTrue(self.fits_with(words, change), change)

    def test_choices_beside_the_settings(self):
        words = (FLASH, "--weights", "exl3:4", "--gpus", "2x96GiB", "--max-model-len", "1048576", "--max-num-seqs", "8")
        report, error = self.refused(*words)
        for change in ("--kv-cache-dtype fp8", "--decode-context-parallel-size 2"):
            self.assertIn(change, report["would_fit"])
            self.assertIn(change, error)
            self.assertTrue(self.fits_with(words, change), change)

    def test_drafters_that_would_fit(self):
        words = (NANO, "--host-memory", "1350MiB")
        report, _ = self.refused(*words)
        for change in ("--drafter mtp", "--drafter none"):
            self.assertIn(change, report["would_fit"])
            self.assertTrue(self.fits_with(words, change), change)
        report, _ = self.refused(*words, "--drafter-model", DRAFTER)  # belongs to a drafter that is loaded
        self.assertNotIn("--drafter mtp", report["would_fit"])

    def test_all_settings_together(self):
        words = (NANO, "--host-memory", "64MiB")
        report, _ = self.refused(*words)
        together = next(change for change in report["would_fit"] if " with " in change)
        self.assertTrue(self.fits_with(words, together), together)

    def test_a_machine_for_nothing(self):
        self.assertEqual(self.refused(NANO, "--host-memory", "1MiB")[0]["would_fit"], [])

    def test_context_longer_than_the_pool(self):
        report, _ = self.refused(NANO, "--kv-cache-memory", "16MiB", "--max-model-len", "100000", "--host-memory", "8GiB")
        self.assertIn("--max-model-len", report["would_fit"][0])


class BadInput(TandemTest):
    def test_devices(self):
        for bad in ("2", "x96GiB", "2x", "0x96GiB", "-1x96GiB", "2x96GiB4", "2X96GiB", "2x-96GiB", "2x0", "65x1GiB", "2xinf",
                    "2xnan", "2x96 pounds", "2x96", "2x96MB4", "99999999999x1GiB", "2x999999TiB", "2x1e3GiB"):
            self.assert_fails(plan(FLASH, "--gpus=" + bad), 2, "--gpus")
        for bad in ("0", "-1GiB", "lots", "1.2.3GiB", "GiB", "2x96GiB"):
            self.assert_fails(plan("--host-memory=" + bad), 2, "--host-memory")
        self.assert_fails(plan("--gpus", "1x8GiB", "--host-memory", "8GiB"), 2, "--gpus", "--host-memory")
        for bad in ("0", "-0.5", "1.01", "nan"):
            self.assert_fails(plan("--gpus", "1x8GiB", "--gpu-memory-utilization=" + bad), 2, "--gpu-memory-utilization")

    def test_sizes_of_devices(self):
        sizes = [plan(NANO, "--json", "--host-memory", text).json()["device"]["memory_bytes"]
                 for text in ("8GiB", "8 GiB", "8192MiB", "8589934592", "8Gi", "8589934592B")]
        self.assertEqual(sizes, [8 * GIB] * 6)
        self.assertEqual(plan(NANO, "--json", "--host-memory", "8.5GB").json()["device"]["memory_bytes"], 8500000000)

    def test_choices(self):
        for flag, value in (("--kv-cache-dtype", "int4"), ("--kv-cache-dtype", ""), ("--drafter", "dflash"), ("--vision", "yes"),
                            ("--weights", "q4")):
            self.assert_fails(plan(FLASH, flag, value), 2, flag)
        self.assert_fails(plan(FLASH, "--weights", "bf16", "--weights-bytes-per-parameter", "1"), 2, "--weights")
        self.assert_fails(plan(FLASH, "--weights-bytes-per-parameter=-1"), 2, "--weights-bytes-per-parameter")
        self.assert_fails(plan(NANO, "--weights", "bf16"), 2, "--weights", "bare config.json")
        self.assert_fails(plan(FLASH, "--vision", "on", "--weights", "exl3:1", "--gpus", "2x96GiB"), 2, "--vision")

    def test_limits(self):
        for flag, values in (("--max-num-seqs", ("0", "-1", "65")), ("--max-model-len", ("-1", "1", "1048577")),
                             ("--max-num-batched-tokens", ("-1", "3", "65537")), ("--tensor-parallel-size", ("-1", "3")),
                             ("--decode-context-parallel-size", ("0", "-1", "3"))):
            for value in values:
                self.assert_fails(plan(NANO, flag + "=" + value), 2, flag)
        for flag in ("--kv-cache-memory", "--kept-states-memory", "--threads"):
            self.assert_fails(plan(NANO, flag + "=-1"), 2, flag)

    def test_parallel_sizes(self):
        self.assert_fails(plan(NANO, "--decode-context-parallel-size", "2"), 2, "--decode-context-parallel-size",
                          "--tensor-parallel-size 2")
        self.assert_fails(plan(FLASH, "--gpus", "1x96GiB", "--tensor-parallel-size", "2"), 2, "--tensor-parallel-size", "--gpus")

    def test_wrong_settings_come_before_what_does_not_fit(self):
        self.assert_fails(plan(FLASH, "--gpus", "1x1GiB", "--max-num-seqs", "0"), 2, "--max-num-seqs")

    def change(self, change):
        with open(FLASH, encoding="utf-8") as file:
            config = json.load(file)
        change(config)
        return self.write("config.json", json.dumps(config))

    def test_configs(self):
        self.assert_fails(plan(self.path("none")), 3, "none")
        self.assert_fails(plan(self.write("c.json", "{")), 3, "c.json")
        for key in ("kv_lora_rank", "index_kpool", "num_hidden_layers", "n_routed_experts"):
            self.assert_fails(plan(self.change(lambda c, k=key: c["text_config"].pop(k))), 3, key)
        self.assert_fails(plan(self.change(lambda c: c["text_config"].update(kv_lora_rank=-1))), 3, "kv_lora_rank")
        self.assert_fails(plan(self.change(lambda c: c.update(quantization_config={"quant_method": "awq"}))), 3, "quant_method",
                          "awq", "modelopt")
        self.assert_fails(plan(self.change(lambda c: c.update(vision_config={"depth": 2})), "--vision", "on"), 3, "vision_config")

    def test_format_of_a_config(self):
        for scope, name in (("glm53_routed_experts_only", "exl3:4"), (None, "exl3:4, every linear layer")):
            path = self.change(lambda c, s=scope: c.update(
                quantization_config={"quant_method": "exl3", "bits": 4, "scope": s}))
            self.assertEqual(plan(path, "--gpus", "2x96GiB", "--json").json()["weights"]["format"], name)

    def test_folders(self):
        model = self.copy_of_nano()
        os.remove(os.path.join(model, "model-00002-of-00004.safetensors"))
        self.assert_fails(plan(model), 3, "model-00002-of-00004.safetensors")
        os.mkdir(self.path("empty"))
        self.assert_fails(plan(self.path("empty")), 3, "config.json")


main()
