"""Help, version, unknown words, configuration files, the default model."""
import http.client
import json
import os
import re
import shutil
import subprocess

from program import NANO, PROGRAM, SMALL, SOURCE, TandemTest, main, tandem

COMMANDS = ["serve", "chat", "generate", "inspect", "plan", "quantize", "verify", "eval skills", "eval parity", "eval acceptance",
            "eval kld", "eval ppl", "calibrate timing", "calibrate kv", "bench replay", "kernels build", "kernels list",
            "doctor"]
# The pages that list the options of a command.
PAGES = {"plan": "plan", "inspect": "formats", "quantize": "quantize", "verify": "quantize", "calibrate kv": "formats", "eval skills": "eval",
         "eval parity": "eval", "eval acceptance": "eval", "eval kld": "eval", "eval ppl": "eval"}


class CommandLine(TandemTest):
    def test_version(self):
        self.assertRegex(tandem("--version").out, r"^tandem \d+\.\d+\.\d+\n$")

    def test_help_names_every_command(self):
        for words in (["--help"], ["help"], ["-h"]):
            result = tandem(*words)
            self.assertEqual(result.status, 0)
            for command in COMMANDS:
                self.assertIn("  " + command, result.out)
        nothing = tandem()
        self.assertEqual(nothing.status, 2)
        self.assertIn("Usage", nothing.out)

    def test_every_command_has_help_with_examples(self):
        for command in COMMANDS:
            result = tandem(*command.split(), "--help")
            self.assertEqual((result.status, result.err), (0, ""))
            self.assertIn("Examples:\n", result.out)
            self.assertIn("tandem " + command, result.out)

    def test_pages_list_every_option(self):
        for command, page in PAGES.items():
            with open(os.path.join(SOURCE, "docs", page + ".md"), encoding="utf-8") as file:
                text = file.read()
            options = set(re.findall(r"^ +(?:-\w,)?(--[a-z0-9-]+)", tandem(*command.split(), "--help").out, re.M))
            self.assertGreater(len(options), 3, command)
            for option in options - {"--help"}:
                self.assertRegex(text, re.escape(option) + r"\b(?!-)", f"{command}: {page}.md")

    def test_eval_alone_lists_its_checks(self):
        for words, status in ((["eval"], 2), (["eval", "--help"], 0)):
            result = tandem(*words)
            self.assertEqual((result.status, result.err), (status, ""))
            for check in ("eval skills", "eval parity"):
                self.assertIn(check, result.out)

    def test_unknown_words(self):
        self.assert_fails(tandem("frobnicate"), 2, "frobnicate")
        self.assert_fails(tandem("eval", "nothing"), 2, "eval nothing")
        self.assert_fails(tandem("generate", "--frobnicate"), 2, "--frobnicate")
        self.assert_fails(tandem("generate", NANO, "extra"), 2, "extra")
        self.assert_fails(tandem("generate", NANO, "--max-tokens", "many"), 2, "many")
        self.assert_fails(tandem("generate", NANO, "--kv-cache-memory", "3 bananas"), 2, "--kv-cache-memory")
        self.assert_fails(tandem("serve", "--default-seed", "zero"), 2, "--default-seed")
        self.assert_fails(tandem("serve", "--port", "70000"), 2, "--port")
        self.assert_fails(tandem("eval", "parity"), 2, "--golden")

    def test_inspect(self):
        report = tandem("inspect", NANO, "--json").json()
        self.assertEqual(next(iter(report.items())), ("schema", "tandem.inspect/1"))
        self.assertIn("12,794,868", tandem("inspect", NANO).out)
        self.assertIsNone(report["floor"])
        floor = tandem("inspect", NANO, "--bandwidth", "50", "--context", "4000", "--json").json()["floor"]
        self.assertAlmostEqual(floor["ms_per_token"], floor["bytes_per_token"] / 50e6)
        self.assertAlmostEqual(floor["tokens_per_s"], 1e3 / floor["ms_per_token"])
        self.assertGreater(floor["steps"][0]["index_bytes"], 0)
        self.assertEqual(floor["steps"][0]["dense_bytes"] + floor["steps"][0]["expert_bytes"],
                         report["weights"]["bytes_per_token"])
        self.assertEqual(sum(row["bytes_per_token"] for row in report["weights"]["formats"]),
                         report["weights"]["bytes_per_token"])
        self.assertIn("a decoded token", tandem("inspect", NANO, "--bandwidth", "50").out)
        for rate in ("-1", "0"):
            self.assert_fails(tandem("inspect", NANO, "--bandwidth", rate), 2, "--bandwidth")
        self.assert_fails(tandem("inspect", NANO, "--context", "5"), 2, "--context")

    def test_inspect_of_a_bare_config(self):
        flash = os.path.join(SOURCE, "tests", "golden", "configs", "glm-5.3-flash.json")
        with open(flash, encoding="utf-8") as file:
            config = json.load(file)
        config["quantization_config"] = {"quant_method": "exl3", "bits": 4, "scope": "glm53_routed_experts_only"}
        path = self.write("config.json", json.dumps(config))
        report = tandem("inspect", path, "--bandwidth", "8800", "--json").json()
        self.assertIsNone(report["weights"])
        self.assertEqual(report["stated_weights"]["format"], "exl3:4")
        self.assertAlmostEqual(report["stated_weights"]["bytes_per_token"] / 1e9, 20.7, delta=0.15)
        self.assertIn("EXL3 4 bits", tandem("inspect", path).out)
        config["quantization_config"] = {"quant_method": "exl3", "bits": "mixed_k34_per_tensor"}
        path = self.write("config.json", json.dumps(config))
        self.assertIn("not known: ", tandem("inspect", path).out)
        self.assert_fails(tandem("inspect", path, "--bandwidth", "8800"), 3, "bits", "mixed_k34_per_tensor")

    def test_skills_minimum(self):
        skills = self.write("skills.json", """[
            {"skill": "fact", "reasoning_effort": "low", "expected_text": "</think>The capital of Norway is Oslo.",
             "messages": [{"role": "user", "content": "What is the capital of Norway?"}]},
            {"skill": "fact", "reasoning_effort": "low", "expected_text": "</think>No idea.",
             "messages": [{"role": "user", "content": "What is the capital of Norway?"}]}]""")
        result = tandem("eval", "skills", NANO, *SMALL, "--skills", skills)
        self.assertEqual((result.status, result.err), (0, ""))
        self.assertRegex(result.out, r"all +1 +2")
        self.assertIn("No idea.", result.out)
        report = tandem("eval", "skills", NANO, *SMALL, "--skills", skills, "--min", "2", "--json")
        self.assertEqual(report.status, 1)
        self.assertIn("1 exact; expected at least 2 of 2", report.err)
        self.assertEqual((report.json()["schema"], report.json()["passed"]), ("tandem.skills/1", False))
        self.assertEqual(report.json()["misses"][0]["entry"], 1)


