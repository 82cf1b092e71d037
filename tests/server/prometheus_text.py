"""A strict reader of the Prometheus text format (0.0.4), for tests."""

import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"^({NAME})(?:\{{(.*)\}})? (\S+)$")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')


class Metrics:
    """`types` by family; values by value() and total()."""

    def __init__(self, text):
        if not text.endswith("\n"):
            raise ValueError("no line end at the end")
        self.types, self.values, family = {}, {}, None
        for line in text[:-1].split("\n"):
            if line.startswith("# HELP "):
                family = re.fullmatch(rf"# HELP ({NAME}) (?:[^\\]|\\[\\n])+", line).group(1)
                if family in self.types:
                    raise ValueError(f"a family twice: {line}")
                self.types[family] = None
            elif line.startswith("# TYPE "):
                name, kind = re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge|histogram)", line).groups()
                if name != family or self.types[family]:
                    raise ValueError(f"out of order: {line}")
                self.types[family] = kind
            else:
                self._sample(line, family)
        self._check_histograms()

    def _sample(self, line, family):
        match = SAMPLE.match(line)
        if not match or family is None:
            raise ValueError(f"not a sample: {line}")
        name, inside, number = match.groups()
        labels, at = {}, 0
        while inside is not None and at < len(inside):
            label = LABEL.match(inside, at)
            if not label or label.group(1) in labels:
                raise ValueError(f"wrong labels: {line}")
            labels[label.group(1)] = label.group(2)
            at = label.end()
        endings = ("_bucket", "_sum", "_count") if self.types[family] == "histogram" else ("",)
        if name not in [family + ending for ending in endings]:
            raise ValueError(f"not of family {family}: {line}")
        key = (name, tuple(sorted(labels.items())))
        if key in self.values:
            raise ValueError(f"a sample twice: {line}")
        self.values[key] = float(number)

    def _check_histograms(self):
        series = {}
        for (name, labels), count in self.values.items():
            bound = dict(labels).get("le")
            if name.endswith("_bucket") and bound is not None:
                rest = tuple(label for label in labels if label[0] != "le")
                series.setdefault((name[: -len("_bucket")], rest), []).append((float(bound), count))
        for (name, labels), buckets in series.items():
            counts = [count for _, count in buckets]
            if buckets != sorted(buckets) or counts != sorted(counts) or buckets[-1][0] != float("inf"):
                raise ValueError(f"buckets of {name} do not ascend to +Inf")
            if counts[-1] != self.values[(name + "_count", labels)] or (name + "_sum", labels) not in self.values:
                raise ValueError(f"{name} does not add up")

    def _matching(self, name, wanted):
        return [v for (n, labels), v in self.values.items() if n == name and wanted.items() <= dict(labels).items()]

    def value(self, name, **labels):
        (found,) = self._matching(name, labels)
        return found

    def total(self, name, **labels):
        return sum(self._matching(name, labels))
