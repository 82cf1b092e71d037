"""Bad input: one clear line, the right exit status, nothing on standard output."""
import json
import os
import shutil
import signal
import subprocess

from program import NANO, PROGRAM, SMALL, TandemTest, main, tandem


def generate(*words, **more):
    return tandem("generate", NANO, *SMALL, *words, **more)


class Prompts(TandemTest):
    def test_ids_out_of_range(self):
        self.assert_fails(generate("--prompt-ids", "1,2048"), 2, "prompt_ids[1]", "2048", "0 to 2047")
        self.assert_fails(generate("--prompt-ids", "-1"), 2, "-1")
        self.assert_fails(generate("--prompt-ids", "1,99999999999"), 2, "--prompt-ids", "99999999999")

    def test_ids_that_are_none(self):
        for text in (" ", "1,,2", "1,a", "1.5", "1 2", "1,"):
            self.assert_fails(generate("--prompt-ids=" + text), 2, "--prompt-ids", "separated by commas")

    def test_prompt_longer_than_the_window(self):
        long = generate("--prompt-ids", ",".join(["5"] * 64), "--max-model-len", "64")
        self.assert_fails(long, 2, "64 tokens", "at most 63", "max_model_len 64")
        fits = generate("--prompt-ids", ",".join(["5"] * 63), "--max-model-len", "64", "--json")
        self.assertEqual(len(fits.json()["ids"] or [0]), 1)
        body = json.dumps({"messages": [{"role": "user", "content": "word " * 100}]}).encode()
        self.assert_fails(generate("--messages", "-", "--max-model-len", "64", stdin=body), 2, "64 tokens")

    def test_invalid_utf8(self):
        self.assert_fails(generate("--prompt", "-", stdin=b"caf\xe9"), 2, "UTF-8")
        self.assert_fails(generate("--prompt", b"caf\xe9"), 2, "UTF-8")
        self.assert_fails(generate("--messages", self.write("b", b'{"messages":[{"role":"user","content":"\xff"}]}')), 2, "UTF-8")
        for text, words in ((b"Hello", "not valid JSON"), (b"[]", "JSON object"), (b"[" * 200, "nested deeper")):
            refused = generate("--messages", self.write("body.txt", text))
            self.assert_fails(refused, 2, "body.txt", words)
            self.assertNotIn("request body", refused.err)

    def test_empty_prompt(self):
        self.assert_fails(generate("--prompt", "", "--no-add-special-tokens"), 2, "no tokens")

    def test_none_or_two_prompts(self):
        self.assert_fails(generate(), 2, "exactly one of --prompt, --prompt-ids and --messages")
        self.assert_fails(generate("--prompt", "a", "--prompt-ids", "1"), 2, "exactly one")

    def test_chat_bodies(self):
        for body, word in (("", "JSON"), ("[]", "object"), ('{"messages": 5}', "messages"), ("{}", "messages"),
                           ('{"messages": [{"role": "user", "content": 7}]}', "messages[0].content"),
                           ('{"messages": [], "temperature": "hot"}', "temperature"),
                           ('{"messages":' + "[" * 5000, "nest")):
            self.assert_fails(generate("--messages", "-", stdin=body.encode()), 2, word)
        self.assert_fails(generate("--messages", self.path("none.json")), 3, "none.json")

    def test_settings_out_of_range(self):
        for flag, value in (("--temperature", "-1"), ("--temperature", "nan"), ("--top-p", "0"), ("--top-p", "1.5"),
                            ("--min-p", "2"), ("--max-tokens", "0"), ("--min-tokens", "-1"), ("--threads", "-1"),
                            ("--max-model-len", "1"), ("--max-model-len", "9999999"), ("--max-num-batched-tokens", "-5"),
                            ("--stop", "")):
            self.assert_fails(generate("--prompt", "a", flag, value), 2, flag.strip("-").split("-")[0])


class Memory(TandemTest):
    def test_what_does_not_fit_says_what_would(self):
        window = tandem("generate", NANO, "--prompt", "a", "--kv-cache-memory", "16MiB", "--max-model-len", "1000000")
        self.assert_fails(window, 4, "--max-model-len", "--kv-cache-memory of at least")
        self.assert_fails(tandem("generate", NANO, "--prompt", "a", "--kv-cache-memory", "10"), 4, "--kv-cache-memory", "at least")