class Settings(TandemTest):
    def print_config(self, *words):
        result = tandem("serve", *words, "--print-config")
        self.assertEqual((result.status, result.err), (0, ""))
        return result.out

    def test_line_over_file_over_default(self):
        config = self.write("c.toml", 'port = 9000\nhost = "127.0.0.2"\nserved-model-name = ["a", "b"]\ninsecure = true\n'
                                      'kv-cache-memory = "64MiB"\n')
        text = self.print_config("--config", config, "--port", "9001")
        for line in ("port=9001", 'host="127.0.0.2"', "insecure=true", "drain-timeout-s=30"):
            self.assertIn(line + "\n", text)
        self.assertRegex(text, r"served-model-name=.*a.*b")
        self.assertRegex(text, r"kv-cache-memory=\"?(67108864|64MiB)")

    def test_what_is_printed_can_be_read(self):
        for words in ([], ["--port", "9001", "--served-model-name", "x", "--served-model-name", "y z", "--threads", "3",
                           "--strict-model-name", "--sse-keepalive-s", "0.5", "--kv-cache-memory", "8MiB", NANO]):
            printed = self.print_config(*words)
            self.assertEqual(self.print_config("--config", self.write("c.toml", printed)), printed)

    def test_what_serve_refuses_is_not_printed(self):
        for line in ("max-num-seqs = 99", "max-num-seqs = 0", "fill-share = nan", "fill-share = 0", "fill-share = 1.5",
                     "max-queued-requests = 0", "sse-keepalive-s = -1", "sse-keepalive-s = inf", "drain-timeout-s = nan",
                     "request-timeout-s = -1", "watchdog-s = nan", "watchdog-s = -1", "prefill-slice-ms = -1",
                     "prefill-slice-ms = nan", "threads = -1", "threads = 5000", "max-model-len = 1",
                     "max-model-len = 100000000", "max-num-batched-tokens = -1", "max-num-batched-tokens = 1",
                     "kept-states-memory = -1", "kv-cache-dtype = f64", "tensor-parallel-size = 3",
                     "decode-context-parallel-size = 2", "host = 0.0.0.0", 'api-key = ""', "default-seed = one"):
            config = self.write("c.toml", line + "\n")
            for more in ([], ["--print-config"]):
                self.assert_fails(tandem("serve", NANO, "--config", config, *more), 2, line.split()[0])
        self.assert_fails(tandem("serve", "--kv-cache-memory", "1", "--print-config"), 4, "--kv-cache-memory")
        self.assert_fails(tandem("serve", self.path("none"), "--print-config"), 3, "none")

    def test_keys_are_not_printed(self):
        self.assertNotIn("sesame", self.print_config("--api-key", "sesame", "--api-key", "open sesame"))

    def test_bad_files(self):
        self.assert_fails(tandem("serve", "--config", self.path("none.toml")), 3, "none.toml")
        self.assert_fails(tandem("serve", "--config", self.write("c.toml", "prot = 1\n")), 2, "prot")
        self.assert_fails(tandem("serve", "--config", self.write("c.toml", "port = high\n")), 2, "port", "line 1")
        for line, words in (('served-model-name = ["m"', ["c.toml: line 2", "line 1"]),
                            ('served-model-name = ["m",', ["c.toml: line 2", "line 1"]),
                            ('served-model-name = "m', ["c.toml: line 1", "closing"]),
                            ("[serve]", ["c.toml: line 1", "name = value"]),
                            ("strict-model-name = maybe", ["c.toml: line 1", "true or false"]),
                            ("print-config = true", ["c.toml: line 1", "print-config"]),
                            ('config = "other.toml"', ["c.toml: line 1", "config"]),
                            ("port = [1, 2]", ["c.toml: line 1", "port"]),
                            ("api-key = 'other'", ["c.toml: line 2", "api-key", "second time"])):
            for more in ([], ["--print-config"]):
                result = tandem("serve", "--config", self.write("c.toml", line + '\napi-key = "secret"\n'), *more)
                self.assert_fails(result, 2, *words)
                self.assertNotIn("secret", result.err)

    def test_only_files_and_pipes_of_a_mebibyte(self):
        self.assert_fails(tandem("serve", "--config", "/dev/zero"), 3, "/dev/zero")
        self.assert_fails(tandem("serve", "--config", self.folder), 3, self.folder)
        self.assert_fails(tandem("serve", "--config", ""), 3)
        self.assert_fails(tandem("serve", "--config", self.write("c.toml", "#" * (1 << 20) + "\n")), 3, "1 MiB")
        piped = tandem("serve", "--config", "/dev/stdin", "--print-config", stdin=b"port = 9002\n")
        self.assertIn("port=9002\n", piped.out)
        self.assert_fails(tandem("serve", "--config", "/dev/stdin", stdin=b"#" * (1 << 21)), 3, "1 MiB")

    def test_a_key_is_taken_as_it_is_written(self):
        """A # or a blank within quotes does not end a key."""
        config = self.write("c.toml", 'port = 0\nkv-cache-memory = "16MiB"\napi-key = ["se#s;ame, x", \'two\']\n')
        with subprocess.Popen([PROGRAM, "serve", NANO, "--config", config], stdout=subprocess.PIPE, text=True) as server:
            self.addCleanup(server.kill)
            port = int(re.search(r":(\d+) \(", server.stdout.readline()).group(1))
            for key, status in (("se#s;ame, x", 200), ("two", 200), ("se", 401), ("", 401)):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                connection.request("GET", "/v1/models", headers={"Authorization": "Bearer " + key})
                self.assertEqual(connection.getresponse().status, status, key)
                connection.close()
            server.kill()


