"""tandem generate: replies, limits, seeds, what the JSON says."""
import json
import os

from program import NANO, SMALL, SOURCE, TandemTest, main, tandem

with open(os.path.join(SOURCE, "tests", "golden", "nano", "greedy.json"), encoding="utf-8") as file:
    GOLDEN = json.load(file)
SHORT = min((case for case in GOLDEN if case["stop_index"]), key=lambda case: case["stop_index"])


def generate(*words, **more):
    return tandem("generate", NANO, *SMALL, *words, **more)


class Generate(TandemTest):
    def test_greedy_reply_is_the_references(self):
        ids = ",".join(map(str, SHORT["prompt_ids"]))
        for prompt in (["--prompt", SHORT["prompt"]], ["--prompt-ids", ids]):
            reply = generate(*prompt, "--temperature", "0", "--json").json()
            self.assertEqual(next(iter(reply)), "schema")
            self.assertEqual(reply["schema"], "tandem.generate/1")
            self.assertEqual(reply["prompt_ids"], SHORT["prompt_ids"])
            self.assertEqual(reply["ids"], SHORT["output_ids"][: SHORT["stop_index"]])
            self.assertEqual(reply["text"], SHORT["output_text"])
            self.assertEqual(reply["finish_reason"], "stop")
            self.assertEqual(reply["stop_reason"], SHORT["output_ids"][SHORT["stop_index"]])
            for name in ("load_ms", "queue_ms", "prefill_ms", "decode_ms", "prefill_tokens_per_second"):
                self.assertGreater(reply["timings"][name], 0)

    def test_text_is_written_as_is_with_an_end_of_line(self):
        result = generate("--prompt", SHORT["prompt"], "--temperature", "0")
        self.assertEqual((result.status, result.out, result.err), (0, SHORT["output_text"] + "\n", ""))

    def test_prompt_from_standard_input(self):
        result = generate("--prompt", "-", "--temperature", "0", stdin=SHORT["prompt"].encode())
        self.assertEqual(result.out, SHORT["output_text"] + "\n")

    def test_chunks_do_not_change_the_reply(self):
        case = max(GOLDEN, key=lambda c: len(c["prompt_ids"]))
        ids = ",".join(map(str, case["prompt_ids"]))
        replies = [generate("--prompt-ids", ids, "--temperature", "0", "--json", "--max-num-batched-tokens", rows).json()
                   for rows in ("7", "1000")]
        self.assertEqual(replies[0]["ids"], replies[1]["ids"])
        self.assertEqual(replies[0]["ids"], case["output_ids"][: case["stop_index"]])

    def test_prefix_is_added_once(self):
        for prompt in ("[gMASK]<sop>Hello", "Hello"):
            ids = generate("--prompt", prompt, "--max-tokens", "1", "--json").json()["prompt_ids"]
            self.assertEqual(ids[:2], [1990, 1992])
            self.assertNotIn(1990, ids[2:])
        bare = generate("--prompt", "Hello", "--no-add-special-tokens", "--max-tokens", "1", "--json").json()
        self.assertNotIn(1990, bare["prompt_ids"])

    def test_lengths(self):
        base = ["--prompt", SHORT["prompt"], "--temperature", "0", "--json"]
        cut = generate(*base, "--max-tokens", "3").json()
        self.assertEqual((cut["ids"], cut["finish_reason"], cut["stop_reason"]), (SHORT["output_ids"][:3], "length", None))
        longer = generate(*base, "--min-tokens", "60", "--max-tokens", "64").json()
        self.assertGreaterEqual(len(longer["ids"]), 60)
        beyond = generate(*base, "--ignore-eos", "--max-tokens", "50").json()
        self.assertEqual(beyond["finish_reason"], "length")
        self.assertIn(SHORT["output_ids"][SHORT["stop_index"]], beyond["ids"])
        window = generate(*base, "--ignore-eos", "--max-model-len", str(len(SHORT["prompt_ids"]) + 4)).json()
        self.assertEqual(len(window["ids"]), 4)

    def test_stop_strings_cut_the_text(self):
        text = SHORT["output_text"]
        stop = text[5:9]
        reply = generate("--prompt", SHORT["prompt"], "--temperature", "0", "--json", "--stop", "never seen", "--stop", stop).json()
        self.assertEqual(reply["text"], text[: text.index(stop)])
        self.assertEqual((reply["finish_reason"], reply["stop_reason"]), ("stop", stop))
        words = ["generate", "--prompt", SHORT["prompt"], "--temperature", "0", "--stop", stop, NANO]  # MODEL after --stop
        self.assertEqual(tandem(*words).out, text[: text.index(stop)] + "\n")

    def test_seeds(self):
        base = ["--prompt", "<|user|>Tell me a story about a clever fox.<|assistant|><think>", "--max-tokens", "40",
                "--temperature", "1.5", "--top-p", "1", "--json"]
        first = generate(*base, "--seed", "7").json()
        self.assertEqual(first["seed"], 7)
        self.assertEqual(generate(*base, "--seed", "7").json()["ids"], first["ids"])
        self.assertNotEqual(generate(*base, "--seed", "8").json()["ids"], first["ids"])
        drawn = generate(*base).json()
        self.assertNotEqual(generate(*base).json()["seed"], drawn["seed"])
        self.assertEqual(generate(*base, "--seed", str(drawn["seed"])).json()["ids"], drawn["ids"])

    def test_filters_reach_the_sampler(self):
        base = ["--prompt", SHORT["prompt"], "--json", "--max-tokens", "20"]
        greedy = generate(*base, "--temperature", "0").json()["ids"]
        for one in (["--top-k", "1"], ["--top-p", "1e-9"], ["--min-p", "1"]):
            self.assertEqual(generate(*base, "--temperature", "2", *one).json()["ids"], greedy, one)

    def test_a_prompt_from_standard_input_loses_one_line_end(self):
        expected = generate("--prompt", SHORT["prompt"], "--json", "--temperature", "0").json()
        read = generate("--prompt", "-", "--json", "--temperature", "0", stdin=SHORT["prompt"].encode() + b"\n").json()
        self.assertEqual(read["prompt_ids"], expected["prompt_ids"])

    def test_chat_body(self):
        body = {"messages": [{"role": "user", "content": "What is the capital of Norway?"}], "temperature": 0,
                "reasoning_effort": "low"}
        path = self.write("body.json", json.dumps(body))
        reply = generate("--messages", path, "--json").json()
        self.assertEqual(reply["text"], "</think>The capital of Norway is Oslo.")
        self.assertEqual(generate("--messages", "-", stdin=json.dumps(body).encode()).out, reply["text"] + "\n")
        self.assertEqual(generate("--messages", "/dev/stdin", stdin=json.dumps(body).encode()).out, reply["text"] + "\n")
        body["max_tokens"], body["stop"] = 50, ["Nor"]
        stopped = generate("--messages", "-", "--json", stdin=json.dumps(body).encode()).json()
        self.assertEqual((stopped["text"], stopped["stop_reason"]), ("</think>The capital of ", "Nor"))
        flag_wins = generate("--messages", "-", "--json", "--max-tokens", "2", stdin=json.dumps(body).encode()).json()
        self.assertEqual(len(flag_wins["ids"]), 2)


main()
