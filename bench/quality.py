"""Measures what each cache and weight format costs on the bundled model, and writes docs/quality.md.

    python3 bench/quality.py build/release/tandem [--runs 2] [--jobs 1] [--out docs/quality.md]
    python3 bench/quality.py build/release/tandem --only exl3 --work DIR [--texts 40] [--scale-search full]

The teacher is models/nano in BF16 with an f32 cache. Every figure of the page is measured by this run; --only exl3
measures and replaces the part about EXL3 alone (quality_exl3.py).
"""
import argparse
import array
import concurrent.futures
import json
import math
import mmap
import os
import struct
import subprocess
import sys
import tempfile

import quality_exl3

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NANO = os.path.join(SOURCE, "models", "nano")
# --kv-cache-dtype and its name in tandem inspect.
CACHES = {"f32": "f32 latent, f32 keys", "bf16": "bf16 latent, bf16 keys", "bf16_fp8_index": "bf16 latent, fp8 keys",
          "fp8": "fp8 latent (scales of 128), fp8 keys", "fp8_row": "fp8 latent (one scale a row), fp8 keys",
          "nvfp4": "nvfp4 latent (padded record), fp8 keys"}
WEIGHTS = (("fp8", "keep"), ("fp8", "fp8"), ("nvfp4", "keep"), ("nvfp4", "fp8"))


class Runner:
    def __init__(self, program, folder, runs, jobs):
        self.program, self.folder, self.runs = program, folder, runs
        self.pool = concurrent.futures.ThreadPoolExecutor(jobs)  # rows are measured side by side, each by one thread
        self.kld = {}  # by row
        self.deviation = 0  # the largest of all rows' standard deviations over their runs

    def json(self, *words):
        print("tandem", *words, file=sys.stderr, flush=True)
        done = subprocess.run([self.program, *words, "--json"], stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)

    def path(self, name):
        return os.path.join(self.folder, name)


