"""Measures what each cache and weight format costs on the bundled model, and writes docs/quality.md.

    python3 bench/quality.py build/release/tandem [--texts 8] [--out docs/quality.md]

The teacher is models/nano in BF16 with an f32 cache. Every figure of the page is measured by this run.
"""
import argparse
import array
import json
import os
import struct
import subprocess
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NANO = os.path.join(SOURCE, "models", "nano")
# --kv-cache-dtype and its name in tandem inspect.
CACHES = {"f32": "f32 latent, f32 keys", "bf16": "bf16 latent, bf16 keys", "fp8": "fp8 latent (scales of 128), fp8 keys",
          "fp8_row": "fp8 latent (one scale a row), fp8 keys", "nvfp4": "nvfp4 latent (padded record), fp8 keys",
          "bf16_fp8_index": "bf16 latent, fp8 keys"}
WEIGHTS = (("fp8", "keep"), ("fp8", "fp8"), ("nvfp4", "keep"), ("nvfp4", "fp8"))


class Runner:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def json(self, *words):
        done = subprocess.run([self.program, *words, "--json"], capture_output=True, check=True)
        return json.loads(done.stdout)

    def path(self, name):
        return os.path.join(self.folder, name)


def texts(runner, count):
    """The first `count` texts, on which is measured, and the others, on which the NVFP4 cache is calibrated."""
    with open(os.path.join(NANO, "eval_text.jsonl"), encoding="utf-8") as file:
        lines = file.readlines()
    for name, part in (("measured.jsonl", lines[:count]), ("others.jsonl", lines[count:])):
        with open(runner.path(name), "w", encoding="utf-8") as file:
            file.writelines(part)
    return len(lines)


def near_ties(capture, closer_than):
    """Share of a capture's positions whose two best logits are closer; docs/internals/formats.md has the layout."""
    with open(capture, "rb") as file:
        data = file.read()
    vocab, = struct.unpack_from("<I", data, 12)
    count, = struct.unpack_from("<Q", data, 24)
    name_length, = struct.unpack_from("<I", data, 72)
    at = 80 + (name_length + 3) // 4 * 4
    windows = struct.unpack_from(f"<{count}I", data, at)
    at += 4 * count + 4
    close = positions = 0
    for tokens in windows:
        size = (tokens - 1) * vocab
        logits = array.array("f", data[at:at + 4 * size])
        at += 4 * size + 4
        for first in range(0, size, vocab):
            second_best, best = sorted(logits[first:first + vocab])[-2:]
            close += best - second_best < closer_than
            positions += 1
    return close / positions


def row(runner, name, model, size, *cache):
    found = runner.json("eval", "kld", "--teacher", runner.path("teacher.logits"), "--student", model,
                        "--text", runner.path("measured.jsonl"), *cache)
    skills = runner.json("eval", "skills", model, "--min", "0", *cache)
    kld = found["kld"]
    return (f"| {name} | {size} | {kld['mean']:.2e} ± {kld['mean_error']:.0e} | {kld['p99']:.1e} | {kld['max']:.1e} | "
            f"{100 * found['top1']['agreement']:.2f} | {found['student']['perplexity']:.4f} | "
            f"{skills['exact']} of {skills['of']} |")


def header(size):
    return [f"| format | {size} | mean KLD | 99 % below | largest | top-1, % | perplexity | skills |",
            "|---|---|---|---|---|---|---|---|"]


def cache_rows(runner):
    rows = {entry["format"]: entry for entry in runner.json("inspect", NANO)["cache"]["formats"]}
    size = {dtype: f"{rows[name]['bytes_per_token']:,.1f}" for dtype, name in CACHES.items()}
    lines = header("bytes a token")
    for dtype in CACHES:
        name = f"{dtype}, not calibrated" if dtype == "nvfp4" else dtype
        uncalibrated = ("--kv-scales", "none") if dtype == "nvfp4" else ()
        lines.append(row(runner, name, NANO, size[dtype], "--kv-cache-dtype", dtype, *uncalibrated))
        if dtype == "nvfp4":
            subprocess.run([runner.program, "calibrate", "kv", NANO, "--text", runner.path("others.jsonl"),
                            "--cache-dir", runner.path("scales")], check=True, capture_output=True)
            scales, = (os.path.join(at, file) for at, _, files in os.walk(runner.path("scales")) for file in files)
            lines.append(row(runner, "nvfp4, calibrated", NANO, size[dtype], "--kv-cache-dtype", dtype,
                             "--kv-scales", scales))
    return lines


def weight_rows(runner):
    lines = header("bytes of all tensors; read for a token")
    for experts, dense in WEIGHTS:
        out = runner.path(f"{experts}-{dense}")
        subprocess.run([runner.program, "quantize", NANO, "--out", out, "--experts", experts, "--dense", dense],
                       check=True, capture_output=True)
        weights = runner.json("inspect", out)["weights"]
        size = f"{weights['bytes']:,}; {weights['bytes_per_token']:,}"
        lines.append(row(runner, f"experts {experts}, dense {dense}", out, size))
    return lines


def page(runner, count):
    total = texts(runner, count)
    teacher = runner.json("eval", "kld", "--teacher", NANO, "--text", runner.path("measured.jsonl"), "--capture",
                          runner.path("teacher.logits"))
    text, weights = teacher["text"], runner.json("inspect", NANO)["weights"]
    return "\n".join([
        "# What formats cost in quality", "",
        "Made by `python3 bench/quality.py build/release/tandem`; every figure is from one run of it on a CPU.", "",
        f"Teacher: `models/nano` in BF16 ({weights['bytes']:,} bytes of tensors, {weights['bytes_per_token']:,} read for a "
        "token) with an f32 cache; its",
        f"perplexity is {teacher['teacher']['perplexity']:.4f}. Text: the first {text['texts']} of the {total} texts of "
        f"`models/nano/eval_text.jsonl`, {text['positions']:,} positions in",
        f"{text['windows']} windows of at most {text['window']:,} tokens. KLD is in nats, ± the standard error over windows. "
        "Skills are the exact answers of",
        "`tandem eval skills`. [How these are counted](eval.md).", "",
        "nano is small and was trained for this repository: its figures say that the formats work and how they compare, "
        "not what they cost", "GLM-5.3-Flash. "
        f"At {100 * near_ties(runner.path('teacher.logits'), 0.1):.1f} % of the positions the teacher's two best logits are "
        "closer than 0.1:", "there a small error can exchange the two without costing perplexity.", "",
        "## Token cache", "",
        "Weights in BF16. The scales of \"nvfp4, calibrated\" were measured on the texts that are not measured here.", "",
        *cache_rows(runner), "",
        "## Weights", "",
        "`tandem quantize`, rounded to nearest without calibration, with an f32 cache. "
        "[What experts and dense are](formats.md#writing-fp8-and-nvfp4).", "",
        *weight_rows(runner), ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--texts", type=int, default=8, help="how many of the 40 texts are measured")
    parser.add_argument("--out", default=os.path.join(SOURCE, "docs", "quality.md"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tandem-quality-") as folder:
        result = page(Runner(os.path.abspath(options.program), folder), options.texts)
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(result)


main()
