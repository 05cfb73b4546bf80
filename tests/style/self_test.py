"""The house rules catch what they forbid.

Goal: a check that has gone blind fails here.
Method: copy a small good tree, plant one violation, and expect the check to name it.
"""

# ruff: noqa: D102 - a test's name is its sentence.

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

DEV = pathlib.Path(__file__).resolve().parents[2] / "tools" / "dev"
GOOD_HEADER = "#pragma once\n\n#include <cstdint>\n\nstd::uint32_t Answer();\n"
GOOD_SOURCE = '#include "libffrecord/base/answer.h"\n\nstd::uint32_t Answer() { return 42; }\n'


class HouseRules(unittest.TestCase):
    """Each test starts from a tree with which every check is content."""

    def setUp(self) -> None:
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        self.build = self.root / "build"
        self.build.mkdir()
        self.plant("libffrecord/base/answer.h", GOOD_HEADER)
        self.plant("libffrecord/base/answer.cpp", GOOD_SOURCE)
        source = str(self.root / "libffrecord/base/answer.cpp")
        command = f"c++ -I{self.root} -std=c++20 -c {source}"
        self.plant(
            "build/compile_commands.json",
            json.dumps([{"directory": str(self.build), "file": source, "command": command}]),
        )

    def plant(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run_check(self, name: str, *extra: str) -> tuple[int, str]:
        run = subprocess.run(
            [sys.executable, str(DEV / f"{name}.py"), str(self.root), *extra],
            capture_output=True,
            text=True,
            check=False,
        )
        return run.returncode, run.stdout + run.stderr

    def test_the_good_tree_passes_every_check(self) -> None:
        for check, extra in (
            ("check_classes", ()),
            ("check_layers", ()),
            ("check_time", ()),
            ("check_words", ()),
            ("check_headers", (str(self.build),)),
        ):
            self.assertEqual(self.run_check(check, *extra)[0], 0, check)

    def test_an_include_of_a_higher_room_is_named(self) -> None:
        self.plant("libffrecord/format/v1.h", "#pragma once\n#include <libffrecord/io/file.h>\n")
        code, output = self.run_check("check_layers")
        self.assertEqual(code, 1)
        self.assertIn("libffrecord/format/v1.h:2: libffrecord/format may not include", output)

    def plant_class(self, name: str, methods: int, *files: tuple[str, int]) -> None:
        """Declare a class with so many methods; each file has one of them and so many lines."""
        declared = "".join(f"  void Do{number}();\n" for number in range(methods))
        header = f"#pragma once\nnamespace ffrecord::net {{\nclass {name} {{\n{declared}}};\n}}\n"
        self.plant(f"libffrecord/net/{name}.h", header)
        for number, (file, lines) in enumerate(files):
            text = f"namespace ffrecord::net {{\nvoid {name}::Do{number}() {{}}\n"
            self.plant(f"libffrecord/net/{file}.cpp", text + "//\n" * (lines - 3) + "}\n")

    def test_a_class_that_is_too_large_or_in_several_files_is_named(self) -> None:
        self.plant_class("Good", 40, ("good", 600))
        self.assertEqual(self.run_check("check_classes")[0], 0)
        self.plant_class("Wide", 41, ("wide", 10))
        self.plant_class("Long", 3, ("long", 601))
        self.plant_class("Cut", 3, ("cut", 10), ("cut_more", 10))
        code, output = self.run_check("check_classes")
        self.assertEqual(code, 1)
        self.assertIn("libffrecord/net/Wide.h:3: net::Wide has 41 methods, 1 files, 10", output)
        self.assertIn("libffrecord/net/Long.h:3: net::Long has 3 methods, 1 files, 601", output)
        self.assertIn("libffrecord/net/Cut.h:3: net::Cut has 3 methods, 2 files, 20", output)
        self.assertNotIn("Good", output)

    def test_a_large_class_may_only_get_smaller(self) -> None:
        self.plant_class("Wide", 50, ("wide", 10))
        listed = "# Methods, files, lines.\nnet::Wide {} 1 12\n"
        for methods, said in (
            (50, None),
            (49, "may only get smaller"),
            (51, "write these numbers into"),
        ):
            self.plant("tools/dev/large_classes.txt", listed.format(methods))
            code, output = self.run_check("check_classes")
            self.assertEqual(code, int(said is not None), output)
            self.assertIn(said or "", output)
        self.plant_class("Wide", 40, ("wide", 10))
        self.plant("tools/dev/large_classes.txt", listed.format(50) + "net::Gone 50 1 10\n")
        output = self.run_check("check_classes")[1]
        self.assertIn("net::Wide keeps the rule: remove it", output)
        self.assertIn("net::Gone is not a class", output)

    def test_methods_are_counted_and_not_what_looks_like_them(self) -> None:
        methods = (
            "explicit Odd(int a) : a_(a), b_{1}, f_([] { return 2; }) {}",
            "~Odd();",
            "int size() const noexcept { return a_ > 0 ? b_ : 1'000'000; }",
            "template <class T = std::vector<int>>\n  T As(std::function<T(int)> make = {}) const;",
            "bool operator<(const Odd&) const;",
            "std::array<int, (1 << 4)> Both(void (*one)(int));",
            "static Result<std::unique_ptr<Odd>> Open(int b = 3,\n      int c = Limit(4));",
        )
        others = (
            "Odd(const Odd&) = delete;",
            "Odd& operator=(Odd&&) noexcept = default;",
            "using Done = std::function<void(int)>;",
            "enum class Kind : int { kOne, kTwo };",
            "friend void Look(const Odd&);",
            "static_assert(sizeof(int) == 4);",
            "static constexpr int kMax = Limit(3);  // f();",
            'const char* text_ = "f();";',
            "std::function<void(int)> told_ = [](int) { Do(); };",
            "int (*hook_)(int) = nullptr;",
            "alignas(64) int a_ = 0;",
            "int b_{0};",
            "struct Inner {\n    void One();\n    void Two();\n  };",
        )
        body = "".join(f"  {line}\n" for line in ("public:", *methods, "private:", *others))
        opening = "#pragma once\nnamespace ffrecord {\nclass Odd final : public Even {\n"
        text = f"{opening}{body}}};\n}}\n"
        self.plant("client/odd.h", text)
        count = f"Odd {len(methods) + 1} 2 9\nOdd::Inner 3 2 9\n"
        self.plant("tools/dev/large_classes.txt", count)
        for number in range(2):
            definitions = "bool Odd::operator<(const Odd&) const {}\nvoid Odd::Inner::One() {}\n"
            self.plant(f"client/{number}.cpp", f"namespace ffrecord {{\n{definitions}}}\n")
        output = self.run_check("check_classes")[1]
        self.assertIn(f": Odd has {len(methods)} methods, 2 files", output)
        self.assertIn(": Odd::Inner has 2 methods, 2 files", output)

    def test_a_foreign_header_away_from_home_is_named(self) -> None:
        self.plant("client/dataset/local.cpp", "#include <liburing.h>\n")
        code, output = self.run_check("check_layers")
        self.assertEqual(code, 1)
        self.assertIn("client/dataset/local.cpp:1: liburing.h belongs in libffrecord/io", output)

    def test_a_time_that_is_not_the_clocks_is_named(self) -> None:
        self.plant("libffrecord/base/clock.h", "// std::chrono::steady_clock::now()\n")
        self.plant("libffrecord/include/ffrecord/a.h", "using Clock = std::chrono::steady_clock;\n")
        self.plant("tests/a.cpp", "std::this_thread::sleep_for(1ms);\n")
        self.plant(
            "server/good.cpp", "auto t = Clock::now();  // Not steady_clock.\nchanged.wait(lock);\n"
        )
        self.assertEqual(self.run_check("check_time")[0], 0)
        calls = (
            "auto t = std::chrono::steady_clock::now();",
            "auto t = TimePoint::clock::now();",
            "auto t = BatchQueue::Clock::now();",
            "auto t = std::time(nullptr);",
            "std::this_thread::sleep_for(1ms);",
            "::usleep(100);",
            "changed->wait_for(lock, 1ms);",
            "changed.wait_until(lock, t, is_so);",
            "(void)::poll(&waited, 1, 100);",
            "::epoll_wait(epoll, events, 8, 100);",
            "::timerfd_settime(timer, 0, &at, nullptr);",
        )
        self.plant("client/dataset/bad.cpp", "\n".join(calls) + "\n")
        code, output = self.run_check("check_time")
        self.assertEqual(code, 1)
        for number in range(1, len(calls) + 1):
            self.assertIn(f"client/dataset/bad.cpp:{number}: ", output)

    def test_a_time_of_python_that_is_not_the_clocks_is_named(self) -> None:
        self.plant("python/ffrecord/_base/clock.py", "import time\nnow = time.monotonic\n")
        self.plant("tests/python/test_a.py", "import time\ntime.sleep(1)\n")
        good = (
            "now = clock.now()  # As time.monotonic() does.",
            'date = time.strftime("%Y", time.gmtime(0))',
            "event.wait()",
            "clock.wait(event.wait, 5.0)",
            "clock.wait(lambda limit_s: changed.wait_for(is_so, limit_s), _LOOK_S)",
            "process.wait(_STOP_S)",
            "work.wait(datetime.timedelta(seconds=timeout_s))",
            '", ".join(left)',
            "sums.get(name, 0.0)",
        )
        self.plant("python/ffrecord/_read/good.py", "\n".join(good) + "\n")
        self.assertEqual(self.run_check("check_time")[0], 0)
        bad = (
            "now = time.monotonic()",
            "find_now = time.perf_counter_ns",
            "from time import sleep",
            "time.sleep(1)",
            "await asyncio.sleep(1)",
            "event.wait(5.0)",
            "changed.wait_for(is_so, end - clock.now() + self._more_s)",
            "thread.join(_JOIN_S)",
            "future.result(timeout=timeout_s)",
            "done, _ = futures.wait(waited, _LOOK_S)",
            "found = queue.get(timeout=1)",
            "lock.acquire(timeout=limits.left_s)",
            "events = select.poll()",
        )
        self.plant("python/ffrecord/_read/bad.py", "\n".join(bad) + "\n")
        code, output = self.run_check("check_time")
        self.assertEqual(code, 1)
        for number in range(1, len(bad) + 1):
            self.assertIn(f"python/ffrecord/_read/bad.py:{number}: ", output)

    def test_a_header_that_leans_on_its_includer_is_named(self) -> None:
        self.plant("libffrecord/base/lean.h", "#pragma once\nstd::string Name();\n")
        code, output = self.run_check("check_headers", str(self.build))
        self.assertEqual(code, 1)
        self.assertIn("libffrecord/base/lean.h: does not compile alone", output)

    def test_a_header_is_judged_again_when_another_changes(self) -> None:
        self.plant("libffrecord/base/upper.h", '#pragma once\n#include "answer.h"\n')
        self.assertEqual(self.run_check("check_headers", str(self.build))[0], 0)
        self.plant("libffrecord/base/answer.h", "#pragma once\nstd::uint32_t Answer();\n")
        code, output = self.run_check("check_headers", str(self.build))
        self.assertEqual(code, 1)
        self.assertIn("libffrecord/base/upper.h", output)

    def test_a_header_that_a_source_begins_with_is_left_to_the_build(self) -> None:
        self.plant("libffrecord/base/answer.h", "#pragma once\nstd::uint32_t Answer();\n")
        self.assertEqual(self.run_check("check_headers", str(self.build))[0], 0)
        self.plant("libffrecord/base/answer.cpp", "#include <cstdint>\n" + GOOD_SOURCE)
        code, output = self.run_check("check_headers", str(self.build))
        self.assertEqual(code, 1)
        self.assertIn("libffrecord/base/answer.h: does not compile alone", output)

    def test_a_header_without_a_guard_is_named(self) -> None:
        self.plant("libffrecord/base/twice.h", "struct Twice {};\n")
        code, output = self.run_check("check_headers", str(self.build))
        self.assertEqual(code, 1)
        self.assertIn("libffrecord/base/twice.h: no #pragma once", output)

    def test_unfinished_work_and_paths_of_one_machine_are_named(self) -> None:
        self.plant("docs/notes.md", "TO" + "DO: more\nsee /ho" + "me/someone/tree\n")
        code, output = self.run_check("check_words")
        self.assertEqual(code, 1)
        self.assertIn("docs/notes.md:1", output)
        self.assertIn("docs/notes.md:2", output)

    def test_words_that_pages_avoid_are_named_outside_of_code(self) -> None:
        self.plant("docs/good.md", "# What it is\n\n```\nWho: by itself\n```\n\nSet `by itself`.\n")
        self.assertEqual(self.run_check("check_words")[0], 0)
        page = "```\nok\n```\nIt reads. Of these, one.\nA daemon by itself\n300 records a second\n"
        self.plant("docs/guides/bad.md", page)
        self.plant("NEWS.md", "Fast. Likewise small.\n")
        self.plant("tests/notes.md", "A daemon by itself\n")
        code, output = self.run_check("check_words")
        self.assertEqual(code, 1)
        for place in ("docs/guides/bad.md:4", "docs/guides/bad.md:5", "docs/guides/bad.md:6"):
            self.assertIn(place, output)
        self.assertIn("NEWS.md:1: 'Likewise'", output)
        self.assertNotIn("tests/notes.md", output)

    def test_words_are_named_in_comments_and_texts_of_sources_and_not_in_code(self) -> None:
        self.plant(
            "client/good.cpp", 'int by, itself; /* A `told` one. */\nf("Named.");  // Sent.\n'
        )
        self.plant("python/good.py", '"""A value."""\nlest = {"a": r"x"}  # `Whoever` is quoted.\n')
        self.plant("tests/unit/free_test.cpp", "// Who waits is told.\n")
        self.assertEqual(self.run_check("check_words")[0], 0)
        self.plant("client/bad.h", "int size;  // Of the file.\n/* The peer is\n * told. */\n")
        self.plant(
            "server/bad.cpp", 'Fail("a daemon by itself");\nchar raw[] = R"(put\nup with)";\n'
        )
        self.plant(
            "python/bad.py",
            'def f():\n    """Wait.\n\n    Whoever asks.\n    """\n    g("x")  # Likewise.\n',
        )
        code, output = self.run_check("check_words")
        self.assertEqual(code, 1)
        found = {line.rpartition(": ")[0] for line in output.splitlines()}
        self.assertEqual(
            found,
            {
                "client/bad.h:1: 'Of'",
                "client/bad.h:3: 'is told'",
                "python/bad.py:4: 'Whoever'",
                "python/bad.py:6: 'Likewise'",
                "server/bad.cpp:1: 'by itself'",
                "server/bad.cpp:3: 'put up with'",
            },
        )

    def test_circles_of_imports_and_torch_in_the_core_are_named(self) -> None:
        self.plant("python/ffrecord/__init__.py", "from ffrecord._base.one import a\n")
        self.plant("python/ffrecord/torch/__init__.py", "import torch\nimport ffrecord._base.one\n")
        self.plant("python/ffrecord/distributed/__init__.py", "import torch\n")
        types = "if TYPE_CHECKING:\n    import ffrecord._base.one\n"
        self.plant("python/ffrecord/_base/two.py", types + "def f():\n    import torch\n")
        one = "from ffrecord import _ffrecord\nfrom ffrecord._base import two\n"
        self.plant("python/ffrecord/_base/one.py", one)
        self.assertEqual(self.run_check("check_imports")[0], 0)
        two = "def f():\n    from ffrecord._base.one import a\nimport torch.nn\n"
        self.plant("python/ffrecord/_base/two.py", two)
        code, output = self.run_check("check_imports")
        self.assertEqual(code, 1)
        self.assertIn("ffrecord._base.one -> ffrecord._base.two -> ffrecord._base.one", output)
        self.assertIn("two.py:3: the core does not import torch.nn", output)

    def test_an_import_against_the_order_of_rooms_is_named_wherever_it_is(self) -> None:
        self.plant("python/ffrecord/__init__.py", "import ffrecord._read.reader\n")
        self.plant("python/ffrecord/errors.py", "")
        self.plant("python/ffrecord/_base/one.py", "import ffrecord.errors\n")
        reader = "def f():\n    from ffrecord._base import one\n"
        self.plant("python/ffrecord/_read/reader.py", reader)
        self.assertEqual(self.run_check("check_imports")[0], 0)
        late = "def f():\n    from ffrecord._read.reader import Reader\n"
        types = "if TYPE_CHECKING:\n    from ffrecord._read import reader\n"
        self.plant("python/ffrecord/_base/one.py", late + types)
        self.plant("python/ffrecord/_write/writer.py", "import ffrecord\n")
        self.plant("python/ffrecord/_new/one.py", "import ffrecord._base.one\n")
        self.plant("python/ffrecord/_flat.py", "")
        code, output = self.run_check("check_imports")
        self.assertEqual(code, 1)
        self.assertIn("_base/one.py:2: _base may not import _read", output)
        self.assertIn("_base/one.py:4: _base may not import _read", output)
        self.assertIn("_write/writer.py:1: _write may not import the doors", output)
        self.assertIn("ffrecord._new.one: its room is not listed", output)
        self.assertIn("ffrecord._flat: is private, and in no room", output)

    def test_a_module_that_is_neither_private_nor_listed_is_named(self) -> None:
        self.plant("python/ffrecord/_cli/main.py", "")
        self.plant("python/ffrecord/torch/lightning.py", "")
        self.assertEqual(self.run_check("check_imports")[0], 0)
        self.plant("python/ffrecord/torch/threads.py", "")
        code, output = self.run_check("check_imports")
        self.assertEqual(code, 1)
        self.assertIn("ffrecord.torch.threads: is public", output)

    def test_a_private_module_that_a_stranger_names_is_named(self) -> None:
        self.plant("tests/python/test_reader.py", "from ffrecord._read.reader import Reader\n")
        self.plant(
            "docs/good.md", "See `python/ffrecord/_read/reader.py`; `ffrecord.__version__`.\n"
        )
        self.assertEqual(self.run_check("check_imports")[0], 0)
        self.plant("docs/guide.md", "\n```python\nfrom ffrecord.torch._views import mix\n```\n")
        self.plant("benchmarks/one.py", "from ffrecord import (\n    Reader,\n    _read,\n)\n")
        self.plant("tools/two", "#!/usr/bin/env python3\nffrecord._read.reader.open('x')\n")
        code, output = self.run_check("check_imports")
        self.assertEqual(code, 1)
        for place in ("docs/guide.md:3", "benchmarks/one.py:1", "tools/two:2"):
            self.assertIn(f"{place}: ", output)

    def test_a_private_module_without_docstrings_is_named(self) -> None:
        self.plant("pyproject.toml", "")
        self.plant("python/ffrecord/__init__.py", '"""The package."""\n')
        self.plant("python/ffrecord/_one.py", "def answer() -> int:\n    return 42\n")
        code, output = self.run_check("check_python")
        if code == 77:
            self.skipTest("neither ruff nor mypy is installed")
        self.assertEqual(code, 1)
        self.assertIn("python/ffrecord/_one.py:1: no docstring", output)

    def test_a_badly_formatted_file_is_named(self) -> None:
        if self.run_check("check_format")[0] == 77:
            self.skipTest("clang-format 14 is not installed")
        self.plant("libffrecord/base/ugly.cpp", "int   f( ){return 1 ;}\n")
        code, output = self.run_check("check_format")
        self.assertEqual(code, 1)
        self.assertIn("ugly.cpp", output)


if __name__ == "__main__":
    unittest.main()
