"""The rules of the source tree that no compiler checks. `check_tree.py RULE [ROOT]` prints every violation of one rule and
exits 1 when there is any; ctest runs each rule as one test. test_check_tree.py proves that each of them can fail.

A rule is a function that takes a Tree and yields "path:line: what is wrong" strings. Standard library only.
"""

import re
import subprocess
import sys
from pathlib import Path

SOURCE_LINES_MAX = 500
TREE_BYTES_MAX = 54 << 20

SOURCE = (".cc", ".h", ".cu", ".cuh")
TEXT = SOURCE + (".py", ".sh", ".cmake", ".txt", ".md", ".json", ".jsonl", ".yml", ".jinja")
# Data keeps the bytes that it came with: models, golden vectors, prompt fixtures, fuzz seeds.
DATA = ("models/", "tests/golden/", "tests/text/", "tests/server/data/", "tests/fuzz/seeds/")

# Which includes stay inside which rooms (design: "what it must not know"). A pattern is matched at the start of the
# included path. A test beside the code may read JSON, so that golden data can be JSON everywhere.
ONLY_IN = [
    (r"boost/(?!crc\.hpp)", {"http", "cluster"}, "Boost is for http/ and cluster/"),
    (r"boost/crc\.hpp", {"base"}, "base/crc32c.h is for everybody"),
    ("CLI/", {"cli"}, "CLI11 is for cli/"),
    (r"(sys/socket|netinet/|arpa/|sys/epoll|netdb)", {"http", "cluster"}, "sockets are for http/ and cluster/"),
    (r"(cuda|nvrtc|nccl)", {"device", "ops", "cluster"}, "CUDA is for device/, ops/ and cluster/"),
]
NO_JSON_IN = {"base", "quant", "ops", "cache", "forward", "engine", "http"}
# Too slow to compile in headers. Boost may stand in a header of its own rooms, which nothing else includes.
HEAVY = r"(CLI/|nlohmann/)"