class DefaultModel(TandemTest):
    WORDS = ("generate", *SMALL, "--prompt", "a", "--max-tokens", "1", "--json")

    def test_source_tree(self):
        self.assertEqual(os.path.realpath(tandem(*self.WORDS).json()["model"]), os.path.realpath(NANO))

    def test_home(self):
        home = self.path("home")
        self.copy_of_nano(place=os.path.join("home", "models", "nano"))
        reply = tandem(*self.WORDS, env={"TANDEM_HOME": home}).json()
        self.assertEqual(reply["model"], os.path.join(home, "models", "nano"))
        self.assert_fails(tandem(*self.WORDS, env={"TANDEM_HOME": self.path("none")}), 3, "TANDEM_HOME")

    def test_installed(self):
        os.makedirs(self.path("bin"))
        program = shutil.copy(PROGRAM, self.path("bin", "tandem"))
        self.copy_of_nano(place=os.path.join("share", "tandem", "models", "nano"))
        reply = tandem(*self.WORDS, program=program).json()
        self.assertEqual(os.path.realpath(reply["model"]), os.path.realpath(self.path("share", "tandem", "models", "nano")))

    def test_no_path_of_the_build_machine_in_the_output(self):
        self.assertIsNone(re.search(re.escape(SOURCE), tandem("--help").out))


main()
