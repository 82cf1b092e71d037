"""Tests of the checks themselves: a small good tree passes every rule, and for each rule there are trees, one change away
from the good one, that must fail it."""

import tempfile
import unittest
from pathlib import Path

import check_tree

GOOD = {
    "cmake/tandem.cmake": "set(TANDEM_ROOMS base model http cli)\n",
    "README.md": "# The tree\n\nSee [rooms](docs/internals/rooms.md#the-rooms) and [here](#the-tree).\n",
    "docs/internals/rooms.md": "# The rooms\n\n| `src/http/` | sockets |\n| `src/model/` | models |\n| `src/base/` | base |\n",
    "src/base/CMakeLists.txt": "tandem_room(base)\n",
    "src/base/error.h": "// Why this file exists, in words.\n#pragma once\n",
    "src/model/CMakeLists.txt": "tandem_room(model LIBRARIES json)\n",
    "src/model/reader.cc": '// Why this file exists, in words.\n#include <nlohmann/json.hpp>\n#include "base/error.h"\n',
    "src/http/CMakeLists.txt": "tandem_room(http)\n",
    "src/http/listener.cc": "// Why this file exists, in words.\n#include <boost/asio.hpp>\n",
    "models/nano/data.json": "{\t}",
}
COMMENT = "// Why this file exists, in words.\n"

# rule: changes of the good tree (path to new content, None to remove it), each of which the rule must refuse.
BAD = {
    "include_order": [
        {"src/base/error.h": COMMENT + '#pragma once\n#include "model/reader.h"\n', "src/model/reader.h": "// \n"},
        {"src/model/reader.cc": COMMENT + '#include "reader.h"\n'},
        {"src/model/reader.cc": COMMENT + '#include "base/absent.h"\n'},
        {"src/extra/thing.cc": COMMENT},
    ],
    "must_not_know": [
        {"src/model/reader.cc": COMMENT + "#include <boost/asio.hpp>\n"},
        {"src/model/reader.cc": COMMENT + "#include <CLI/CLI.hpp>\n"},
        {"src/model/reader.cc": COMMENT + "#include <sys/socket.h>\n"},
        {"src/model/reader.cc": COMMENT + "#include <cuda.h>\n"},
        {"src/http/listener.cc": COMMENT + "#include <nlohmann/json.hpp>\n"},
        {"src/model/reader.h": COMMENT + "#include <nlohmann/json.hpp>\n"},
        {"src/base/error.h": COMMENT + "#  include <boost/beast.hpp>\n"},
        {"src/cli/options.h": COMMENT + "#include <CLI/CLI.hpp>\n"},
    ],
    "rooms_are_built": [
        {"src/model/CMakeLists.txt": None},
        {"src/model/CMakeLists.txt": "tandem_room(models)\n"},
    ],
    "rooms_are_described": [
        {"src/cli/main.cc": COMMENT},
        {"docs/internals/rooms.md": "| `src/base/` | base |\n| `src/model/` | models |\n| `src/http/` | sockets |\n"},
    ],
    "source_length": [{"src/model/reader.cc": COMMENT * 501}, {"tests/tool.py": "pass\n" * 501}],
    "tree_size": [{"models/nano/data.json": "x" * (check_tree.TREE_BYTES_MAX + 1)}],
    "machine_paths": [
        {"README.md": "cd /" + "home/someone/tandem\n"},
        {"dev": "cd /" + "work/tandem\n"},
        {"src/model/reader.cc": COMMENT + 'auto path = "/' + 'root/model";\n'},
        {"docs/install.md": "Fetch it from deb.debian" + ".org.\n"},
    ],
    "plain_text": [
        {"src/model/reader.cc": COMMENT + "\tint x;\n"},
        {"README.md": "one\r\ntwo\n"},
        {"README.md": "one \n"},
        {"README.md": "one"},
        {"README.md": b"\xff\xfe\n"},
    ],
    "leading_comment": [
        {"src/model/reader.cc": "#include <vector>\n"},
        {"src/model/reader.cc": "// x\n"},
        {"src/base/error.h": COMMENT},
    ],
    "links": [
        {"README.md": "[gone](docs/gone.md)\n"},
        {"README.md": "# One\n[gone](#two)\n"},
        {"README.md": "[gone](docs/internals/rooms.md#nothing)\n"},
    ],
}


def violations(rule, changes):
    """What `rule` says about the good tree with `changes`."""
    with tempfile.TemporaryDirectory() as folder:
        for path, content in {**GOOD, **changes}.items():
            if content is None:
                continue
            file = Path(folder) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return list(check_tree.RULES[rule](check_tree.Tree(folder)))


class Rules(unittest.TestCase):
    def test_every_rule_holds_for_a_good_tree(self):
        for rule in check_tree.RULES:
            with self.subTest(rule=rule):
                self.assertEqual(violations(rule, {}), [])

    def test_every_rule_refuses_its_bad_trees(self):
        self.assertEqual(set(BAD), set(check_tree.RULES))
        for rule, trees in BAD.items():
            for changes in trees:
                with self.subTest(rule=rule, changes=str(changes)[:200]):
                    self.assertNotEqual(violations(rule, changes), [])

    def test_a_test_may_read_json_in_any_room(self):
        self.assertEqual(violations("must_not_know", {"src/base/a_test.cc": COMMENT + "#include <nlohmann/json.hpp>\n"}), [])


if __name__ == "__main__":
    unittest.main()