def texts(runner, count):
    """The first `count` texts, on which is measured."""
    with open(os.path.join(NANO, "eval_text.jsonl"), encoding="utf-8") as file:
        lines = file.readlines()
    with open(runner.path("measured.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(lines[:count])
    return len(lines)


def near_ties(capture, closer_than):
    """Share of a capture's positions whose two best logits are closer; docs/internals/formats.md has the layout."""
    with open(capture, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
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
            row = logits[first:first + vocab]
            best = max(row)
            del row[row.index(best)]
            close += best - max(row) < closer_than
            positions += 1
    return close / positions


def row(runner, name, model, size, *cache):
    found = runner.json("eval", "kld", "--teacher", runner.path("teacher.logits"), "--student", model,
                        "--text", runner.path("measured.jsonl"), "--runs", str(runner.runs), "--threads", "1", *cache)
    runner.deviation = max(runner.deviation, found["runs"]["mean_kld_std"])
    skills = runner.json("eval", "skills", model, "--min", "0", "--threads", "1", *cache)
    kld = runner.kld[name] = found["kld"]
    return (f"| {name} | {size} | {kld['mean']:.2e} ± {kld['mean_error']:.0e} | {kld['p99']:.1e} | {kld['max']:.1e} | "
            f"{100 * found['top1']['agreement']:.2f} | {found['student']['perplexity']:.4f} | "
            f"{skills['exact']} of {skills['of']} |")


def header(size):
    return [f"| format | {size} | mean KLD | 99 % below | largest | top-1, % | perplexity | skills |",
            "|---|---|---|---|---|---|---|---|"]


def cache_rows(runner):
    rows = {entry["format"]: entry for entry in runner.json("inspect", NANO)["cache"]["formats"]}
    size = {dtype: f"{rows[name]['bytes_per_token']:,.1f}" for dtype, name in CACHES.items()}
    runner.calibration = runner.json("calibrate", "kv", NANO, "--cache-dir", runner.path("scales"))
    scales, = (os.path.join(at, file) for at, _, files in os.walk(runner.path("scales")) for file in files)
    settings = [(dtype, dtype, ()) for dtype in CACHES if dtype != "nvfp4"]
    settings += [("nvfp4, not calibrated", "nvfp4", ("--kv-scales", "none")),
                 ("nvfp4, calibrated", "nvfp4", ("--kv-scales", scales))]
    return [runner.pool.submit(row, runner, name, NANO, size[dtype], "--kv-cache-dtype", dtype, *more)
            for name, dtype, more in settings]


def weight_rows(runner):
    rows = []
    for experts, dense in WEIGHTS:
        out = runner.path(f"{experts}-{dense}")
        runner.json("quantize", NANO, "--out", out, "--experts", experts, "--dense", dense)
        weights = runner.json("inspect", out)["weights"]
        size = f"{weights['bytes']:,}; {weights['bytes_per_token']:,}"
        rows.append(runner.pool.submit(row, runner, f"experts {experts}, dense {dense}", out, size))
    return rows


def calibration_lines(calibration):
    lines = ["| layer | largest latent | scale | error with it | error with a scale for each row |", "|---|---|---|---|---|"]
    for layer, found in calibration["layers"].items():
        lines.append(f"| {layer} | {found['absolute_max']:.3f} | 2^{math.log2(found['scale']):.0f} | {found['error']:.5f} | "
                     f"{found['row_scale_error']:.5f} |")
    return lines


def calibration_gain(kld):
    plain, calibrated = kld["nvfp4, not calibrated"], kld["nvfp4, calibrated"]
    gain = plain["mean"] - calibrated["mean"]
    error = math.hypot(plain["mean_error"], calibrated["mean_error"])
    return (f"The mean KLD with calibration is {abs(gain):.1e} {'lower' if gain > 0 else 'higher'}, with a standard error of "
            f"{error:.0e}:\nmeans hang on single positions, of which the largest are {plain['max']:.1e} without and "
            f"{calibrated['max']:.1e} with calibration.")


def runs_line(runner):
    if runner.deviation == 0:
        return (f"Every row was measured in {runner.runs} cold runs, which are equal to the bit: the deviation over runs is 0, "
                "so none is listed.")
    return f"Every row was measured in {runner.runs} cold runs; the largest standard deviation over them is {runner.deviation:.1e}."


def page(runner, options):
    total = texts(runner, options.texts)
    teacher = runner.json("eval", "kld", "--teacher", NANO, "--text", runner.path("measured.jsonl"), "--capture",
                          runner.path("teacher.logits"))
    text, weights = teacher["text"], runner.json("inspect", NANO)["weights"]
    caches, formats = cache_rows(runner), weight_rows(runner)
    caches = header("bytes a token") + [found.result() for found in caches]
    formats = header("bytes of all tensors; read for a token") + [found.result() for found in formats]
    return "\n".join([
        "# What formats cost in quality", "",
        "Made by `python3 bench/quality.py build/release/tandem`; every figure is from one run of it on a CPU.",
        runs_line(runner), "",
        f"Teacher: `models/nano` in BF16 ({weights['bytes']:,} bytes of tensors, {weights['bytes_per_token']:,} read for a "
        "token) with an f32 cache; its",
        f"perplexity is {teacher['teacher']['perplexity']:.4f}. Text: "
        f"{'all' if text['texts'] == total else 'the first ' + str(text['texts']) + ' of the'} {total} texts of "
        f"`models/nano/eval_text.jsonl`, {text['positions']:,} positions in",
        f"{text['windows']} windows of at most {text['window']:,} tokens. KLD is in nats, ± the standard error over windows. "
        "Skills are the exact answers of",
        "`tandem eval skills`. [How these are counted](eval.md).", "",
        "nano is small and was trained for this repository: its figures say that the formats work and how they compare, "
        "not what they cost", "GLM-5.3-Flash. "
        f"At {100 * near_ties(runner.path('teacher.logits'), 0.1):.1f} % of the positions the teacher's two best logits are "
        "closer than 0.1:", "there a small error can exchange the two without costing perplexity.", "",
        "## Token cache", "",
        "Weights in BF16. The keys of fp8, fp8_row and nvfp4 are FP8: the row bf16_fp8_index has their share alone.", "",
        *caches, "",
        "### What calibration gains", "",
        f"`tandem calibrate kv` measured the scales of \"nvfp4, calibrated\" on `models/nano/calibration_text.jsonl` "
        f"({runner.calibration['tokens']:,} tokens, none of them", f"evaluated here). The relative error of "
        f"{runner.calibration['sampled_rows']:,} stored rows of each layer:", "",
        *calibration_lines(runner.calibration), "",
        "A group of 16 values has a scale of its own, which e4m3 keeps as precisely whatever the outer scale is, as long as no",
        "group leaves its range: Gaussian values have an error of 0.0951 with any such scale. Our record has room for a scale of",
        "each row, so that rows are in range without calibration (`--kv-scales none`); a scale of the layer is for records",
        "without that room. " + calibration_gain(runner.kld), "",
        "## Weights", "",
        "`tandem quantize`, rounded to nearest without calibration, with an f32 cache. "
        "[What experts and dense are](formats.md#writing-fp8-and-nvfp4).", "",
        *formats, "", *quality_exl3.section(runner, options), ""])


def replace_section(path, lines):
    """The page with these lines in place of its part with the same heading, at the end if it has none."""
    with open(path, encoding="utf-8") as file:
        page = file.read()
    before, heading, rest = page.partition(lines[0] + "\n")
    _, following, after = rest.partition("\n## ")
    return before.rstrip("\n") + "\n\n" + "\n".join(lines) + "\n" + following + after


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--texts", type=int, default=40, help="how many of the 40 texts are measured")
    parser.add_argument("--runs", type=int, default=2, help="cold runs of every row")
    parser.add_argument("--out", default=os.path.join(SOURCE, "docs", "quality.md"))
    parser.add_argument("--jobs", type=int, default=1, help="rows that are measured at a time, a core each")
    parser.add_argument("--only", choices=["exl3"], help="the part that is measured; default: all")
    quality_exl3.add_arguments(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tandem-quality-") as folder:
        runner = Runner(os.path.abspath(options.program), folder, options.runs, options.jobs)
        if options.only == "exl3":
            texts(runner, options.texts)
            result = replace_section(options.out, quality_exl3.section(runner, options))
        else:
            result = page(runner, options)
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(result)


main()