class Models(TandemTest):
    def fails(self, model, status, *words):
        for command in (["generate", model, "--prompt", "a"], ["chat", model], ["eval", "skills", model]):
            if command[0] == "eval":
                command += ["--skills", os.path.join(NANO, "skills.json")]
            self.assert_fails(tandem(*command), status, *words)

    def test_an_empty_model_is_not_the_bundled_one(self):
        self.assert_fails(tandem("inspect", ""), 2, "empty")

    def test_missing_model(self):
        self.fails(self.path("none"), 3, self.path("none"), "does not exist")
        self.fails(self.write("file", "x"), 3, "not a folder")

    def test_folder_without_anything(self):
        os.mkdir(self.path("empty"))
        self.fails(self.path("empty"), 3, "config.json")

    def test_damaged_files(self):
        model = self.copy_of_nano(own_weights=True)
        shards = sorted(name for name in os.listdir(model) if name.endswith(".safetensors"))
        size = os.path.getsize(os.path.join(model, shards[0]))
        os.truncate(os.path.join(model, shards[0]), size - 4096)
        self.fails(model, 3, shards[0])
        os.truncate(os.path.join(model, shards[0]), 3)
        self.fails(model, 3, shards[0])
        os.remove(os.path.join(model, shards[0]))
        self.fails(model, 3, shards[0])

    def change_config(self, model, change):
        path = os.path.join(model, "config.json")
        with open(os.path.join(NANO, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        change(config)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)

    def test_wrong_config(self):
        model = self.copy_of_nano()
        self.change_config(model, lambda c: c.update(model_type="llama"))
        self.fails(model, 3, "model_type", "llama", "glm5_next")
        self.change_config(model, lambda c: c["text_config"].update(hidden_size="256"))
        self.fails(model, 3, "hidden_size")
        self.change_config(model, lambda c: c["text_config"].update(vocab_size=1024))
        self.fails(model, 3)

    def test_wrong_tokenizer_and_generation_config(self):
        model = self.copy_of_nano()
        path = os.path.join(model, "generation_config.json")
        for content, word in (("{", "generation_config.json"), ('{"temperature": "warm"}', "temperature"),
                              ('{"top_p": 2}', "top_p"), ('{"top_k": -3}', "top_k"), ('{"eos_token_id": [4096]}', "eos_token_id"),
                              ('{"eos_token_id": "x"}', "eos_token_id"), ("[" * 1000, "generation_config.json")):
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
            self.fails(model, 3, word)
        os.remove(path)  # it may be absent
        self.assertEqual(tandem("generate", model, *SMALL, "--prompt", "a", "--max-tokens", "1").status, 0)
        os.truncate(os.path.join(model, "tokenizer.json"), 1000)
        self.fails(model, 3, "tokenizer.json")

    def test_missing_tensor(self):
        model = self.copy_of_nano(own_weights=True)
        index = os.path.join(model, "model.safetensors.index.json")
        with open(index, encoding="utf-8") as file:
            content = json.load(file)
        name = next(n for n in sorted(content["weight_map"]) if "layers.3" in n)
        shard = os.path.join(model, content["weight_map"][name])
        with open(shard, "rb") as file:
            data = bytearray(file.read())
        # Renamed in place to a name that nobody asks for.
        other = name.replace("layers.3", "layers.x")
        data[:] = data.replace(name.encode(), other.encode())
        with open(shard, "wb") as file:
            file.write(data)
        content["weight_map"][other] = content["weight_map"].pop(name)
        with open(index, "w", encoding="utf-8") as file:
            json.dump(content, file)
        self.fails(model, 3, "layers.3")

    def test_skills_file(self):
        for content, word in (("", "JSON"), ("{}", "list"), ("[5]", "[0]"), ('[{"skill": "a"}]', "expected_text"),
                              ('[{"skill": "a", "expected_text": "b", "messages": 5}]', "messages"), ("[" * 5000, "nested")):
            self.assert_fails(tandem("eval", "skills", NANO, "--skills", self.write("s.json", content)), 3, "s.json", word)
        self.assert_fails(tandem("eval", "skills", NANO, "--skills", self.path("none")), 3, "none")

    def test_parity_folder(self):
        self.assert_fails(tandem("eval", "parity", "--golden", self.path("none")), 3, "none")


class WithoutPermission(TandemTest):
    def run_without_privileges(self, *words):
        """As nobody if we are root, from a copy of the program that everybody may run."""
        if os.geteuid() != 0:
            return tandem(*words)
        program = shutil.copy(PROGRAM, self.path("tandem"))
        os.chmod(self.folder, 0o755)
        os.chmod(program, 0o755)
        return tandem(*words, program=program, user=65534, group=65534, extra_groups=[], cwd="/")

    def test_unreadable_folder_and_file(self):
        model = self.copy_of_nano(own_weights=True)
        self.assertEqual(self.run_without_privileges("inspect", model, "--json").status, 0)
        self.addCleanup(os.chmod, model, 0o755)
        for name in ("", "config.json", "tokenizer.json", "generation_config.json", "model-00001-of-00004.safetensors"):
            path = os.path.join(model, name).rstrip("/")
            os.chmod(path, 0o000)
            result = self.run_without_privileges("generate", model, *SMALL, "--prompt", "a")
            self.assertIn(result.status, (3, 5))  # a bad file, or a permission that could not be had
            self.assert_fails(result, result.status, os.path.basename(path))
            os.chmod(path, 0o755)


class Output(TandemTest):
    def test_full_device(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([PROGRAM, "generate", NANO, *SMALL, "--prompt", "a", "--max-tokens", "4"], stdout=full,
                                  stderr=subprocess.PIPE, timeout=120, check=False)
        self.assertEqual(done.returncode, 5)
        self.assertIn(b"standard output", done.stderr)

    def test_a_reader_that_leaves_ends_the_program_quietly(self):
        for words in (["generate", NANO, *SMALL, "--prompt", "a", "--max-tokens", "4000"], ["chat", NANO, *SMALL], ["--help"]):
            reader, writer = os.pipe()
            os.close(reader)
            done = subprocess.run([PROGRAM, *words], input=b"Hello\nHello\n", stdout=writer, stderr=subprocess.PIPE,
                                  timeout=120, check=False)
            os.close(writer)
            self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, b""), words)

    def test_output_that_is_closed(self):
        done = subprocess.run(["sh", "-c", 'exec "$0" generate "$@" >&-', PROGRAM, NANO, *SMALL, "--prompt", "a", "--max-tokens", "4"],
                              stderr=subprocess.PIPE, timeout=120, check=False)
        self.assertEqual(done.returncode, 5)
        self.assertIn(b"standard output", done.stderr)

    def test_errors_that_nobody_can_read(self):
        for closed in ("2>&-", ">&- 2>&-", "<&- >&- 2>&-"):
            done = subprocess.run(["sh", "-c", f'exec "$0" generate "$@" {closed}', PROGRAM, NANO, "--prompt-ids", "x"],
                                  timeout=120, check=False)
            self.assertEqual(done.returncode, 2, closed)


main()