class Tree:
    """The files that belong to the project: what git tracks or would add, or every file where there is no git."""

    def __init__(self, root):
        self.root = Path(root)
        self.files = sorted(path for path in self._list() if (self.root / path).is_file())
        self._text = {}

    def _list(self):
        if (self.root / ".git").exists():
            command = ["git", "-C", str(self.root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
            out = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            return {path for path in out.decode().split("\0") if path}
        found = (path.relative_to(self.root) for path in self.root.rglob("*"))
        return {str(path) for path in found if path.parts[0] not in ("build", ".git", ".cache")}

    def text(self, path):
        if path not in self._text:
            self._text[path] = (self.root / path).read_bytes().decode("utf-8", errors="replace")
        return self._text[path]

    def lines(self, path):
        return enumerate(self.text(path).split("\n"), 1)

    def having(self, suffixes, under=""):
        return [path for path in self.files if path.startswith(under) and path.endswith(suffixes)]

    def rooms(self):
        """The rooms from the bottom to the top, from the list that the build goes by."""
        match = re.search(r"set\(TANDEM_ROOMS ([a-z\s]+)\)", self.text("cmake/tandem.cmake"))
        return match.group(1).split()

    def includes(self, path):
        for number, line in self.lines(path):
            match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
            if match:
                yield number, match.group(1) == '"', match.group(2)


def room_of(path):
    return path.split("/")[1]


def include_order(tree):
    """A room includes only itself and the rooms below it, by a path from src/."""
    rooms = tree.rooms()
    for path in tree.having(SOURCE, "src/"):
        room = room_of(path)
        if room not in rooms:
            yield f"{path}:1: the folder {room} is not a room of cmake/tandem.cmake, so nothing builds it"
            continue
        for number, quoted, included in tree.includes(path):
            if not quoted:
                continue
            target = included.split("/")[0]
            if "/" not in included or target not in rooms or not (tree.root / "src" / included).is_file():
                yield f'{path}:{number}: "{included}" is not a file under src/ (write "room/file.h")'
            elif rooms.index(target) > rooms.index(room):
                yield f"{path}:{number}: {room}/ must not include {target}/, which stands above it"


def must_not_know(tree):
    """Libraries stay in the rooms that may know them, heavy headers out of headers (but those that only tests read)."""
    for path in tree.having(SOURCE, "src/"):
        room = room_of(path)
        for number, _, included in tree.includes(path):
            for pattern, allowed, reason in ONLY_IN:
                if path.endswith("_test.cc") and included == "sys/socket.h":
                    continue  # a socket pair as a writer's other end
                if re.match(pattern, included) and room not in allowed:
                    yield f"{path}:{number}: <{included}> in {room}/: {reason}"
            if included.startswith("nlohmann/") and room in NO_JSON_IN and not re.search(r"_test\.cc$|/test_\w+\.h$", path):
                yield f"{path}:{number}: <{included}> in {room}/, which must not know JSON"
            header = path.endswith((".h", ".cuh")) and not re.search(r"/test_\w+\.h$", path)
            if re.match(HEAVY, included) and header and included != "nlohmann/json_fwd.hpp":
                yield f"{path}:{number}: <{included}> in a header; heavy headers are for .cc files"


def rooms_are_built(tree):
    """Every room with sources has a CMakeLists.txt that adds it under its own name."""
    for room in sorted({room_of(path) for path in tree.having(SOURCE, "src/")}):
        listing = f"src/{room}/CMakeLists.txt"
        if listing not in tree.files or not re.search(rf"tandem_room\({room}[\s)]", tree.text(listing)):
            yield f"{listing}:1: expected tandem_room({room} ...), since src/{room} has sources"


def rooms_are_described(tree):
    """docs/internals/rooms.md has a row for each room that has sources, from the top to the bottom, and no other."""
    page = "docs/internals/rooms.md"
    described = [match.group(1) for _, line in tree.lines(page) for match in [re.match(r"\| `src/(\w+)/`", line)] if match]
    present = {room_of(path) for path in tree.having(SOURCE, "src/")}
    expected = [room for room in reversed(tree.rooms()) if room in present]
    if described != expected:
        yield f"{page}:1: rooms are {', '.join(described)}; expected {', '.join(expected)}"


def source_length(tree):
    for path in tree.having(SOURCE + (".py", ".sh")):
        count = tree.text(path).count("\n")
        if count > SOURCE_LINES_MAX and not path.startswith(DATA):
            yield f"{path}:{count}: {count} lines; expected at most {SOURCE_LINES_MAX}"


def tree_size(tree):
    total = sum((tree.root / path).stat().st_size for path in tree.files)
    if total > TREE_BYTES_MAX:
        yield f".:1: the working tree has {total} bytes; expected at most {TREE_BYTES_MAX}"


def machine_paths(tree):
    """No path of one machine and no registry's host: the tree must work anywhere."""
    folders = "|".join(["home", "root", "work", "Users", "farm", "mnt"])
    hosts = "|".join([r"deb\.debian\.org", r"pypi\.org", r"pythonhosted\.org"])
    pattern = re.compile(rf"(?<![\w.$}}*/-])/(?:{folders})/\w|(?:{hosts})")
    for path in tree.having(TEXT) + [path for path in tree.files if path in ("dev", ".ci/run")]:
        if path.startswith(DATA) or path.startswith("tests/structure/") or path.startswith("tests/fresh/"):
            continue
        for number, line in tree.lines(path):
            if pattern.search(line):
                yield f"{path}:{number}: a path or host of one machine: {line.strip()[:100]}"


def plain_text(tree):
    """No tabs, carriage returns or trailing blanks; a line break at the end; UTF-8."""
    for path in tree.having(TEXT) + [path for path in tree.files if path in ("dev", ".ci/run")]:
        if path.startswith(DATA):
            continue
        if "\ufffd" in tree.text(path):
            yield f"{path}:1: not UTF-8"
        if tree.text(path) and not tree.text(path).endswith("\n"):
            yield f"{path}:1: no line break at the end"
        for number, line in tree.lines(path):
            if "\t" in line or "\r" in line or line != line.rstrip():
                yield f"{path}:{number}: tab, carriage return or trailing blank"


def leading_comment(tree):
    """Each source file starts with a comment that says why it exists; each header is guarded."""
    for path in tree.having(SOURCE):
        if path.startswith(DATA):
            continue
        if not re.match(r"//\s*\S.{7,}", tree.text(path)):
            yield f"{path}:1: expected a leading comment that says why the file exists"
        if path.endswith(".h") and not re.search(r"^#pragma once$", tree.text(path), re.M):
            yield f"{path}:1: no #pragma once"


def anchors(text):
    """The anchors of a Markdown page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+\s+(.+?)\s*$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M):
        heading = re.sub(r"[^\w\- ]", "", heading.lower().replace("`", ""))
        found.add(heading.replace(" ", "-"))
    return found


def links(tree):
    """Every relative link of the pages that users read leads to a file, and its anchor to a heading."""
    for path in tree.having((".md",)):
        if path.startswith(DATA):
            continue
        for number, line in tree.lines(path):
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                if re.match(r"[a-z]+:", target):
                    continue
                name, _, anchor = target.partition("#")
                file = (tree.root / path).parent / name if name else tree.root / path
                if not file.exists():
                    yield f"{path}:{number}: the link {target} leads nowhere"
                elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
                    yield f"{path}:{number}: the link {target} names no heading"


RULES = {rule.__name__: rule for rule in (
    include_order, must_not_know, rooms_are_built, rooms_are_described, source_length, tree_size, machine_paths,
    plain_text, leading_comment, links)}


def main(arguments):
    if not arguments or arguments[0] not in RULES:
        print(f"usage: check_tree.py RULE [ROOT], where RULE is one of {' '.join(RULES)}", file=sys.stderr)
        return 2
    root = arguments[1] if len(arguments) > 1 else Path(__file__).resolve().parents[2]
    violations = list(RULES[arguments[0]](Tree(root)))
    print("\n".join(violations) if violations else f"{arguments[0]}: holds")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
