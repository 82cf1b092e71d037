"""The part of docs/quality.md about EXL3: models that tandem quantize encodes, compared with their source.

Encoding nano some twenty times takes hours on a small machine. So every row is kept in --work as soon as it is measured
(a JSON file each), a run goes on where an earlier one was stopped, and --minutes ends it in time; what was not measured
is listed as such.
"""
import json
import os
import re
import shutil
import sys
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NANO = os.path.join(SOURCE, "models", "nano")
HEADING = "## Weights in EXL3"


def variants():
    """Name and flags of each row, what is most asked for first."""
    experts = {(bits, codebook): (f"experts exl3:{bits}, {codebook}", ("--experts", f"exl3:{bits}", "--codebook", codebook))
               for bits in (2, 3, 4, 6) for codebook in ("mul1", "mcg")}
    both = {bits: (f"experts and dense exl3:{bits}", ("--experts", f"exl3:{bits}", "--dense", f"exl3:{bits}")) for bits in (3, 4)}
    chosen = {bits: (f"experts and dense, {bits} bits by measured error",
                     ("--experts", "exl3", "--dense", "exl3", "--bits-target", str(bits))) for bits in (3, 4)}
    uncalibrated = {bits: (f"experts exl3:{bits}, mul1, not calibrated", ("--experts", f"exl3:{bits}", "--calibration", "none"))
                    for bits in (4, 3)}
    return [experts[4, "mul1"], experts[2, "mul1"], experts[3, "mul1"], experts[6, "mul1"], experts[4, "mcg"], experts[2, "mcg"],
            experts[3, "mcg"], experts[6, "mcg"], *uncalibrated.values(), both[4], chosen[4], ("dense fp8", ("--dense", "fp8")),
            ("dense exl3:4", ("--dense", "exl3:4")), ("dense exl3:6", ("--dense", "exl3:6")), both[3], chosen[3],
            ("everything exl3:4, the head too", ("--experts", "exl3:4", "--dense", "exl3:4", "--head", "exl3:4"))]


# Pairs of which the first is hoped to have the lower KLD.
ORDERINGS = [("experts exl3:3, mul1", "experts exl3:2, mul1"), ("experts exl3:4, mul1", "experts exl3:3, mul1"),
             ("experts exl3:6, mul1", "experts exl3:4, mul1"), ("experts exl3:4, mul1", "experts exl3:2, mul1"),
             ("dense fp8", "dense exl3:4"), ("experts exl3:3, mcg", "experts exl3:2, mcg"),
             ("experts exl3:4, mcg", "experts exl3:3, mcg"), ("experts exl3:6, mcg", "experts exl3:4, mcg"),
             ("experts exl3:4, mul1", "experts exl3:4, mul1, not calibrated"),
             ("experts exl3:3, mul1", "experts exl3:3, mul1, not calibrated"),
             ("experts exl3:4, mul1", "experts exl3:4, mcg"), ("experts exl3:6, mul1", "experts exl3:6, mcg"),
             ("dense exl3:6", "dense exl3:4"),
             ("experts and dense, 4 bits by measured error", "experts and dense exl3:4"),
             ("experts and dense, 3 bits by measured error", "experts and dense exl3:3")]


def add_arguments(parser):
    parser.add_argument("--work", help="where rows about EXL3 are kept; default: a folder that is removed")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no further row about EXL3 after so many minutes")
    parser.add_argument("--rows", default="", help="measure only rows about EXL3 whose name begins so; others are taken from --work")
    parser.add_argument("--no-skills", action="store_true", help="leave the skills of rows about EXL3 to a later run")
    parser.add_argument("--threads", type=int, default=0, help="of the encoder of EXL3; 0: one for each core")
    parser.add_argument("--scale-search", default="full", choices=["full", "small", "none"], help="of EXL3")
    parser.add_argument("--calibration-tokens", type=int, default=0, help="of EXL3; 0: all of nano's calibration text")


def settings(options):
    return {"scale_search": options.scale_search, "calibration_tokens": options.calibration_tokens, "texts": options.texts}


def measure(runner, options, flags, out):
    """A row but for its skills, which take as long as the rest and come when all rows have theirs."""
    start = time.monotonic()
    more = ["--threads", str(options.threads)]
    if any("exl3" in flag for flag in flags):
        more += ["--scale-search", options.scale_search]
        if "none" not in flags:
            more += ["--calibration-tokens", str(options.calibration_tokens)]
    made = runner.json("quantize", NANO, "--out", out, *flags, *more)
    seconds = time.monotonic() - start
    teacher = os.path.join(options.work, "teacher.logits") if options.work else runner.path("teacher.logits")
    if not os.path.exists(teacher):
        runner.json("eval", "kld", "--teacher", NANO, "--text", runner.path("measured.jsonl"), "--capture", teacher)
    kld = runner.json("eval", "kld", "--teacher", teacher, "--student", out, "--text", runner.path("measured.jsonl"),
                      "--threads", "1")
    weights = runner.json("inspect", out)["weights"]
    tensors = made.get("tensors", [])
    return {"settings": settings(options), "bytes": weights["bytes"], "bytes_per_token": weights["bytes_per_token"],
            "kld": kld["kld"], "top1": kld["top1"]["agreement"], "perplexity": kld["student"]["perplexity"],
            "teacher_perplexity": kld["teacher"]["perplexity"], "text": kld["text"], "skills": None,
            "average_bits": made.get("average_bits"), "seconds": seconds, "notes": made.get("notes", []),
            "error": sum(t["relative_mse"] for t in tensors) / len(tensors) if tensors else None,
            "weighted_error": sum(t["weighted_error"] for t in tensors) / len(tensors) if tensors else None}


def places(work, name):
    """The file of a row, and the folder of its model until all is measured."""
    words = re.sub("[^a-z0-9]+", "-", name)
    return os.path.join(work, f"row-{words}.json"), os.path.join(work, f"model-{words}")


def keep(path, row):
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(row, file)
    os.rename(path + ".new", path)


def measured(runner, options):
    """The rows that there are, by name."""
    work = options.work or runner.path("exl3")
    os.makedirs(work, exist_ok=True)
    end = time.monotonic() + 60 * options.minutes
    rows = {}
    for name, flags in variants():
        path, out = places(work, name)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                row = json.load(file)
            if row["settings"] != settings(options):
                sys.exit(f"{path}: made with {row['settings']}, not {settings(options)}")
            rows[name] = row
            continue
        if time.monotonic() > end or not name.startswith(options.rows):
            continue
        shutil.rmtree(out, True)  # of a run that was stopped before it had measured what it encoded
        rows[name] = measure(runner, options, flags, out)
        keep(path, rows[name])
    for name, row in rows.items():
        path, out = places(work, name)
        if row["skills"] or options.no_skills or time.monotonic() > end:
            continue
        skills = runner.json("eval", "skills", out, "--min", "0", "--threads", "1")
        row["skills"] = [skills["exact"], skills["of"]]
        keep(path, row)
        shutil.rmtree(out)
    return rows


def orderings(rows):
    lines, missing = [], 0
    for better, worse in ORDERINGS:
        if better not in rows or worse not in rows:
            missing += 1
            continue
        a, b = rows[better]["kld"], rows[worse]["kld"]
        spread = (a["mean_error"] ** 2 + b["mean_error"] ** 2) ** 0.5
        change = lambda key: f"{100 * (a[key] / b[key] - 1):+.0f} %"  # noqa: E731
        verdict = ("lower" if a["mean"] < b["mean"] - spread else "**not lower**" if a["mean"] > b["mean"] + spread else
                   "**no difference** beyond the standard error of the two")
        lines.append(f"* {better}: mean KLD {a['mean']:.2e} against {b['mean']:.2e} of {worse}, {change('mean')}: {verdict}. "
                     f"Half of the positions {change('p50')}, the bound of 99 % {change('p99')}.")
    if missing:
        lines.append(f"* {missing} of {len(ORDERINGS)} comparisons lack a row.")
    return lines


def section(runner, options):
    rows = measured(runner, options)
    lines = [HEADING, ""]
    if not rows:
        return lines + ["Nothing was measured."]
    first = next(iter(rows.values()))
    text = first["text"]
    calibration = f"the first texts with {options.calibration_tokens:,} tokens" if options.calibration_tokens else "all"
    lines += [f"`tandem quantize` with calibration on {calibration} of `models/nano/calibration_text.jsonl`, none of it evaluated "
              f"here, and", f"`--scale-search {options.scale_search}`; made by `bench/quality.py --only exl3`. Teacher, skills "
              f"and units as above; text: {text['texts']} texts,", f"{text['positions']:,} positions, on which the teacher's "
              f"perplexity is {first['teacher_perplexity']:.4f}. One run each. Bits are of the trellis, without the",
              "head; the errors are means over matrices: relative squares, and squares weighted by the inputs' second moment.", "",
              "| format | bits | bytes of all tensors; read for a token | error; weighted | mean KLD | half below | 99 % below | "
              "top-1, % | perplexity | skills |", "|---|---|---|---|---|---|---|---|---|---|"]
    for name, _ in variants():
        if name not in rows:
            lines.append(f"| {name} | not measured | | | | | | | | |")
            continue
        row = rows[name]
        bits = f"{row['average_bits']:.2f}" if row["average_bits"] else "8"
        error = f"{row['error']:.1e}; {row['weighted_error']:.1e}" if row["error"] else ""
        skills = "{} of {}".format(*row["skills"]) if row["skills"] else "not measured"
        kld = row["kld"]
        lines.append(f"| {name} | {bits} | {row['bytes']:,}; {row['bytes_per_token']:,} | {error} | {kld['mean']:.2e} ± "
                     f"{kld['mean_error']:.0e} | {kld['p50']:.1e} | {kld['p99']:.1e} | {100 * row['top1']:.2f} | "
                     f"{row['perplexity']:.4f} | {skills} |")
    left = sum(name not in rows for name, _ in variants())
    if left:
        lines += ["", f"{left} of {len(variants())} rows were not measured: the run was ended before (`--minutes`). The same command "
                  "with the same `--work` goes on."]
    lines += ["", "What one would hope for:", "", *orderings(rows)]
    for name, row in rows.items():
        widths = [note for note in row["notes"] if note.endswith(" bits")]
        if widths:
            lines += ["", f"Widths of \"{name}\":", "", ", ".join(note.replace(" bits", "") for note in widths) + "."]
    return lines
